package control

import (
	"context"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/pause"
	"hinit/supervisor"
)

// Runs gives access to one-shot runs: commands that hinit runs for a client. The server treats the errors of Runs like the errors
// of [Backend].
type Runs interface {
	Stop(ctx context.Context, id string) (client.Run, error)
	Find(id string) (client.Run, error)
	// Since returns the runs that began or ended after a cursor, and the next cursor. A client starts with cursor 0.
	Since(cursor uint64) ([]client.Run, uint64)
	News() <-chan struct{}
}

func postRun(s *Server, r *request, ask client.RunRequest) (reply, error) {
	if err := checkRun(ask); err != nil {
		return reply{}, err
	}
	run, err := s.core.StartRun(r.Context(), ask, r.who.uid == 0, s.serviceOf(r.who))
	return answerLater(http.StatusOK, run, err)
}

// checkRun returns an error for an invalid request to start a run.
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

// getRuns lists the runs. With follow=1 it streams them, one JSON object per line, and continues with each run that begins or
// ends.
func getRuns(s *Server, r *request) (reply, error) {
	follow, err := r.follow()
	if err != nil {
		return reply{}, err
	}
	if !follow {
		return s.inTurn(r, func() (reply, error) {
			runs, _ := s.core.Runs.Since(0)
			return answer(client.RunsReply{Runs: nonNil(runs)})
		})
	}
	return s.stream(r, true, func(out *lines) {
		cursor := uint64(0)
		out.feed(r.Context(), true, s.core.Runs.News, func() (more bool) {
			runs, next := s.core.Runs.Since(cursor)
			runs, more = firstBatch(runs)
			for _, run := range runs {
				out.write(run)
				cursor = run.Seq
			}
			if !more {
				cursor = next
			}
			return more
		})
	})
}

// getRun returns one run. With the parameter wait_ms it first waits for the end of the run, at most for that time.
func getRun(s *Server, r *request) (reply, error) {
	id, wait := r.PathValue("id"), r.query.Get("wait_ms")
	run, err := s.core.Runs.Find(id)
	if err != nil || run.End != nil || wait == "" {
		return answerLater(http.StatusOK, run, err)
	}
	ms, bad := strconv.ParseInt(wait, 10, 64)
	if bad != nil || ms < 0 || ms > longestWait.Milliseconds() {
		return reply{}, refuse(client.KindBadRequest, "wait_ms is %q; it goes from 0 to %d", wait, longestWait.Milliseconds())
	}
	release, err := s.wait(r.who)
	if err != nil {
		return reply{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(ms)*time.Millisecond)
	defer cancel()
	for {
		news := s.core.Runs.News()
		if run, err = s.core.Runs.Find(id); err != nil || run.End != nil || ctx.Err() != nil {
			break
		}
		pause.Until(ctx, news)
	}
	if err == nil && run.End == nil && r.Context().Err() != nil {
		return reply{}, context.Cause(r.Context())
	}
	return answerLater(http.StatusOK, run, err)
}

func postRunStop(s *Server, r *request, _ struct{}) (reply, error) {
	run, err := s.core.Runs.Stop(r.Context(), r.PathValue("id"))
	return answerLater(http.StatusOK, run, err)
}

// maxSaid is the maximum length of a text that a service reports about itself, in bytes.
const maxSaid = 200

// postSay sets the text that the status shows next to a service until the service's process ends. The client must be the main
// process of the service.
func postSay(s *Server, r *request, c client.StatusTextRequest) (reply, error) {
	if len(c.Text) > maxSaid {
		return reply{}, refuse(client.KindBadRequest, "text has %d bytes; it has %d at most", len(c.Text), maxSaid)
	}
	v := s.core.Snapshot().Find(r.PathValue("name"))
	if v == nil || v.PID == 0 || v.PID != int(r.who.pid) {
		return reply{}, refuse(client.KindNotAllowed, "process %d is not the main process of %q", r.who.pid, r.PathValue("name"))
	}
	return reply{status: http.StatusNoContent}, s.core.Do(r.Context(), supervisor.Ready{Name: v.Name, Run: v.Run, Ready: v.Ready, Text: c.Text})
}
