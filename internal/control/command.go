package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/supervisor"
)

// verbEffect is the effect of a verb of the API, such as "start", on a service.
type verbEffect struct {
	participle  string
	want        supervisor.Want
	needsNewRun bool // only a run that begins after the command counts
	// timeout is how long a client waits for the effect by default. Verbs that stop a service have a longer timeout, because a
	// service that ignores SIGTERM needs 30 seconds to stop.
	timeout time.Duration
}

var verbEffects = map[client.Verb]verbEffect{
	client.VerbStart:   {"started", supervisor.WantUp, false, 30 * time.Second},
	client.VerbStop:    {"stopped", supervisor.WantDown, false, 40 * time.Second},
	client.VerbRestart: {"restarted", supervisor.WantUp, true, 40 * time.Second},
}

const maxWait = time.Hour

// commandHandler returns the handler of a verb. The handler gives the order and waits for its effect, except for clients that
// don't want to wait. If once is set, the handler starts a task and waits for the end of the run, also of a run in progress.
func commandHandler(verb client.Verb, once bool) func(s *Server, r *request) (reply, error) {
	usual, words := verbEffects[verb].timeout, show.CommandResultText
	if once {
		usual, words = taskWaitTimeout, show.TaskResultText
	}
	return withBody(func(s *Server, r *request, ask client.CommandRequest) (reply, error) {
		if ask.TimeoutMS < 0 || ask.TimeoutMS > maxWait.Milliseconds() {
			return reply{}, newError(client.KindBadRequest, "timeout_ms is %d; it goes from 0 to %d", ask.TimeoutMS, maxWait.Milliseconds())
		}
		timeout, wait := cmp.Or(time.Duration(ask.TimeoutMS)*time.Millisecond, usual), ask.Wait == nil || *ask.Wait
		begin := time.Now()
		limit := timeout
		if !wait {
			limit = min(timeout, commandTimeout)
		}
		ctx, cancel := context.WithTimeoutCause(r.Context(), limit, timeLimitError(limit))
		defer cancel()
		before, err := s.findOrAwaitService(ctx, r, limit)
		switch {
		case err != nil:
			return reply{}, err
		case once && !before.Task:
			return reply{}, newError(client.KindBadRequest, "%s is no task, so it has no end; set services.%s.once in hinit.yaml, or type: hinit start %s", before.Name, before.Name, before.Name)
		case ask.Force && !once && verb != client.VerbStop:
			s.backend.SetOwnGatewayAllowed(before.Name)
		}
		if err := s.backend.Command(ctx, verb, before.Name); err != nil {
			return reply{}, s.addState(ctx, before.Name, err)
		}
		after := s.latestState(before)
		if !wait {
			return s.commandReply(r, http.StatusAccepted, after, show.NoWaitText)
		}
		if after, err = s.awaitGoal(r.Context(), s.goalOf(verb, once, before, after), timeout-time.Since(begin)); err != nil {
			return reply{}, err
		}
		return s.commandReply(r, http.StatusOK, after, words)
	})
}

// addState adds the present state of the service to a timeout error. It returns any other error unchanged.
func (s *Server) addState(ctx context.Context, name string, err error) error {
	out := clientError(ctx, err)
	v := s.backend.Snapshot().Find(name)
	if out.Kind != client.KindTimeout || v == nil {
		return err
	}
	return newError(client.KindTimeout, "%s; %s is %s", out.Message, name, stateText(v))
}

// commandReply answers a command with the service as JSON. For a client that asks for text, the answer is the line from words.
func (s *Server) commandReply(r *request, status int, v *supervisor.Service, words func(client.Service) string) (reply, error) {
	view := s.serviceStatus(r.Context(), v, r.client, nil)
	if wantsText(r.Request) {
		return textReply(status, http.Header{}, []byte(words(view)+"\n")), nil
	}
	return deferredReply(status, view, nil)
}

// commandTimeout is the time limit of a command that doesn't wait for its effect. Even such a command waits for the boot, and
// until the order is stored.
const commandTimeout = 5 * time.Second

// findOrAwaitService finds the service that a request names. For an unknown name, it waits for the end of the boot, and then
// looks on the disk for a new profile. patience limits the time of the call; ctx must end at the same time.
func (s *Server) findOrAwaitService(ctx context.Context, r *request, patience time.Duration) (*supervisor.Service, error) {
	name := r.PathValue("name")
	v, unknown := findService(s.backend.Snapshot(), name)
	if unknown == nil || r.route.waitMode != waitsForNames {
		return v, unknown
	}
	switch over, err := s.awaitBoot(r, patience); {
	case err != nil:
		return nil, err
	case !over:
		return nil, unknown // the client itself is part of the boot, so the boot can't end before the answer
	}
	if v, unknown = findService(s.backend.Snapshot(), name); unknown == nil {
		return v, nil
	}
	err := s.backend.FindProfile(ctx, name)
	e, is := errors.AsType[*client.Error](err)
	switch {
	case err == nil:
	case is && e.Kind == client.KindFailed:
		return nil, err // another hinit supervises the profiles
	case ctx.Err() != nil && r.Context().Err() == nil:
		return nil, newError(client.KindTimeout, "hinit knows no profile or service %q, and the data volume has not answered within %s whether there is one now", name, patience)
	default:
		return nil, unknown // the profile may exist, but the disk doesn't answer
	}
	return findService(s.backend.Snapshot(), name)
}

// awaitBoot waits for the end of the boot, at most for the time patience. If the client itself is part of the boot, over is
// false.
func (s *Server) awaitBoot(r *request, patience time.Duration) (over bool, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	switch err := s.backend.AwaitBoot(ctx, int(r.client.pid)); {
	case err == nil:
		return true, nil
	case r.Context().Err() != nil:
		return false, context.Cause(r.Context())
	case ctx.Err() != nil:
		return false, newError(client.KindTimeout, "hinit is still booting after %s, and does not know all services yet; `hinit status` shows what it is at", patience)
	}
	return false, nil
}

// withBody makes a handler from a handler with a decoded JSON body. If T is struct{}, the body must be empty or {}.
func withBody[T any](handle func(s *Server, r *request, ask T) (reply, error)) func(s *Server, r *request) (reply, error) {
	return func(s *Server, r *request) (reply, error) {
		var ask T
		if err := decodeBody(r.body, &ask); err != nil {
			return reply{}, err
		}
		return handle(s, r, ask)
	}
}

// decodeBody decodes a JSON body. An empty body counts as {}.
func decodeBody(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return newError(client.KindBadRequest, "the body cannot be understood: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return newError(client.KindBadRequest, "the body continues after its JSON object")
	}
	return nil
}

// postSignal sends a signal to the main process of a service.
func postSignal(s *Server, r *request, ask client.SignalRequest) (reply, error) {
	if ask.Signal < 1 || ask.Signal > maxSignal {
		return reply{}, newError(client.KindBadRequest, "signal is %d; it goes from 1 to %d", ask.Signal, maxSignal)
	}
	v, err := s.findOrAwaitService(r.Context(), r, readTimeLimit)
	switch {
	case err != nil:
		return reply{}, err
	case v.PID == 0:
		return reply{}, newError(client.KindFailed, "%s has no process: it is %s", v.Name, stateText(v))
	}
	err = s.backend.Do(r.Context(), supervisor.SignalMain{Name: v.Name, Signal: ask.Signal})
	if err == nil {
		err = s.backend.Do(r.Context(), supervisor.Remark{Service: v.Name, Text: "was sent " + show.SignalName(ask.Signal)})
	}
	if err != nil {
		return reply{}, err
	}
	return s.commandReply(r, http.StatusOK, s.latestState(v), show.CommandResultText)
}

const maxSignal = 64

// Runs are the one-shot runs: commands that hinit runs for clients. The server treats an error of Runs like an error of [Backend].
type Runs interface {
	Stop(ctx context.Context, id string) (client.Run, error)
	Find(id string) (client.Run, error)
	// RunsSince returns the runs that have begun or ended after a cursor, and the next cursor. The first cursor is 0.
	RunsSince(cursor uint64) ([]client.Run, uint64)
	Changed() <-chan struct{}
}

func postRun(s *Server, r *request, ask client.RunRequest) (reply, error) {
	if err := checkRun(ask); err != nil {
		return reply{}, err
	}
	run, err := s.backend.StartRun(r.Context(), ask, r.client.uid == 0, s.serviceOf(r.client))
	return deferredReply(http.StatusOK, run, err)
}

// checkRun returns an error if a request for a run is invalid.
func checkRun(ask client.RunRequest) error {
	for name, value := range ask.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(value, 0) >= 0 {
			return newError(client.KindBadRequest, "env has %q, which cannot be a variable", name)
		}
	}
	for _, word := range append([]string{ask.Profile, ask.Task}, ask.Options...) {
		if strings.IndexByte(word, 0) >= 0 {
			return newError(client.KindBadRequest, "%q has a NUL byte", word)
		}
	}
	for name, path := range map[string]string{"dir": ask.Dir, "log": ask.Log} {
		if path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path || strings.IndexByte(path, 0) >= 0) {
			return newError(client.KindBadRequest, "%s is %q; it has to be an absolute path without detours", name, path)
		}
	}
	const limit = int64(366 * 24 * time.Hour / time.Millisecond)
	for name, ms := range map[string]int64{"limit_ms": ask.LimitMS, "grace_ms": ask.GraceMS} {
		if ms < 0 || ms > limit {
			return newError(client.KindBadRequest, "%s is %d; it goes from 0 to %d", name, ms, limit)
		}
	}
	return nil
}

// getRuns lists the runs. With follow=1 it streams them as JSON lines, and continues with each run that begins or ends.
func getRuns(s *Server, r *request) (reply, error) {
	follow, err := r.follow()
	if err != nil {
		return reply{}, err
	}
	if !follow {
		return s.makeAnswerLimited(r, func() (reply, error) {
			runs, _ := s.backend.Runs.RunsSince(0)
			return okReply(client.RunsReply{Runs: nonNil(runs)})
		})
	}
	return s.stream(r, true, func(out *jsonLineWriter) {
		cursor := uint64(0)
		out.writeUpdates(r.Context(), true, s.backend.Runs.Changed, func() (more bool) {
			runs, next := s.backend.Runs.RunsSince(cursor)
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

// getRun returns one run. With wait_ms it first waits until the run ends, but at most that many milliseconds.
func getRun(s *Server, r *request) (reply, error) {
	id, wait := r.PathValue("id"), r.query.Get("wait_ms")
	run, err := s.backend.Runs.Find(id)
	if err != nil || run.End != nil || wait == "" {
		return deferredReply(http.StatusOK, run, err)
	}
	ms, bad := strconv.ParseInt(wait, 10, 64)
	if bad != nil || ms < 0 || ms > maxWait.Milliseconds() {
		return reply{}, newError(client.KindBadRequest, "wait_ms is %q; it goes from 0 to %d", wait, maxWait.Milliseconds())
	}
	if err := s.countWaiting(r); err != nil {
		return reply{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(ms)*time.Millisecond)
	defer cancel()
	for {
		changed := s.backend.Runs.Changed()
		if run, err = s.backend.Runs.Find(id); err != nil || run.End != nil || ctx.Err() != nil {
			break
		}
		pause.Until(ctx, changed)
	}
	if err == nil && run.End == nil && r.Context().Err() != nil {
		return reply{}, context.Cause(r.Context())
	}
	return deferredReply(http.StatusOK, run, err)
}

func postRunStop(s *Server, r *request, _ struct{}) (reply, error) {
	run, err := s.backend.Runs.Stop(r.Context(), r.PathValue("id"))
	return deferredReply(http.StatusOK, run, err)
}

// maxStatusText is the maximum length in bytes of the text that a service reports about itself.
const maxStatusText = 200

// postStatusText sets the status text of a service until its process ends. Only the main process of the service may set it.
func postStatusText(s *Server, r *request, c client.StatusTextRequest) (reply, error) {
	if len(c.Text) > maxStatusText {
		return reply{}, newError(client.KindBadRequest, "text has %d bytes; it has %d at most", len(c.Text), maxStatusText)
	}
	v := s.backend.Snapshot().Find(r.PathValue("name"))
	if v == nil || v.PID == 0 || v.PID != int(r.client.pid) || r.client.isGone() {
		return reply{}, newError(client.KindNotAllowed, "process %d is not the main process of %q", r.client.pid, r.PathValue("name"))
	}
	return reply{status: http.StatusNoContent}, s.backend.Do(r.Context(), supervisor.StatusText{Name: v.Name, Run: v.Run, Text: c.Text})
}
