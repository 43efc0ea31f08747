package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/client"
	"hinit/internal/proc"
	"hinit/supervisor"
)

func setReady(ready bool) func(*supervisor.Service) {
	return func(s *supervisor.Service) { s.ReportsReadiness, s.Ready = true, ready }
}

// setCrashed gives a service a first run that has ended with cause.
func setCrashed(cause supervisor.Cause) func(*supervisor.Service) {
	return func(s *supervisor.Service) { s.LastExit = &supervisor.Exit{Run: 1, PID: 7, Code: 1, Cause: cause} }
}

func TestJudge(t *testing.T) {
	now := time.Now()
	v := func(state supervisor.State, change ...func(*supervisor.Service)) *supervisor.Service {
		s := newGateway("x", state, change...)
		if len(change) == 0 {
			s.Since = now.Add(-testSettleTime)
		}
		return s
	}
	since := func(d time.Duration) func(*supervisor.Service) {
		return func(s *supervisor.Service) { s.Since = now.Add(-d) }
	}
	run := func(n uint64) func(*supervisor.Service) { return func(s *supervisor.Service) { s.Run = n } }
	for _, tt := range []struct {
		name string
		do   client.Verb
		run  uint64
		v    *supervisor.Service
		stop bool
		want string
	}{
		{"up long enough", client.VerbStart, 0, v(supervisor.Up), false, "reached"},
		{"not up long enough", client.VerbStart, 0, v(supervisor.Up, since(testSettleTime-1)), false, "again"},
		{"up for ever and not ready", client.VerbStart, 0, v(supervisor.Up, since(time.Hour), setReady(false)), false, "wait"},
		{"ready at once", client.VerbStart, 0, v(supervisor.Up, since(0), setReady(true)), false, "reached"},
		{"the old run was ready", client.VerbRestart, 1, v(supervisor.Up, setReady(true)), false, "wait"},
		{"up again after a crash", client.VerbStart, 0, v(supervisor.Up, since(time.Hour), setCrashed(supervisor.CauseCrash)), false, "died"},
		{"up again as it asked", client.VerbStart, 0, v(supervisor.Up, since(time.Hour), setCrashed(supervisor.CauseClean)), false, "reached"},
		{"the old run, before", client.VerbRestart, 2, v(supervisor.Up, since(time.Hour), run(3), setCrashed(supervisor.CauseCrash)), false, "reached"},
		{"the old run", client.VerbRestart, 1, v(supervisor.Up), false, "wait"},
		{"the new run", client.VerbRestart, 1, v(supervisor.Up, run(2)), false, "reached"},
		{"new run, not long enough", client.VerbRestart, 1, v(supervisor.Up, run(2), since(0)), false, "again"},
		{"starting", client.VerbStart, 0, v(supervisor.Starting), false, "wait"},
		{"waiting", client.VerbStart, 0, v(supervisor.Waiting), false, "wait"},
		{"an old run ends", client.VerbStart, 0, v(supervisor.Stopping), false, "wait"},
		{"an old run is killed", client.VerbRestart, 1, v(supervisor.Killing), false, "wait"},
		{"backoff", client.VerbStart, 0, v(supervisor.Backoff), false, "died"},
		{"parked", client.VerbRestart, 1, v(supervisor.Parked), false, "died"},
		{"failed", client.VerbStart, 0, v(supervisor.Failed), false, "died"},
		{"somebody wants it down", client.VerbStart, 0, v(supervisor.Up, setUnwanted), false, "failed: superseded: gateway-x was asked to stop meanwhile"},
		{"it was removed", client.VerbStart, 0, nil, false, "failed: superseded: gateway-x was removed meanwhile"},
		{"the container stops", client.VerbStart, 0, v(supervisor.Up), true, "stopping: the container is stopping"},
		{"down", client.VerbStop, 0, v(supervisor.Down, setUnwanted), false, "reached"},
		{"down while the container stops", client.VerbStop, 0, v(supervisor.Down, setUnwanted), true, "reached"},
		{"gone", client.VerbStop, 0, nil, false, "reached"},
		{"stopping", client.VerbStop, 0, v(supervisor.Stopping, setUnwanted), false, "wait"},
		{"killing", client.VerbStop, 0, v(supervisor.Killing, setUnwanted), false, "wait"},
		{"somebody wants it up", client.VerbStop, 0, v(supervisor.Stopping), false, "failed: superseded: gateway-x was asked to start meanwhile"},
	} {
		g := commandGoal{verbEffect: verbEffects[tt.do], service: newGateway("x", supervisor.Down), afterRun: tt.run, settleTime: testSettleTime}
		is := g.check(now, &supervisor.Snapshot{Stopping: tt.stop}, tt.v)
		got := "wait"
		switch {
		case is.reached:
			got = "reached"
		case is.failedByExit:
			got = "died"
		case is.failed != nil:
			got = string(is.failed.Kind) + ": " + is.failed.Message
		case !is.recheckAt.IsZero():
			got = "again"
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// commandClient sends commands to a real supervisor in virtual time, and waits for the results.
type commandClient struct {
	*loopBackend
	server *Server
}

func newCommandClient(t *testing.T) *commandClient {
	core := newLoopBackend(t)
	return &commandClient{core, newServer(core, Options{})}
}

func (w *commandClient) sendCommand(ctx context.Context, do client.Verb, timeout time.Duration) (*supervisor.Service, error) {
	before := w.Snapshot().Find("gateway-x")
	if err := w.Command(ctx, do, before.Name); err != nil {
		return nil, err
	}
	return w.server.awaitGoal(ctx, w.server.goalOf(do, false, before, w.server.latestState(before)), timeout)
}

func callAfter(d time.Duration, f func()) { time.AfterFunc(d, f) }

// The error about a crash must describe the ended run, not the state of the next run. The error about a restarted gateway must
// not be "cannot start: gateway-x is up: started (crash)".
func TestTheAccountOfACrashIsOfTheRunThatEnded(t *testing.T) {
	for _, tt := range []struct {
		state supervisor.State
		exit  supervisor.Exit
		want  string
	}{
		{supervisor.Up, supervisor.Exit{Run: 1, PID: 7, Code: 4, Cause: supervisor.CauseCrash, Tail: []string{"no token"}}, `gateway-x exited with code 4 (crash) and is up again; last lines: "no token"`},
		{supervisor.Starting, supervisor.Exit{Run: 1, PID: 7, Code: -1, Signal: 11, Cause: supervisor.CauseSignal, Tail: []string{"x"}}, `gateway-x ended by signal 11 (signal) and is starting again; last lines: "x"`},
		{supervisor.Backoff, supervisor.Exit{Run: 1, PID: 7, Code: 4, Cause: supervisor.CauseCrash, Tail: []string{"x"}}, `gateway-x is in backoff: exited with code 4 (crash); last lines: "x"`},
		{supervisor.Starting, supervisor.Exit{Run: 1, Error: "no such file", Cause: supervisor.CauseSpawn}, `gateway-x is starting: no such file (spawn)`},
	} {
		v := newGateway("x", tt.state, func(s *supervisor.Service) { s.Run, s.LastExit, s.Reason = 2, &tt.exit, tt.exit.Error })
		if v.Reason == "" {
			v.Reason = "exited with code 4"
		}
		if got := newServer(newFakeBackend(v), Options{}).describeFailure(t.Context(), v); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.state, got, tt.want)
		}
	}
}

func TestAWaitReportsTheRealState(t *testing.T) {
	const timeout = 30 * time.Second
	for _, tt := range []struct {
		name string
		want supervisor.Want
		do   client.Verb
		prep func(t *testing.T, w *commandClient)
		took time.Duration
		err  string
		kind client.Kind
	}{
		{"a start holds for a second", supervisor.WantDown, client.VerbStart, nil, time.Second, "", ""},
		{"a start of what runs needs no waiting", supervisor.WantUp, client.VerbStart, setSettleTime(time.Minute), 0, "", ""},
		{"a start of what has just begun waits for the rest of the second", supervisor.WantUp, client.VerbStart, setSettleTime(300 * time.Millisecond), 700 * time.Millisecond, "", ""},
		{
			"a crash within the second", supervisor.WantDown, client.VerbStart, endRunAfter(900*time.Millisecond, 1, 0), 910 * time.Millisecond,
			`gateway-x is in backoff: exited with code 1 (crash), starts again in 1s; last lines: "two", "three", "f\x1bour"`, client.KindFailed,
		},
		{
			"a crash after the second is not ours to tell", supervisor.WantDown, client.VerbStart, endRunAfter(1100*time.Millisecond, 1, 0), time.Second, "", "",
		},
		{
			"a bad configuration", supervisor.WantDown, client.VerbStart, endRunAfter(100*time.Millisecond, 78, 0), 110 * time.Millisecond,
			`gateway-x is parked: exited with code 78 (config); last lines: "two", "three", "f\x1bour"`, client.KindFailed,
		},
		{
			"a signal", supervisor.WantDown, client.VerbStart, endRunAfter(time.Millisecond, -1, 11), 11 * time.Millisecond,
			`gateway-x is in backoff: ended by signal 11 (signal), starts again in 1s; last lines: "two", "three", "f\x1bour"`, client.KindFailed,
		},
		{
			"a crash without a word", supervisor.WantDown, client.VerbStart, withoutLogLines(endRunAfter(time.Millisecond, 1, 0)), 11 * time.Millisecond,
			`gateway-x is in backoff: exited with code 1 (crash), starts again in 1s`, client.KindFailed,
		},
		{"an exit that asks for a restart", supervisor.WantDown, client.VerbStart, endRunAfter(500*time.Millisecond, 75, 0), 1500 * time.Millisecond, "", ""},
		{
			"a command that is missing", supervisor.WantDown, client.VerbStart, failSpawn(&proc.SpawnError{Object: "hermes", Err: errors.New("no such file")}), 0,
			`gateway-x is in backoff: cannot start "hermes": no such file (spawn), starts again in 1s`, client.KindFailed,
		},
		{
			"a start out of backoff", supervisor.WantUp, client.VerbStart, func(t *testing.T, w *commandClient) {
				w.procs.end(w.Snapshot().Find("gateway-x").Run, 1, 0)
				setSettleTime(100*time.Millisecond)(t, w)
			}, time.Second, "", "",
		},
		{"a stop is done when nothing lives", supervisor.WantUp, client.VerbStop, nil, 0, "", ""},
		{"a stop of what is down", supervisor.WantDown, client.VerbStop, nil, 0, "", ""},
		{"a stop of the obstinate waits for the kill", supervisor.WantUp, client.VerbStop, ignoreStopSignals(29 * time.Second), 29 * time.Second, "", ""},
		{
			"a stop that takes too long", supervisor.WantUp, client.VerbStop, ignoreStopSignals(31 * time.Second), timeout,
			"gateway-x is not stopped after 30s: it is stopping: operator asked to stop", client.KindTimeout,
		},
		{
			"a stop that somebody else revokes", supervisor.WantUp, client.VerbStop, func(t *testing.T, w *commandClient) {
				ignoreStopSignals(time.Hour)(t, w)
				callAfter(time.Second, func() { _ = w.Command(context.Background(), "start", "gateway-x") })
			}, time.Second, "superseded: gateway-x was asked to start meanwhile", client.KindFailed,
		},
		{
			"a start that somebody else revokes", supervisor.WantDown, client.VerbStart, func(_ *testing.T, w *commandClient) {
				callAfter(time.Millisecond, func() { _ = w.Command(context.Background(), "stop", "gateway-x") })
			}, time.Millisecond, "superseded: gateway-x was asked to stop meanwhile", client.KindFailed,
		},
		{
			"a start of what is removed", supervisor.WantDown, client.VerbStart, func(_ *testing.T, w *commandClient) {
				callAfter(time.Millisecond, func() { _ = w.Do(context.Background(), supervisor.Remove{Name: "gateway-x"}) })
			}, time.Millisecond, "superseded: gateway-x was", client.KindFailed,
		},
		{
			"a start while the container stops", supervisor.WantDown, client.VerbStart, func(t *testing.T, w *commandClient) {
				ignoreStopSignals(2*time.Second)(t, w)
				callAfter(time.Millisecond, func() { w.Post(supervisor.Shutdown{}) })
			}, time.Millisecond, "the container is stopping", client.KindStopping,
		},
		{"a restart is a new run that holds", supervisor.WantUp, client.VerbRestart, setSettleTime(time.Minute), time.Second, "", ""},
		{"a restart of what is down", supervisor.WantDown, client.VerbRestart, nil, time.Second, "", ""},
		{"a restart waits for the old run", supervisor.WantUp, client.VerbRestart, ignoreStopSignals(20 * time.Second), 21 * time.Second, "", ""},
		{
			"a restart that crashes", supervisor.WantUp, client.VerbRestart, endRunAfter(100*time.Millisecond, 1, 0), 110 * time.Millisecond,
			"gateway-x is in backoff: exited with code 1 (crash)", client.KindFailed,
		},
		{"a task that does its work", supervisor.WantDown, client.VerbStart, makeTask(100*time.Millisecond, 0), 100 * time.Millisecond, "", ""},
		{"a task that works for long", supervisor.WantDown, client.VerbStart, makeTask(time.Minute, 0), time.Second, "", ""},
		{
			"a task that fails", supervisor.WantDown, client.VerbStart, makeTask(100*time.Millisecond, 3), 110 * time.Millisecond,
			`gateway-x is down: exited with code 3 (crash); last lines: "two", "three", "f\x1bour"`, client.KindFailed,
		},
		{
			"a task that cannot be started", supervisor.WantDown, client.VerbStart, func(t *testing.T, w *commandClient) {
				makeTask(0, 0)(t, w)
				failSpawn(errors.New("no such file"))(t, w)
			}, 0, "gateway-x is down: no such file (spawn)", client.KindFailed,
		},
		{"a start returns when it says that it is ready", supervisor.WantDown, client.VerbStart, reportReadyAfter(2*time.Second, true, ""), 2 * time.Second, "", ""},
		{"a start of what is ready needs no waiting", supervisor.WantUp, client.VerbStart, makeReady, 0, "", ""},
		{"a restart of what is ready waits for the new run", supervisor.WantUp, client.VerbRestart, reportReadyAfter(2*time.Second, true, ""), 2 * time.Second, "", ""},
		{
			"a late refusal", supervisor.WantDown, client.VerbStart, func(t *testing.T, w *commandClient) {
				reportReadyAfter(time.Hour, true, "")(t, w)
				endRunAfter(2400*time.Millisecond, 1, 0)(t, w)
			}, 2410 * time.Millisecond, `gateway-x is in backoff: exited with code 1 (crash), starts again in 1s; last lines: "two"`, client.KindFailed,
		},
		{
			"a gateway that never says so", supervisor.WantDown, client.VerbStart, reportReadyAfter(time.Second, false, "gateway_state.json says starting"), timeout,
			"gateway-x is up (pid 4194305) and has not said within 30s that it is ready: gateway_state.json says starting", client.KindTimeout,
		},
		{
			"a need that is never met", supervisor.WantDown, client.VerbStart, func(t *testing.T, w *commandClient) {
				if err := w.Do(t.Context(), supervisor.Remove{Name: "gateway-x"}); err != nil {
					t.Fatal(err)
				}
				w.addService(t, "x", supervisor.WantDown, func(u *supervisor.Unit) { u.Needs = []string{"boot"} })
			}, timeout, "gateway-x is not started after 30s: it is waiting: waits for boot", client.KindTimeout,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCommandClient(t)
				w.procs.tail = []string{"one", "two", "three", "f\x1bour"}
				w.addService(t, "x", tt.want)
				old := w.Snapshot().Find("gateway-x").Run
				if tt.prep != nil {
					tt.prep(t, w)
				}
				begun := time.Now()
				v, err := w.sendCommand(t.Context(), tt.do, timeout)
				if took := time.Since(begun); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				if tt.err != "" {
					var e *client.Error
					if !errors.As(err, &e) || !strings.HasPrefix(e.Message, tt.err) || e.Kind != tt.kind {
						t.Errorf("got %v, want %s", err, tt.err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				switch tt.do {
				case client.VerbStop:
					if v.State != supervisor.Down || v.PID != 0 {
						t.Errorf("got %+v", v)
					}
				case client.VerbRestart:
					if v.Run <= old {
						t.Errorf("run %d after %d", v.Run, old)
					}
					fallthrough
				default:
					if v.State == supervisor.Down && v.LastExit.Cause == supervisor.CauseClean {
						return
					}
					if v.State != supervisor.Up || !v.ReportsReadiness && time.Since(v.Since) < testSettleTime || !v.Ready {
						t.Errorf("got %+v", v)
					}
				}
			})
		})
	}
}

func setSettleTime(d time.Duration) func(*testing.T, *commandClient) {
	return func(*testing.T, *commandClient) {
		time.Sleep(d)
		synctest.Wait()
	}
}

func endRunAfter(d time.Duration, code, signal int) func(*testing.T, *commandClient) {
	return func(_ *testing.T, w *commandClient) {
		run := w.Snapshot().Find("gateway-x").Run + 1
		callAfter(d, func() { w.procs.end(run, code, signal) })
	}
}

func reportReadyAfter(d time.Duration, ready bool, statusText string) func(*testing.T, *commandClient) {
	return func(t *testing.T, w *commandClient) {
		w.addService(t, "x", w.Snapshot().Find("gateway-x").Want, func(u *supervisor.Unit) { u.Policy.ReportsReadiness = true })
		run := w.Snapshot().Find("gateway-x").Run + 1
		callAfter(d, func() { w.Post(supervisor.Ready{Name: "gateway-x", Run: run, Ready: ready, Text: statusText}) })
	}
}

func makeReady(t *testing.T, w *commandClient) {
	w.addService(t, "x", supervisor.WantUp, func(u *supervisor.Unit) { u.Policy.ReportsReadiness = true })
	v := w.Snapshot().Find("gateway-x")
	if err := w.Do(t.Context(), supervisor.Ready{Name: v.Name, Run: v.Run, Ready: true}); err != nil {
		t.Fatal(err)
	}
}

func makeTask(d time.Duration, code int) func(*testing.T, *commandClient) {
	return func(t *testing.T, w *commandClient) {
		w.addService(t, "x", supervisor.WantDown, func(u *supervisor.Unit) { u.Policy.SingleRun = true })
		endRunAfter(max(d, time.Millisecond), code, 0)(t, w)
	}
}

func withoutLogLines(f func(*testing.T, *commandClient)) func(*testing.T, *commandClient) {
	return func(t *testing.T, w *commandClient) {
		w.procs.update(func() { w.procs.tail = nil })
		f(t, w)
	}
}

func failSpawn(err error) func(*testing.T, *commandClient) {
	return func(_ *testing.T, w *commandClient) { w.procs.update(func() { w.procs.spawnError = err }) }
}

// ignoreStopSignals returns a step after which the process ignores stop signals. The process ends by itself after d.
func ignoreStopSignals(d time.Duration) func(*testing.T, *commandClient) {
	return func(_ *testing.T, w *commandClient) {
		w.procs.update(func() { w.procs.diesOnSignal = false })
		run := max(w.Snapshot().Find("gateway-x").Run, 1)
		callAfter(d, func() {
			w.procs.update(func() {
				if w.procs.pidByRun[run] != 0 {
					w.procs.endProcess(run, 0, 0)
				}
			})
		})
	}
}

func TestAWaitEndsWhenItsClientDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCommandClient(t)
		w.addService(t, "x", supervisor.WantUp)
		ignoreStopSignals(20*time.Second)(t, w)
		ctx, cancel := context.WithCancel(t.Context())
		callAfter(time.Second, cancel)
		begun := time.Now()
		if _, err := w.sendCommand(ctx, client.VerbStop, time.Minute); !errors.Is(err, context.Canceled) || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if v := w.Snapshot().Find("gateway-x"); v.Want != supervisor.WantDown {
			t.Errorf("the command did not stay in force: %+v", v)
		}
	})
}
