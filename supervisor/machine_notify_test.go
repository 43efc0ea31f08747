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
		e.Run = r.s().number
	}
	if kinds := r.do(e); len(kinds) > 0 {
		r.t.Errorf("%+v: %v", e, kinds)
	}
}

func TestARunTellsOfItself(t *testing.T) {
	r := newRig(t)
	p := testPolicy
	p.ReportsReadiness = true
	r.do(Add{Name: "s", Policy: new(p), Want: WantUp})
	r.spawned()
	r.notify(NotifyMessage{Status: "loading", HasStatus: true})
	if s := r.s(); s.ready || s.status != "loading" || s.readinessText != "" {
		t.Errorf("%+v", s.run)
	}
	r.notify(NotifyMessage{Ready: true, Run: 99})
	if r.s().ready {
		t.Error("another run has said it")
	}
	r.notify(NotifyMessage{Ready: true})
	if s := r.s(); !s.ready || s.status != "loading" {
		t.Errorf("%+v", s.run)
	}
	r.notify(NotifyMessage{HasStatus: true})
	if r.s().status != "" {
		t.Error("it can't take its status back")
	}
	r.notify(NotifyMessage{Status: "last", HasStatus: true})
	r.exit(1)
	r.notify(NotifyMessage{Status: "too late", HasStatus: true})
	if s := r.s(); s.status == "too late" || s.snapshot(&unit{Unit: &Unit{}}).Status != "" {
		t.Errorf("%q of one that has ended", s.status)
	}
	r.wait(testPolicy.Backoff.Initial)
	r.spawned()
	if s := r.s(); s.ready || s.status != "" {
		t.Errorf("the next run begins with %+v", s.run)
	}
}

func TestARunThatSaysItIsStopping(t *testing.T) {
	t.Run("and ends", func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.notify(NotifyMessage{Stopping: true})
		r.want(Stopping)
		r.exit(1)
		r.want(Backoff)
		if last := r.s().lastExit; last.Cause != CauseCrash {
			t.Errorf("%+v", last)
		}
	})
	t.Run("and doesn't end", func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.notify(NotifyMessage{Stopping: true})
		r.wait(testPolicy.Grace)
		r.want(Killing)
		r.do(Exited{Name: "s", PID: r.s().pid, Code: -1, Signal: sigKill})
		if last := r.s().lastExit; last.Cause != CauseHealth || last.Error == "" {
			t.Errorf("%+v", last)
		}
		r.want(Backoff)
	})
	t.Run("and is stopped", func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.notify(NotifyMessage{Stopping: true})
		r.do(Stop{"s"})
		r.exit(1)
		r.want(Down)
	})
	t.Run("while the container ends", func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.notify(NotifyMessage{Stopping: true})
		r.do(Shutdown{Reason: "test"})
		r.wait(7500 * time.Millisecond)
		r.do(Exited{Name: "s", PID: r.s().pid, Code: -1, Signal: sigKill})
		if last := r.s().lastExit; last.Cause != CauseShutdown {
			t.Errorf("%+v", last)
		}
	})
}

func TestMoreTimeToStop(t *testing.T) {
	r := newRig(t)
	r.up()
	r.notify(NotifyMessage{Extend: time.Hour})
	r.do(Stop{"s"})
	begin := r.now
	r.notify(NotifyMessage{Extend: time.Second})
	if left := r.s().deadline.Sub(r.now); left != testPolicy.Grace {
		t.Errorf("%v left", left)
	}
	r.wait(testPolicy.Grace - time.Second)
	r.notify(NotifyMessage{Extend: time.Minute})
	if left := r.s().deadline.Sub(r.now); left != time.Minute {
		t.Errorf("%v left", left)
	}
	r.notify(NotifyMessage{Extend: 24 * time.Hour})
	if all := r.s().deadline.Sub(begin); all != 10*testPolicy.Grace {
		t.Errorf("%v in all", all)
	}
	r.wait(10 * testPolicy.Grace)
	r.want(Killing)
	r.notify(NotifyMessage{Extend: time.Hour})
	r.want(Killing)

	r = newRig(t)
	r.up()
	r.do(Shutdown{Reason: "test"})
	r.notify(NotifyMessage{Extend: time.Hour})
	if left := r.s().deadline.Sub(r.now); left > 8*time.Second {
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
