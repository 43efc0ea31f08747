package probe

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/config"
	"hinit/internal/notify"
	"hinit/supervisor"
)

// notifyTarget returns the checks of a service with systemd notifications. timeout limits its start, watchdog is the longest
// gap between its signs of life.
func notifyTarget(timeout, watchdog time.Duration) Target {
	s := config.Service{Notify: config.Notify{Protocol: config.NotifySystemd, Timeout: timeout, Watchdog: watchdog}}
	return targetWith(s.AllChecks()...)
}

func (r *rig) wantNoEvent(t *testing.T, when string) {
	t.Helper()
	synctest.Wait()
	passes := func(words string) bool { return words == "remark on s: check alive-watchdog passes" }
	if got := slices.DeleteFunc(r.takeEvents(), passes); len(got) > 0 {
		t.Errorf("%s: %q", when, got)
	}
}

func (r *rig) wantFailure(t *testing.T, when, answer string) {
	t.Helper()
	synctest.Wait()
	if got := strings.Join(r.takeEvents(), "\n"); !strings.Contains(got, "supervisor.Unhealthy") || !strings.Contains(got, answer) {
		t.Errorf("%s: %q, expected to be given up with %q", when, got, answer)
	}
}

func testWithWatchdog(t *testing.T, body func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(nil)
		r.options.ReadMessages = func(string) {}
		defer close(r.ended)
		r.SetChecks("s", notifyTarget(0, 10*time.Second))
		r.reportUp(1, "s")
		synctest.Wait()
		body(r)
	})
}

func TestAWatchdogThatIsMissed(t *testing.T) {
	testWithWatchdog(t, func(r *rig) {
		time.Sleep(time.Hour)
		r.wantNoEvent(t, "before it is ready")
		r.HandleMessage("s", 1, &notify.Message{Ready: true})
		for range 100 {
			time.Sleep(9900 * time.Millisecond)
			r.HandleMessage("s", 1, &notify.Message{Alive: true})
		}
		r.wantNoEvent(t, "while it says that it is alive")
		time.Sleep(9900 * time.Millisecond)
		// This message has no WATCHDOG=1, so it is no sign of life.
		r.HandleMessage("s", 1, &notify.Message{Ready: true, Status: "x", HasStatus: true})
		r.wantNoEvent(t, "in time")
		time.Sleep(100*time.Millisecond + 2*timerSlot)
		r.wantFailure(t, "when it is over", "check alive-watchdog: no WATCHDOG=1 for 10s")
		time.Sleep(time.Hour)
		r.wantNoEvent(t, "after it was given up")
		r.reportUp(2, "s")
		r.HandleMessage("s", 1, &notify.Message{Ready: true}) // a message of the previous run must not count
		time.Sleep(time.Hour)
		r.wantNoEvent(t, "in the next run")
	})
}

// A message of a service must count even before the prober has seen its run as up.
func TestAWordThatIsFasterThanTheNewsOfItsRun(t *testing.T) {
	testWithWatchdog(t, func(r *rig) {
		r.HandleMessage("s", 2, &notify.Message{Ready: true})
		time.Sleep(time.Second)
		r.reportUp(2, "s")
		time.Sleep(8 * time.Second)
		r.wantNoEvent(t, "in time")
		time.Sleep(time.Second + 2*timerSlot)
		r.wantFailure(t, "ten seconds after it was ready", "no WATCHDOG=1 for 10s")
	})
}

func TestAWatchdogCanBeChanged(t *testing.T) {
	testWithWatchdog(t, func(r *rig) {
		r.HandleMessage("s", 1, &notify.Message{Ready: true, HasWatchdogInterval: true})
		time.Sleep(time.Hour)
		r.wantNoEvent(t, "without an interval")
		r.HandleMessage("s", 1, &notify.Message{HasWatchdogInterval: true, WatchdogInterval: time.Second})
		time.Sleep(900 * time.Millisecond)
		r.wantNoEvent(t, "within the new one")
		time.Sleep(100*time.Millisecond + 2*timerSlot)
		r.wantFailure(t, "after it", "no WATCHDOG=1 for 1s")
	})
	testWithWatchdog(t, func(r *rig) {
		r.HandleMessage("s", 1, &notify.Message{Ready: true})
		r.HandleMessage("s", 1, &notify.Message{Failed: true})
		time.Sleep(2 * timerSlot)
		r.wantFailure(t, "at once", "WATCHDOG=trigger")
	})
}

func TestAWatchdogHearsBeforeItJudges(t *testing.T) {
	testWithWatchdog(t, func(r *rig) {
		received := 0
		r.options.ReadMessages = func(service string) {
			received++
			r.HandleMessage(service, 1, &notify.Message{Alive: true})
		}
		r.HandleMessage("s", 1, &notify.Message{Ready: true})
		time.Sleep(time.Minute)
		if r.wantNoEvent(t, "what was on its way"); received == 0 {
			t.Error("nobody has listened")
		}
	})
}

// A watchdog must start its time again after a pause by an operator, or after a time in which hinit got no processor.
func TestAWatchdogIsFair(t *testing.T) {
	testWithWatchdog(t, func(r *rig) {
		r.HandleMessage("s", 1, &notify.Message{Ready: true})
		time.Sleep(5 * time.Second)
		paused := *r.snapshot.Load().Services[0]
		paused.Paused = true
		r.snapshot.Store(&supervisor.Snapshot{Services: []*supervisor.Service{&paused}})
		r.wakeUp()
		time.Sleep(time.Hour)
		r.wantNoEvent(t, "while it is stopped")
		r.reportUp(1, "s")
		time.Sleep(9 * time.Second)
		r.wantNoEvent(t, "after it continues")
		time.Sleep(time.Second + 2*timerSlot)
		r.wantFailure(t, "ten seconds later", "no WATCHDOG=1 for 10s")
	})
	b := &runNotifyState{NotifyState: NotifyState{Run: 1, Ready: true, WatchdogInterval: 10 * time.Second, LastMessageAt: time.Now().Add(-time.Minute)}}
	w := &watchdogCheck{notifyState: b, readMessages: func() {}}
	if good, answer := w.check(time.Time{}); !good {
		t.Errorf("after the container was paused: %s", answer)
	}
	b.LastMessageAt = time.Now().Add(-time.Minute)
	if good, answer := w.check(time.Time{}); good {
		t.Errorf("it is spared for ever: %s", answer)
	}
	b.recordMessage(1, 0, &notify.Message{Alive: true}, time.Now().Add(-time.Minute))
	if good, answer := w.check(time.Time{}); !good {
		t.Errorf("after it was alive again: %s", answer)
	}
}

func TestAWatchdogGoesOnInAnotherImage(t *testing.T) {
	testWithWatchdog(t, func(r *rig) {
		r.HandleMessage("s", 1, &notify.Message{Ready: true, HasWatchdogInterval: true, WatchdogInterval: 20 * time.Second})
		time.Sleep(15 * time.Second)
		next := newRig(nil)
		next.options.ReadMessages = func(string) {}
		defer close(next.ended)
		next.TakeOver(r.HandOver())
		next.SetChecks("s", notifyTarget(0, 10*time.Second))
		next.reportUp(1, "s")
		time.Sleep(4900 * time.Millisecond)
		for _, e := range next.takeEvents() {
			if strings.Contains(e, "Unhealthy") {
				t.Errorf("too early: %s", e)
			}
		}
		time.Sleep(100*time.Millisecond + 2*timerSlot)
		next.wantFailure(t, "in time", "no WATCHDOG=1 for 20s")
	})
}

func TestAStartThatTakesTooLong(t *testing.T) {
	start := func(body func(r *rig)) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(nil)
			r.options.ReadMessages = func(string) {}
			defer close(r.ended)
			r.SetChecks("s", notifyTarget(30*time.Second, 10*time.Second))
			r.reportUp(1, "s")
			synctest.Wait()
			r.takeEvents()
			body(r)
		})
	}
	start(func(r *rig) {
		time.Sleep(29 * time.Second)
		r.wantNoEvent(t, "in time")
		time.Sleep(time.Second + 2*timerSlot)
		r.wantFailure(t, "after it", "check startup-notify: READY=1 has not come in time")
	})
	start(func(r *rig) {
		time.Sleep(20 * time.Second)
		r.HandleMessage("s", 1, &notify.Message{ExtendTimeout: time.Minute})
		time.Sleep(59 * time.Second)
		r.wantNoEvent(t, "in the time it has asked for")
		r.HandleMessage("s", 1, &notify.Message{ExtendTimeout: 24 * time.Hour})
		time.Sleep(10*30*time.Second - 80*time.Second)
		r.wantNoEvent(t, "in ten times the limit")
		time.Sleep(time.Second + 2*timerSlot)
		r.wantFailure(t, "after that", "READY=1 has not come in time")
	})
	start(func(r *rig) {
		time.Sleep(20 * time.Second)
		r.HandleMessage("s", 1, &notify.Message{Ready: true})
		time.Sleep(2 * timerSlot)
		synctest.Wait()
		if got := strings.Join(r.takeEvents(), "\n"); !strings.Contains(got, "Ready:true") || strings.Contains(got, "Unhealthy") {
			t.Errorf("when it is ready: %s", got)
		}
		time.Sleep(10*time.Second + 2*timerSlot)
		r.wantFailure(t, "then its watchdog begins", "no WATCHDOG=1 for 10s")
	})
}
