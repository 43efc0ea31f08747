package control

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// Runs are the commands that were started once, by their book. Its errors are treated like the errors of [Core].
type Runs interface {
	Stop(ctx context.Context, id string) (client.Run, error)
	Find(id string) (client.Run, error)
	// Since returns the runs that began or ended after a cursor, and the next cursor. The first cursor is 0.
	Since(cursor uint64) ([]client.Run, uint64)
	News() <-chan struct{}
}

func postRun(s *Server, r *request) (reply, error) {
	var ask client.RunRequest
	if err := decode(r.body, &ask); err != nil {
		return reply{}, err
	}
	if err := checkRun(ask); err != nil {
		return reply{}, err
	}
	run, err := s.core.StartRun(r.Context(), ask)
	if err != nil {
		return reply{}, err
	}
	return later(http.StatusOK, run)
}

// checkRun refuses impossible requests.
func checkRun(ask client.RunRequest) error {
	for name, value := range ask.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(value, 0) >= 0 {
			return refuse(client.KindBadRequest, "env has %q, which cannot be a variable", name)
		}
	}
	for _, word := range append([]string{ask.Profile, ask.Task}, ask.Options...) {
		if strings.IndexByte(word, 0) >= 0 {
			return refuse(client.KindBadRequest, "%q has a NUL byte", word)
		}
	}
	for name, path := range map[string]string{"dir": ask.Dir, "log": ask.Log} {
		if path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path || strings.IndexByte(path, 0) >= 0) {
			return refuse(client.KindBadRequest, "%s is %q; it has to be an absolute path without detours", name, path)
		}
	}
	const most = int64(366 * 24 * time.Hour / time.Millisecond)
	for name, ms := range map[string]int64{"limit_ms": ask.LimitMS, "grace_ms": ask.GraceMS} {
		if ms < 0 || ms > most {
			return refuse(client.KindBadRequest, "%s is %d; it goes from 0 to %d", name, ms, most)
		}
	}
	return nil
}

// getRuns lists the runs, one JSON object a line; with follow=1 it goes on with each that begins or ends.
func getRuns(s *Server, r *request) (reply, error) {
	query := r.query
	switch query.Get("follow") {
	case "", "0":
		return s.inTurn(r, func() (reply, error) {
			runs, _ := s.core.Runs.Since(0)
			return done(client.RunsReply{Runs: list(runs)})
		})
	case "1":
	default:
		return reply{}, refuse(client.KindBadRequest, "follow is %q; it is 1 or 0", query.Get("follow"))
	}
	release, err := s.wait(r.who)
	if err != nil {
		return reply{}, err
	}
	return reply{stream: func(w http.ResponseWriter) {
		defer release()
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := &lines{server: s, w: w, flush: http.NewResponseController(w)}
		for cursor := uint64(0); ; {
			news := s.core.Runs.News()
			var runs []client.Run
			runs, cursor = s.core.Runs.Since(cursor)
			more := len(runs) > batch
			if more { // what a slow client makes us keep is small
				runs = slices.Clone(runs[:batch])
				cursor = runs[batch-1].Seq
			}
			for _, run := range runs {
				out.write(run)
			}
			out.end()
			if out.err != nil {
				return
			}
			if more {
				continue
			}
			select {
			case <-news:
			case <-r.Context().Done():
				return
			}
		}
	}}, nil
}

// getRun returns one run; with wait_ms, once it has ended or the time is over.
func getRun(s *Server, r *request) (reply, error) {
	query := r.query
	id := r.PathValue("id")
	run, err := s.core.Runs.Find(id)
	if err != nil || run.End != nil || query.Get("wait_ms") == "" {
		return answered(run, err)
	}
	ms, bad := strconv.ParseInt(query.Get("wait_ms"), 10, 64)
	if bad != nil || ms < 0 || ms > longestWait.Milliseconds() {
		return reply{}, refuse(client.KindBadRequest, "wait_ms is %q; it goes from 0 to %d", query.Get("wait_ms"), longestWait.Milliseconds())
	}
	release, err := s.wait(r.who)
	if err != nil {
		return reply{}, err
	}
	defer release()
	over := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer over.Stop()
	for {
		news := s.core.Runs.News()
		if run, err = s.core.Runs.Find(id); err != nil || run.End != nil {
			return answered(run, err)
		}
		select {
		case <-news:
		case <-over.C:
			return answered(run, err)
		case <-r.Context().Done():
			return reply{}, ended(r.Context())
		}
	}
}

func answered(run client.Run, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	return later(http.StatusOK, run)
}

func postRunStop(s *Server, r *request) (reply, error) {
	if err := bare(r); err != nil {
		return reply{}, err
	}
	return answered(s.core.Runs.Stop(r.Context(), r.PathValue("id")))
}

// maxSaid limits the text of a service.
const maxSaid = 200

// postSay shows a text beside the service whose main process asks, until that process ends.
func postSay(s *Server, r *request) (reply, error) {
	var c client.Said
	if err := decode(r.body, &c); err != nil {
		return reply{}, err
	}
	if len(c.Text) > maxSaid {
		return reply{}, refuse(client.KindBadRequest, "text has %d bytes; it has %d at most", len(c.Text), maxSaid)
	}
	v := s.core.Snapshot().Find(r.PathValue("name"))
	if v == nil || v.PID == 0 || v.PID != int(r.who.pid) {
		return reply{}, refuse(client.KindNotAllowed, "process %d is not the main process of %q", r.who.pid, r.PathValue("name"))
	}
	return reply{status: http.StatusNoContent}, s.core.Do(r.Context(), supervisor.Ready{Name: v.Name, Run: v.Run, Ready: v.Ready, Said: c.Text})
}
