package supervisor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func (r *rig) notify(e NotifyMessage) {
	r.t.Helper()
	e.Name = "s"
	if e.Run == 0 {
		e.Run = r.service().number
	}
	if kinds := r.step(e); len(kinds) > 0 {
		r.t.Errorf("%+v: %v", e, kinds)
	}
}

func TestARunTellsOfItself(t *testing.T) {
	r := newRig(t)
	p := testPolicy
	p.ReportsReadiness = true
	r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
	r.spawned()
	r.notify(NotifyMessage{Status: "loading", HasStatus: true})
	if s := r.service(); s.ready || s.status != "loading" || s.readinessText != "" {
		t.Errorf("%+v", s.run)
	}
	r.notify(NotifyMessage{Ready: true, Run: 99})
	if r.service().ready {
		t.Error("another run has said it")
	}
	r.notify(NotifyMessage{Ready: true})
	if s := r.service(); !s.ready || s.status != "loading" {
		t.Errorf("%+v", s.run)
	}
	r.notify(NotifyMessage{HasStatus: true})
	if r.service().status != "" {
		t.Error("it can't take its status back")
	}
	r.notify(NotifyMessage{Status: "last", HasStatus: true})
	r.exit(1)
	r.notify(NotifyMessage{Status: "too late", HasStatus: true})
	if s := r.service(); s.status == "too late" || s.snapshot(&unit{Unit: &Unit{}}).Status != "" {
		t.Errorf("%q of one that has ended", s.status)
	}
	r.advance(testPolicy.Backoff.Initial)
	r.spawned()
	if s := r.service(); s.ready || s.status != "" {
		t.Errorf("the next run begins with %+v", s.run)
	}
}

func TestARunThatSaysItIsStopping(t *testing.T) {
	t.Run("and ends", func(t *testing.T) {
		r := newRig(t)
		r.reachUp()
		r.notify(NotifyMessage{Stopping: true})
		r.wantState(Stopping)
		r.exit(1)
		r.wantState(Backoff)
		if last := r.service().lastExit; last.Cause != CauseCrash {
			t.Errorf("%+v", last)
		}
	})
	t.Run("and doesn't end", func(t *testing.T) {
		r := newRig(t)
		r.reachUp()
		r.notify(NotifyMessage{Stopping: true})
		r.advance(testPolicy.Grace)
		r.wantState(Killing)
		r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill})
		if last := r.service().lastExit; last.Cause != CauseHealth || last.Error == "" {
			t.Errorf("%+v", last)
		}
		r.wantState(Backoff)
	})
	t.Run("and is stopped", func(t *testing.T) {
		r := newRig(t)
		r.reachUp()
		r.notify(NotifyMessage{Stopping: true})
		r.step(Stop{"s"})
		r.exit(1)
		r.wantState(Down)
	})
	t.Run("while the container ends", func(t *testing.T) {
		r := newRig(t)
		r.reachUp()
		r.notify(NotifyMessage{Stopping: true})
		r.step(Shutdown{Reason: "test"})
		r.advance(7500 * time.Millisecond)
		r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill})
		if last := r.service().lastExit; last.Cause != CauseShutdown {
			t.Errorf("%+v", last)
		}
	})
}

func TestMoreTimeToStop(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.notify(NotifyMessage{Extend: time.Hour})
	r.step(Stop{"s"})
	begin := r.now
	r.notify(NotifyMessage{Extend: time.Second})
	if left := r.service().deadline.Sub(r.now); left != testPolicy.Grace {
		t.Errorf("%v left", left)
	}
	r.advance(testPolicy.Grace - time.Second)
	r.notify(NotifyMessage{Extend: time.Minute})
	if left := r.service().deadline.Sub(r.now); left != time.Minute {
		t.Errorf("%v left", left)
	}
	r.notify(NotifyMessage{Extend: 24 * time.Hour})
	if all := r.service().deadline.Sub(begin); all != 10*testPolicy.Grace {
		t.Errorf("%v in all", all)
	}
	r.advance(10 * testPolicy.Grace)
	r.wantState(Killing)
	r.notify(NotifyMessage{Extend: time.Hour})
	r.wantState(Killing)

	r = newRig(t)
	r.reachUp()
	r.step(Shutdown{Reason: "test"})
	r.notify(NotifyMessage{Extend: time.Hour})
	if left := r.service().deadline.Sub(r.now); left > 8*time.Second {
		t.Errorf("%v left of the container's budget", left)
	}
}

func TestTellKnowsWhoseProcessSaysIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.register(t, "a", WantUp)
		b.register(t, "b", WantUp)
		a, other := b.Snapshot().Find("a"), b.Snapshot().Find("b")
		if run, err := b.HandleNotify(a.PID, NotifyMessage{Name: "a", Status: "mine", HasStatus: true}); err != nil || run != a.Run {
			t.Errorf("run %d, %v", run, err)
		}
		for _, pid := range []int{other.PID, 1, 0, -1} {
			if _, err := b.HandleNotify(pid, NotifyMessage{Name: "a", Status: "forged", HasStatus: true}); !errors.Is(err, ErrForeignProcess) {
				t.Errorf("of process %d: %v", pid, err)
			}
		}
		if got := b.Snapshot().Find("a"); got.Status != "mine" || !got.Ready || got.Warning != "" {
			t.Errorf("%+v", got)
		}
		b.shutdown(t)
		if _, err := b.HandleNotify(a.PID, NotifyMessage{Name: "a"}); !errors.Is(err, ErrStopping) {
			t.Errorf("after the end: %v", err)
		}
	})
}
