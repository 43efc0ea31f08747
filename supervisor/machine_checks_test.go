package supervisor

import (
	"strings"
	"testing"
)

// A failed check must restart the service with the cause health, whatever the exit code is.
func TestAFailedCheckRestartsWithItsAnswer(t *testing.T) {
	for _, code := range []int{0, 1, 75, 78} {
		r := newRig(t)
		r.reachState(Up)
		r.step(Unhealthy{Name: "s", Run: r.service().number + 1, Answer: "of another run"})
		r.wantState(Up)
		r.step(Unhealthy{Name: "s", Run: r.service().number, Answer: "connection refused"})
		r.wantState(Stopping)
		r.exit(code)
		r.wantState(Backoff)
		if x := r.service().lastExit; x.Cause != CauseHealth || x.Error != "connection refused" || r.service().failures != 1 || !strings.Contains(r.service().reason, "unhealthy: connection refused") {
			t.Errorf("exit %d: cause %s, %q, %d failures, reason %q", code, x.Cause, x.Error, r.service().failures, r.service().reason)
		}
		r.step(Start{"s"})
		if r.service().failedAnswer != "" || r.service().requestedCause != "" {
			t.Errorf("the next run begins with %q", r.service().failedAnswer)
		}
	}
}

// After a long run, a failed check must restart the service without a delay, as a crash does.
func TestAHealthyLifeIsStartedAtOnceAfterAFailedCheck(t *testing.T) {
	r := newRig(t)
	r.reachState(Up)
	r.now = r.now.Add(testPolicy.ResetAfter)
	r.step(Unhealthy{Name: "s", Run: r.service().number})
	r.exit(0)
	r.wantState(Starting)
}

// A failed check can park the service. If a client stops the service before its end, the service must stay down.
func TestAFailedCheckCanPark(t *testing.T) {
	r := newRig(t)
	r.reachState(Up)
	r.step(Unhealthy{Name: "s", Run: r.service().number, Answer: "x", Park: true})
	r.exit(0)
	r.wantState(Parked)
	r.step(Start{"s"})
	r.wantState(Starting)

	r = newRig(t)
	r.reachState(Up)
	r.step(Unhealthy{Name: "s", Run: r.service().number, Answer: "x"})
	r.step(Stop{"s"})
	r.exit(0)
	r.wantState(Down)
}

// A service with its own readiness report and readiness checks is ready only if both agree.
func TestReadyNeedsTheServiceAndItsChecks(t *testing.T) {
	for _, announces := range []bool{false, true} {
		r := newRig(t)
		own := testPolicy
		own.ReportsReadiness = announces
		r.step(Add{Name: "s", Policy: new(own), HasReadinessChecks: true})
		r.step(Start{"s"})
		r.step(Spawned{"s", 7})
		expect := func(when string, ready bool, output string) {
			t.Helper()
			if s := r.service(); s.ready != ready || s.readinessText != output || ready == s.readySince.IsZero() {
				t.Errorf("announces %t, %s: ready %t, %q", announces, when, s.ready, s.readinessText)
			}
		}
		expect("at first", false, "")
		r.step(ChecksReported{Name: "s", Run: r.service().number, Text: "no port"})
		expect("after a bad answer", false, "no port")
		r.step(StatusText{"s", r.service().number, "loading"})
		expect("after it said what it does", false, "loading; no port")
		r.step(StatusText{"s", r.service().number + 1, "another run"})
		r.step(StatusText{"s", r.service().number, ""})
		r.step(ChecksReported{Name: "s", Run: r.service().number + 1, Ready: true})
		expect("after one for another run", false, "no port")
		r.step(ChecksReported{Name: "s", Run: r.service().number, Ready: true})
		expect("after a good answer", !announces, "")
		r.step(Ready{"s", r.service().number, true, "one platform fails"})
		expect("when it says so too", true, "one platform fails")
		r.step(ChecksReported{Name: "s", Run: r.service().number, Text: "no port"})
		expect("after another bad answer", false, "one platform fails; no port")
		r.step(Add{Name: "s", Policy: new(own)})
		expect("without the checks", true, "one platform fails")
	}
}

func TestAnUnhealthyCmdIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "c", Policy: &Policy{IsCMD: true}, Want: WantUp})
	r.step(Spawned{"c", 9})
	r.step(Unhealthy{Name: "c", Run: r.machine.services["c"].number})
	if got := r.machine.services["c"].state; got != Up {
		t.Errorf("it is %s", got)
	}
}
