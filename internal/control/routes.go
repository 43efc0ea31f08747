package control

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"hinit/client"
)

// request holds an API request with its route and its client. Its context ends at the route's time limit.
type request struct {
	*http.Request
	route route
	who   peer
	body  []byte
	query url.Values
}

// bootNeed defines whether a request waits for the end of the boot, because only then are all services known.
type bootNeed int

const (
	anytime  bootNeed = iota // the request never waits for the boot
	forNames                 // the request waits only if it names a service that is not known yet
	afterAll                 // the request always waits for the end of the boot
)

type route struct {
	pattern string
	may     access
	boot    bootNeed
	limit   time.Duration // time limit; 0 if the client sets a limit, or the answer has no end
	handle  func(s *Server, r *request) (reply, error)
}

const (
	readLimit = 5 * time.Second  // for answers from memory
	slotLimit = 9 * time.Second  // for the scan directory of s6 and the examination of the volume: their clients wait for 10 s
	workLimit = 30 * time.Second // for work that reads many files

	topologyLimit = 3 * time.Minute // longer than all gateways need to stop
)

// routes returns the API table. Each row has the pattern, the required permission, whether the request waits for the boot,
// the time limit and the handler. Each route answers within its limit, even if the disk is slow, because the functions of
// [Backend] return when the request's context ends.
func routes() []route {
	return []route{
		{"GET /v1/status", mayRead, anytime, readLimit, getStatus},
		{"GET /v1/status/follow", mayRead, anytime, 0, getFollow},
		{"GET /v1/services/{name}", mayRead, anytime, readLimit, getService},
		{"POST /v1/services/{name}/start", mayControl, forNames, 0, command(client.VerbStart, false)},
		{"POST /v1/services/{name}/stop", mayControl, forNames, 0, command(client.VerbStop, false)},
		{"POST /v1/services/{name}/restart", mayControl, forNames, 0, command(client.VerbRestart, false)},
		{"POST /v1/services/{name}/run-once", mayControl, forNames, 0, command(client.VerbStart, true)},
		{"POST /v1/services/{name}/checks", mayControl, anytime, readLimit, withBody(postChecks)},
		{"POST /v1/services/{name}/signal", mayControl, anytime, readLimit, withBody(postSignal)},
		{"POST /v1/services/{name}/say", mayControl, anytime, readLimit, withBody(postSay)},
		{"POST /v1/runs", mayControl, afterAll, workLimit, withBody(postRun)},
		{"GET /v1/runs", mayControl, anytime, 0, getRuns},
		{"GET /v1/runs/{id}", mayControl, anytime, 0, getRun},
		{"POST /v1/runs/{id}/stop", mayControl, anytime, readLimit, withBody(postRunStop)},
		{"POST /v1/notices", mayControl, anytime, readLimit, withBody(postNotice)},
		{"GET /v1/events", mayRead, anytime, 0, getEvents},
		{"POST /v1/rescan", mayControl, afterAll, workLimit, withBody(postRescan)},
		{"POST /v1/reload", mayControl, afterAll, workLimit, withBody(postReload)},
		{"POST /v1/topology", mayControl, afterAll, topologyLimit, withBody(postTopology)},
		{"POST /v1/examine", mayControl, anytime, slotLimit, withBody(postExamine)},
		{"POST /v1/reexec", mayReplace, anytime, readLimit, withBody(postReexec)},
		{"GET /v1/config", mayControl, anytime, readLimit, getConfig}, // needs more than mayRead: it shows paths and settings
		{"GET /v1/health", mayRead, anytime, readLimit, getHealth},
		{"GET /v1/slots", mayRead, anytime, slotLimit, getSlots},
		{"GET /v1/slots/wait", mayRead, anytime, 0, getSlotWait},
		{"POST /v1/slots/control", mayControl, anytime, slotLimit, withBody(postSlotControl)},
		{"POST /v1/slots/scan", mayControl, anytime, slotLimit, withBody(postSlotScan)},
	}
}

// parse reads the parameters of a request. It refuses unknown parameters, because they may be typing errors.
func (r *request) parse() (err error) {
	if r.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return refuse(client.KindBadRequest, "the parameters cannot be understood: %v", err)
	}
	known := strings.Fields(map[string]string{
		"GET /v1/status": "name as width colour verbose", "GET /v1/health": "probe", "GET /v1/events": "since last follow", "GET /v1/runs": "follow",
		"GET /v1/runs/{id}": "wait_ms", "GET /v1/slots": "dir", "GET /v1/slots/wait": "dir until",
	}[r.route.pattern])
	for key := range r.query {
		if !slices.Contains(known, key) {
			takes := "takes none"
			if len(known) > 0 {
				takes = "takes " + strings.Join(known, ", ")
			}
			return refuse(client.KindBadRequest, "unknown parameter %q; %s %s", key, r.URL.Path, takes)
		}
	}
	return nil
}

// timeLimitError is the cause of a context that ended because of a time limit.
type timeLimitError time.Duration

func (l timeLimitError) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(l)) }

func (timeLimitError) Unwrap() error { return context.DeadlineExceeded }

// These handlers answer requests that concern hinit as a whole.

func postRescan(s *Server, r *request, _ struct{}) (reply, error) {
	return reply{status: http.StatusNoContent}, s.core.Rescan(r.Context())
}

func postReload(s *Server, r *request, how client.Reload) (reply, error) {
	if how.Force && s.policy.check(r.who, mayReplace) != nil { // without the file, its limits and its isolation would end
		return reply{}, refuse(client.KindNotAllowed, "uid %d may not reload without a configuration file; root may", r.who.uid)
	}
	out, err := s.core.Reload(r.Context(), how)
	out.Changes, out.Plan, out.Settings = nonNil(out.Changes), nonNil(out.Plan), nonNil(out.Settings)
	return answerLater(http.StatusOK, out, err)
}

func postTopology(s *Server, r *request, how client.Topology) (reply, error) {
	if how.Mode != "" && !slices.Contains(client.Topologies, how.Mode) {
		return reply{}, refuse(client.KindBadRequest, "mode is %q; it is one of %s, in a container with profiles", how.Mode, strings.Join(client.Topologies, ", "))
	}
	out, err := s.core.Topology(r.Context(), how.Mode, how.DryRun)
	return answerLater(http.StatusOK, out, err)
}

func postExamine(s *Server, r *request, _ struct{}) (reply, error) {
	return answerLater(http.StatusOK, client.ExamineReply{Findings: nonNil(s.core.Examine(r.Context()))}, nil)
}

func postReexec(s *Server, r *request, body client.Reexec) (reply, error) {
	image, err := s.core.Reexec(r.Context(), body.Binary)
	if err != nil {
		return reply{}, err
	}
	return withStatus(http.StatusAccepted, client.ReexecReply{Image: image})
}

func getConfig(s *Server, r *request) (reply, error) {
	return s.inTurn(r, func() (reply, error) { return answer(client.ConfigReply{Entries: nonNil(s.core.Config())}) })
}
