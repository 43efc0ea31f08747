package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// verb is what can be asked of a service.
type verb struct {
	name  string // as [Core.Command] takes it
	past  string
	want  supervisor.Want
	fresh bool // only a new run will do
	// timeout is how long it is waited for by default. An obstinate service is killed 30 seconds after it was asked to end
	// unless configured otherwise, so whoever waits for that has to wait longer.
	timeout time.Duration
}

// The verbs.
func start() verb   { return verb{"start", "started", supervisor.WantUp, false, 30 * time.Second} }
func stop() verb    { return verb{"stop", "stopped", supervisor.WantDown, false, 40 * time.Second} }
func restart() verb { return verb{"restart", "restarted", supervisor.WantUp, true, 40 * time.Second} }

// longestWait bounds the timeout a client may ask for.
const longestWait = time.Hour

// command carries out a verb and, unless told otherwise, waits for its effect.
func command(do verb) func(s *Server, r *request) (reply, error) {
	return func(s *Server, r *request) (reply, error) {
		if _, err := queryOf(r); err != nil {
			return reply{}, err
		}
		wait, timeout, err := parseWait(r.body, do.timeout)
		if err != nil {
			return reply{}, err
		}
		before, err := s.lookup(r.Context(), r.PathValue("name"))
		if err != nil {
			return reply{}, err
		}
		if err := s.core.Command(r.Context(), do.name, before.Name); err != nil {
			return reply{}, err
		}
		after := s.core.Snapshot().Find(before.Name)
		if wait {
			v, err := s.await(r.Context(), goalOf(do, before, after), timeout)
			if err != nil {
				return reply{}, err
			}
			return done(s.view(v, r.who))
		}
		if after == nil {
			after = removed(before)
		}
		return withStatus(http.StatusAccepted, s.view(after, r.who))
	}
}

// lookup resolves a name. One that is not known may be a profile that was made a moment ago, so the disk is asked before
// the answer is no.
func (s *Server) lookup(ctx context.Context, name string) (*supervisor.Service, error) {
	v, unknown := resolve(s.core.Snapshot(), name)
	if unknown == nil {
		return v, nil
	}
	if err := s.core.Rescan(ctx); err != nil {
		return nil, unknown // what the disk would have said cannot be known; the name is unknown all the same
	}
	return resolve(s.core.Snapshot(), name)
}

func parseWait(body []byte, timeout time.Duration) (bool, time.Duration, error) {
	var c client.Command
	if err := decode(body, &c); err != nil {
		return false, 0, err
	}
	if c.TimeoutMS < 0 || c.TimeoutMS > longestWait.Milliseconds() {
		return false, 0, refuse(client.KindBadRequest, "timeout_ms is %d; it goes from 0 to %d", c.TimeoutMS, longestWait.Milliseconds())
	}
	if c.TimeoutMS > 0 {
		timeout = time.Duration(c.TimeoutMS) * time.Millisecond
	}
	return c.Wait == nil || *c.Wait, timeout, nil
}

// decode reads a JSON body; none at all is as good as {}.
func decode(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return refuse(client.KindBadRequest, "the body cannot be understood: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refuse(client.KindBadRequest, "the body goes on after its JSON object")
	}
	return nil
}
