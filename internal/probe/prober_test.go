package probe

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/config"
	"hinit/supervisor"
)

type rig struct {
	*Prober

	snapshot        atomic.Pointer[supervisor.Snapshot]
	snapshotChanged chan struct{}
	events          chan supervisor.Event
	ended           chan struct{}
}

func newRig(ask func(c config.Check) (bool, string)) *rig {
	r := &rig{snapshotChanged: make(chan struct{}), events: make(chan supervisor.Event, 4096), ended: make(chan struct{})}
	r.snapshot.Store(&supervisor.Snapshot{})
	r.Prober = New(Options{
		Snapshot: r.snapshot.Load, SnapshotChanged: func() <-chan struct{} { return r.snapshotChanged }, SupervisorEnded: r.ended,
		Post: func(e supervisor.Event) { r.events <- e },
		Env:  func(string) (map[string]string, error) { return map[string]string{"PORT": "81"}, nil },
	})
	if ask != nil {
		r.newChecker = func(c config.Check, _ *target) (checker, error) {
			return checkFunc(func(time.Time) (bool, string) { return ask(c) }), nil
		}
	}
	return r
}

type checkFunc func(time.Time) (bool, string)

func (f checkFunc) check(deadline time.Time) (bool, string) { return f(deadline) }

func (r *rig) reportUp(run uint64, names ...string) {
	s := &supervisor.Snapshot{}
	for _, name := range names {
		s.Services = append(s.Services, &supervisor.Service{Name: name, State: supervisor.Up, Run: run, Since: time.Now()})
	}
	r.snapshot.Store(s)
	r.wakeUp()
}

func (r *rig) takeEvents() (list []string) {
	for {
		select {
		case e := <-r.events:
			if r, is := e.(supervisor.Remark); is {
				list = append(list, "remark on "+r.Service+": "+r.Text)
				continue
			}
			list = append(list, fmt.Sprintf("%T%+v", e, e))
		default:
			return list
		}
	}
}

func newCheck(kind, of string) config.Check {
	c := config.Check{Name: kind, Kind: kind, Type: of, Period: 10 * time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 3}
	if kind != config.CheckReady {
		c.OnFailure = config.OnFailureRestart
	}
	return c
}

func targetWith(checks ...config.Check) Target {
	return Target{Checks: checks, Expand: func(s string) string { return s }, MayUseAgentEnv: true}
}

// The cut of a long answer must not split a character. Otherwise the log and the status show the rest of the character as \xc3.
func TestALongAnswerWasCutWithinACharacter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(func(config.Check) (bool, string) { return false, "x" + strings.Repeat("ä", 150) })
		defer close(r.ended)
		r.SetChecks("s", targetWith(newCheck(config.CheckAlive, config.CheckTCP)))
		r.reportUp(1, "s")
		synctest.Wait()
		h, _, _ := r.Health("s")
		if got := h.Checks[0].Answer; got != "x"+strings.Repeat("ä", 99) {
			t.Errorf("the answer is %q", got)
		}
	})
}

// A dead port must be reported within period × threshold plus one timer slot, wherever in the period the port dies.
func TestADeadPortIsNoticedInTime(t *testing.T) {
	for phase := range 10 {
		synctest.Test(t, func(t *testing.T) {
			var dead atomic.Bool
			r := newRig(func(config.Check) (bool, string) { return !dead.Load(), "connection refused" })
			defer close(r.ended)
			r.SetChecks("s", targetWith(newCheck(config.CheckAlive, config.CheckTCP)))
			r.reportUp(1, "s")
			time.Sleep(time.Minute + time.Duration(phase)*time.Second + 333*time.Millisecond)
			r.takeEvents()
			dead.Store(true)
			time.Sleep(3*10*time.Second + 2*timerSlot)
			synctest.Wait()
			if got := r.takeEvents(); len(got) != 3 {
				t.Errorf("phase %d: %q", phase, got)
			}
			time.Sleep(time.Hour)
			if got := r.takeEvents(); len(got) > 0 {
				t.Errorf("after it was given up: %q", got)
			}
		})
	}
}

// The supervisor must get each change of a verdict, in order, and no other events.
func TestTheSupervisorIsToldChangesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var good atomic.Bool
		r := newRig(func(config.Check) (bool, string) { return good.Load(), "503" })
		defer close(r.ended)
		ready := newCheck(config.CheckReady, config.CheckTCP)
		r.SetChecks("s", targetWith(ready))
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := r.takeEvents(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %q, expected %q", when, got, want)
			}
		}
		r.reportUp(4, "s")
		expect("at first", "supervisor.ChecksReported{Name:s Run:4 Ready:false Text:check ready has not passed yet}",
			"supervisor.ChecksReported{Name:s Run:4 Ready:false Text:check ready has not passed yet: 503}")
		time.Sleep(11 * time.Second)
		expect("after the same answer")
		good.Store(true)
		time.Sleep(10 * time.Second)
		expect("after a good one", "remark on s: check ready passes", "supervisor.ChecksReported{Name:s Run:4 Ready:true Text:}")
		time.Sleep(time.Minute)
		expect("while it passes")
		good.Store(false)
		time.Sleep(40 * time.Second)
		expect("after bad ones", "remark on s: check ready fails: 503", "supervisor.ChecksReported{Name:s Run:4 Ready:false Text:check ready fails: 503}")
		r.reportUp(5, "s")
		expect("in the next run", "supervisor.ChecksReported{Name:s Run:5 Ready:false Text:check ready has not passed yet}",
			"supervisor.ChecksReported{Name:s Run:5 Ready:false Text:check ready has not passed yet: 503}")
	})
}

// The Prober of a re-executed hinit must keep the state: passed start-up checks stay passed, and bad answers before and after
// count together.
func TestASuccessorGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var good atomic.Bool
		good.Store(true)
		ask := func(config.Check) (bool, string) { return good.Load(), "x" }
		checks := targetWith(newCheck(config.CheckStartup, config.CheckTCP), newCheck(config.CheckAlive, config.CheckTCP))
		first := newRig(ask)
		first.SetChecks("s", checks)
		first.reportUp(9, "s")
		time.Sleep(time.Second)
		good.Store(false)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		h := first.HandOver()
		close(first.ended)

		r := newRig(ask)
		defer close(r.ended)
		r.TakeOver(h)
		r.snapshot.Store(first.snapshot.Load())
		r.SetChecks("s", checks)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got, _, _ := r.Health("s"); !got.Abandoned {
			t.Errorf("after the third bad answer: %+v", got)
		}
	})
}

// A check fails while the supervisor collects the state for a re-execution. The next program must restart the service.
// Otherwise the service stays up and unhealthy for ever.
func TestACheckThatFailsDuringAReexecRestartsItsService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := func(config.Check) (bool, string) { return false, "503" }
		checks := targetWith(newCheck(config.CheckAlive, config.CheckTCP))
		first := newRig(ask)
		first.SetChecks("s", checks)
		first.reportUp(9, "s")
		time.Sleep(time.Minute)
		synctest.Wait()
		lost, h := fmt.Sprint(first.takeEvents()), first.HandOver()
		close(first.ended)
		if !strings.Contains(lost, "Unhealthy") {
			t.Fatalf("the check did not fail: %s", lost)
		}
		r := newRig(ask)
		defer close(r.ended)
		r.TakeOver(h)
		r.snapshot.Store(first.snapshot.Load())
		r.SetChecks("s", checks)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if got := fmt.Sprint(r.takeEvents()); strings.Count(got, "Unhealthy") != 1 {
			t.Errorf("the next program asks the supervisor for %s", got)
		}
	})
}

// 500 passing checks may wake the Prober up at most five times a second. Without checks it must never wake up.
func TestFiveHundredChecksWakeUpSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		r := newRig(func(config.Check) (bool, string) { asked.Add(1); return true, "" })
		defer close(r.ended)
		runs := func() bool {
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.running
		}
		r.RemoveChecks("s")
		if runs() {
			t.Error("it runs without a check")
		}
		names := make([]string, 500)
		for i := range names {
			names[i] = fmt.Sprint("s", i)
			c := newCheck(config.CheckAlive, config.CheckTCP)
			c.Jitter, c.InitialDelay = 0.05, time.Duration(i)*20*time.Millisecond
			r.SetChecks(names[i], targetWith(c))
		}
		r.reportUp(1, names...)
		time.Sleep(20 * time.Second)
		wakes, looks := r.wakes.Load(), asked.Load()
		time.Sleep(100 * time.Second)
		wakes, looks = r.wakes.Load()-wakes, asked.Load()-looks
		t.Logf("500 checks at 10 s: %.1f wake-ups and %.1f looks a second", float64(wakes)/100, float64(looks)/100)
		if wakes > 500 || looks < 5000 {
			t.Errorf("%d wake-ups and %d looks in 100 s", wakes, looks)
		}
		for _, name := range names {
			r.RemoveChecks(name)
		}
		if runs() {
			t.Error("it runs when the checks are gone")
		}
	})
}

// A check's target uses the variables of the profile, and a check with an unset variable is left out. No check may run while
// the service is paused or stopped.
func TestVariablesOfTheProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan string, 100)
		r := newRig(nil)
		defer close(r.ended)
		r.newChecker = func(c config.Check, with *target) (checker, error) {
			target := with.Expand(c.Dial.Target())
			return checkFunc(func(time.Time) (bool, string) { asked <- target; return true, "" }), nil
		}
		one, two := newCheck(config.CheckReady, config.CheckTCP), newCheck(config.CheckAlive, config.CheckTCP)
		one.Dial.Port, two.Dial.Port = "{env:PORT}", "{env:NONE}"
		r.SetChecks("s", targetWith(one, two))
		r.reportUp(1, "s")
		synctest.Wait()
		if got := <-asked; got != "127.0.0.1:81" {
			t.Errorf("asked %q", got)
		}
		h, _, _ := r.Health("s")
		if c := h.Checks[1]; c.Verdict != Skipped || c.Answer != "the variable NONE is not set" || len(asked) > 0 {
			t.Errorf("the other check is %+v", c)
		}
		r.snapshot.Store(&supervisor.Snapshot{Services: []*supervisor.Service{{Name: "s", State: supervisor.Up, Run: 1, Paused: true}}})
		r.wakeUp()
		time.Sleep(time.Hour)
		if len(asked) > 0 {
			t.Error("a paused service was asked")
		}
	})
}
