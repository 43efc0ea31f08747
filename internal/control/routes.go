package control

import "net/http"

// request is a request with what was found out about it before a handler sees it.
type request struct {
	*http.Request
	who  peer
	body []byte
}

type route struct {
	pattern string
	may     access
	handle  func(s *Server, r *request) (reply, error)
}

// routes is the whole API: which request, who may make it, what answers it.
func routes() []route {
	return []route{
		{"GET /v1/status", mayRead, getStatus},
		{"GET /v1/services/{name}", mayRead, getService},
		{"POST /v1/services/{name}/start", mayControl, command(start())},
		{"POST /v1/services/{name}/stop", mayControl, command(stop())},
		{"POST /v1/services/{name}/restart", mayControl, command(restart())},
		{"GET /v1/events", mayRead, getEvents},
		{"POST /v1/rescan", mayControl, postRescan},
		{"POST /v1/reload", mayControl, postReload},
		{"POST /v1/reexec", mayReplace, postReexec},
		{"GET /v1/config", mayControl, getConfig}, // not status: it tells where things are and what they are set to
		{"GET /v1/health", mayRead, getHealth},
		{"GET /v1/slots", mayRead, getSlots},
		{"GET /v1/slots/wait", mayRead, getSlotWait},
		{"POST /v1/slots/control", mayControl, postSlotControl},
		{"POST /v1/slots/scan", mayControl, postSlotScan},
	}
}
