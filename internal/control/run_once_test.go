package control

import (
	"errors"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

func newServiceState(state supervisor.State, run uint64, exit *supervisor.Exit) *supervisor.Service {
	return &supervisor.Service{
		Name: "report", Kind: supervisor.KindService, Task: true, State: state, Run: run, LastExit: exit,
		Done: exit != nil && exit.Code == 0 && state == supervisor.Down,
	}
}

func TestRunOnceWaitsForTheEndOfItsRun(t *testing.T) {
	exit := func(run uint64, code int) *supervisor.Exit {
		return &supervisor.Exit{Run: run, PID: 9, Code: code, Cause: supervisor.CauseClean, Tail: []string{"last line"}}
	}
	for _, tt := range []struct {
		name   string
		before *supervisor.Service
		then   []*supervisor.Service
		done   bool
		fails  string
	}{
		{"done", newServiceState(supervisor.Down, 3, exit(3, 0)), []*supervisor.Service{newServiceState(supervisor.Up, 4, exit(3, 0)), newServiceState(supervisor.Down, 4, exit(4, 0))}, true, ""},
		{"failed", newServiceState(supervisor.Down, 3, exit(3, 0)), []*supervisor.Service{newServiceState(supervisor.Failed, 4, exit(4, 1))}, false, ""},
		{"tried again", newServiceState(supervisor.Failed, 3, exit(3, 1)), []*supervisor.Service{
			newServiceState(supervisor.Backoff, 4, exit(4, 1)), newServiceState(supervisor.Up, 5, exit(4, 1)), newServiceState(supervisor.Down, 5, exit(5, 0)),
		}, true, ""},
		{"the run there is", newServiceState(supervisor.Up, 4, exit(3, 1)), []*supervisor.Service{newServiceState(supervisor.Down, 4, exit(4, 0))}, true, ""},
		{"stopped before it ran", newServiceState(supervisor.Down, 3, exit(3, 0)), []*supervisor.Service{newServiceState(supervisor.Waiting, 3, exit(3, 0)), newServiceState(supervisor.Down, 3, exit(3, 0))}, false, "report was asked to stop meanwhile"},
		{"removed", newServiceState(supervisor.Down, 0, nil), []*supervisor.Service{newServiceState(supervisor.Up, 1, nil), nil}, false, "report was removed meanwhile"},
		{"waits", newServiceState(supervisor.Down, 0, nil), []*supervisor.Service{newServiceState(supervisor.Waiting, 0, nil)}, false, "report has not ended after"},
		{"no task", &supervisor.Service{Name: "report", Kind: supervisor.KindService}, nil, false, "report is no task, so it has no end; set services.report.once in hinit.yaml, or type: hinit start report"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			core := newFakeBackend(tt.before)
			core.afterCommand = func(verb, _ string) error {
				if verb != string(client.VerbStart) {
					t.Errorf("asked to %s", verb)
				}
				core.setServices(tt.then[0])
				go func() {
					for _, next := range tt.then[1:] {
						if next == nil {
							core.setServices()
							continue
						}
						core.setServices(next)
					}
				}()
				return nil
			}
			timeout := 10 * time.Second
			if tt.name == "waits" {
				timeout = 50 * time.Millisecond
			}
			v, err := serve(t, core, readableByAll).client().Order(t.Context(), client.VerbRunOnce, "report", client.WaitOptions{Wait: true, Timeout: timeout})
			switch clientErr := (*client.Error)(nil); {
			case tt.fails != "":
				if !errors.As(err, &clientErr) || !strings.Contains(clientErr.Message, tt.fails) {
					t.Errorf("got %v, want %q", err, tt.fails)
				}
			case err != nil || v.Done != tt.done || !v.Task || v.LastExit == nil || v.LastExit.Tail[0] != "last line":
				t.Errorf("got %+v, %v", v, err)
			}
		})
	}
}

func TestRunOnceNeedNotWait(t *testing.T) {
	core := newFakeBackend(newServiceState(supervisor.Down, 0, nil))
	core.afterCommand = func(string, string) error {
		core.setServices(newServiceState(supervisor.Up, 1, nil))
		return nil
	}
	v, err := serve(t, core, readableByAll).client().Order(t.Context(), client.VerbRunOnce, "report", client.WaitOptions{})
	if err != nil || v.State != client.StateUp || v.RunNumber != 1 {
		t.Errorf("got %+v, %v", v, err)
	}
}
