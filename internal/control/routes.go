package control

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// request is a request with what was found out about it before a handler sees it. Its context ends with the limit of its route.
type request struct {
	*http.Request
	route route
	who   peer
	body  []byte
}

// bootNeed is whether a route depends on the boot, before whose end not all services are known.
type bootNeed int

const (
	anytime  bootNeed = iota // it answers with what there is
	forNames                 // a name that is not known waits for the boot
	afterAll                 // it waits for the boot
)

type route struct {
	pattern string
	may     access
	boot    bootNeed
	limit   time.Duration // for the answer; 0 where the request says how long it waits, or the answer has no end
	handle  func(s *Server, r *request) (reply, error)
}

const (
	lookLimit = 5 * time.Second  // what is at hand
	slotLimit = 9 * time.Second  // what concerns the scan directory, for which clients wait for 10 s; examining the volume, which ends before
	workLimit = 30 * time.Second // what reads many files
)

// routes is the whole API: which request, who may make it, whether it needs the boot, how long it may take, what answers it.
// However long the disk takes, each route answers within its limit: what the core does with the context of a request ends with that.
func routes() []route {
	return []route{
		{"GET /v1/status", mayRead, anytime, lookLimit, getStatus},
		{"GET /v1/services/{name}", mayRead, anytime, lookLimit, getService},
		{"POST /v1/services/{name}/start", mayControl, forNames, 0, command(start())},
		{"POST /v1/services/{name}/stop", mayControl, forNames, 0, command(stop())},
		{"POST /v1/services/{name}/restart", mayControl, forNames, 0, command(restart())},
		{"GET /v1/events", mayRead, anytime, 0, getEvents},
		{"POST /v1/rescan", mayControl, afterAll, workLimit, postRescan},
		{"POST /v1/reload", mayControl, afterAll, workLimit, postReload},
		{"POST /v1/examine", mayControl, anytime, slotLimit, postExamine},
		{"POST /v1/reexec", mayReplace, anytime, lookLimit, postReexec},
		{"GET /v1/config", mayControl, anytime, lookLimit, getConfig}, // not status: it tells where things are and what they are set to
		{"GET /v1/health", mayRead, anytime, lookLimit, getHealth},
		{"GET /v1/slots", mayRead, anytime, slotLimit, getSlots},
		{"GET /v1/slots/wait", mayRead, anytime, 0, getSlotWait},
		{"POST /v1/slots/control", mayControl, anytime, slotLimit, postSlotControl},
		{"POST /v1/slots/scan", mayControl, anytime, slotLimit, postSlotScan},
	}
}

// late is why the context of a request has ended: the limit of its route is over.
type late time.Duration

func (l late) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(l)) }

// Unwrap makes it what the end of a context is.
func (late) Unwrap() error { return context.DeadlineExceeded }
