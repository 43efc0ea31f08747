package control

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/supervisor"
)

// fakeRuns implements Runs with runs that live until they are stopped.
type fakeRuns struct {
	runsMu     sync.Mutex
	runs       []client.Run
	changed    chan struct{}
	statusText string
}

func (c *fakeRuns) StartRun(_ context.Context, r client.RunRequest, _ bool, _ string) (client.Run, error) {
	c.runsMu.Lock()
	defer c.runsMu.Unlock()
	run := client.Run{ID: "x-1", Tag: r.Tag, Template: r.Template, PID: 42, Seq: uint64(len(c.runs) + 1), StartedAt: time.Now().UTC()}
	c.runs = append(c.runs, run)
	close(c.changed)
	c.changed = make(chan struct{})
	return run, nil
}

func (c *fakeRuns) StopRun(_ context.Context, id string) (client.Run, error) {
	c.runsMu.Lock()
	defer c.runsMu.Unlock()
	for i := range c.runs {
		if c.runs[i].ID == id {
			c.runs[i].StopReason, c.runs[i].End, c.runs[i].Seq = client.RunStopped, &client.RunEnd{CPUSeconds: 1}, 9
			close(c.changed)
			c.changed = make(chan struct{})
			return c.runs[i], nil
		}
	}
	return client.Run{}, newError(client.KindUnknown, "no such run")
}

func (c *fakeRuns) FindRun(id string) (client.Run, error) {
	c.runsMu.Lock()
	defer c.runsMu.Unlock()
	for _, r := range c.runs {
		if r.ID == id {
			return r, nil
		}
	}
	return client.Run{}, newError(client.KindUnknown, "no such run")
}

func (c *fakeRuns) RunsSince(cursor uint64) (out []client.Run, next uint64) {
	c.runsMu.Lock()
	defer c.runsMu.Unlock()
	next = cursor
	for _, r := range c.runs {
		if r.Seq > cursor {
			out, next = append(out, r), max(next, r.Seq)
		}
	}
	return out, next
}

func (c *fakeRuns) RunChanged() <-chan struct{} {
	c.runsMu.Lock()
	defer c.runsMu.Unlock()
	return c.changed
}

func (c *fakeRuns) setStatusText(_ context.Context, e supervisor.StatusText) error {
	c.runsMu.Lock()
	defer c.runsMu.Unlock()
	c.statusText = e.Name + ": " + e.Text
	return nil
}

func (c *fakeRuns) lastStatusText() string {
	c.runsMu.Lock()
	defer c.runsMu.Unlock()
	return c.statusText
}

func TestRunFromItsStartToItsEnd(t *testing.T) {
	core := newFakeBackend(&supervisor.Service{Name: "kanban", State: supervisor.Up, PID: os.Getpid()}, &supervisor.Service{Name: "other", State: supervisor.Up, PID: 1})
	cl := serve(t, core, Options{}).client()
	run, err := cl.StartRun(t.Context(), client.RunRequest{Template: "kanban-worker", Tag: "b/t_1/1", Env: map[string]string{"A": "b"}})
	if err != nil || run.PID != 42 {
		t.Fatalf("%+v, %v", run, err)
	}
	if again, err := cl.Run(t.Context(), run.ID, 10*time.Millisecond); err != nil || again.End != nil {
		t.Fatalf("while it is alive: %+v, %v", again, err)
	}
	type answer struct {
		run client.Run
		err error
	}
	waited := make(chan answer, 1)
	go func() {
		r, err := cl.Run(context.Background(), run.ID, time.Minute)
		waited <- answer{r, err}
	}()
	followed := make(chan client.Run, 2)
	go func() {
		_ = cl.FollowRuns(t.Context(), func(r client.Run) error { followed <- r; return nil })
	}()
	if r := <-followed; r.ID != run.ID || r.End != nil {
		t.Errorf("the stream begins with %+v", r)
	}
	if _, err := cl.StopRun(t.Context(), run.ID); err != nil {
		t.Fatal(err)
	}
	if r := <-followed; r.End == nil || r.StopReason != client.RunStopped {
		t.Errorf("the stream continues with %+v", r)
	}
	if a := <-waited; a.err != nil || a.run.End == nil || a.run.End.CPUSeconds != 1 {
		t.Errorf("who waited got %+v, %v", a.run, a.err)
	}
	if list, err := cl.Runs(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	if _, err := cl.Run(t.Context(), "nosuch", 0); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("a run that is not there: %v", err)
	}
	if err := cl.SetStatusText(t.Context(), "kanban", "3 ready"); err != nil || core.lastStatusText() != "kanban: 3 ready" {
		t.Errorf("said %q, %v", core.lastStatusText(), err)
	}
	if err := cl.SetStatusText(t.Context(), "other", "3 ready"); !errors.Is(err, client.ErrNotAllowed) {
		t.Errorf("one process says something for another: %v", err)
	}
	if err := cl.SetStatusText(t.Context(), "kanban", strings.Repeat("x", maxStatusText+1)); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("a long text: %v", err)
	}
}

func TestBadRunsAreRefused(t *testing.T) {
	cl := serve(t, newFakeBackend(), Options{}).client()
	for name, r := range map[string]client.RunRequest{
		"relative directory": {Dir: "tmp"}, "a detour": {Log: "/a/../b"}, "a variable": {Env: map[string]string{"A=B": ""}},
		"NUL": {Profile: "a\x00b"}, "a limit": {LimitMS: -1},
	} {
		if _, err := cl.StartRun(t.Context(), r); !errors.Is(err, client.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Only users who may control hinit may see runs, because the tag of a run reveals somebody's work.
func TestRunsAreForThoseWhoControl(t *testing.T) {
	for _, rt := range routes() {
		if strings.Contains(rt.pattern, "/v1/runs") && rt.access != mayControl {
			t.Errorf("%s may be asked by those who may only look", rt.pattern)
		}
	}
	p := newPolicy(Options{AgentUID: 10000, OtherUsers: config.OthersMayReadStatus})
	if p.check(peer{uid: 4242}, mayControl) == nil {
		t.Error("a stranger may start runs")
	}
	if p.check(peer{uid: 10000}, mayControl) != nil {
		t.Error("the agent's user may not start runs")
	}
}
