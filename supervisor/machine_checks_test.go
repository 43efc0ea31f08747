package supervisor

import (
	"strings"
	"testing"
)

// A failed check must restart the service with the cause health, whatever the exit code is.
func TestAFailedCheckRestartsWithItsAnswer(t *testing.T) {
	for _, code := range []int{0, 1, 75, 78} {
		r := newRig(t)
		r.enter(Up)
		r.do(Unhealthy{Name: "s", Run: r.s().number + 1, Answer: "of another run"})
		r.want(Up)
		r.do(Unhealthy{Name: "s", Run: r.s().number, Answer: "connection refused"})
		r.want(Stopping)
		r.exit(code)
		r.want(Backoff)
		if x := r.s().lastExit; x.Cause != CauseHealth || x.Error != "connection refused" || r.s().failures != 1 || !strings.Contains(r.s().reason, "unhealthy: connection refused") {
			t.Errorf("exit %d: cause %s, %q, %d failures, reason %q", code, x.Cause, x.Error, r.s().failures, r.s().reason)
		}
		r.do(Start{"s"})
		if r.s().failedAnswer != "" || r.s().requestedCause != "" {
			t.Errorf("the next run begins with %q", r.s().failedAnswer)
		}
	}
}

// After a long run, a failed check must restart the service without a delay, as a crash does.
func TestAHealthyLifeIsStartedAtOnceAfterAFailedCheck(t *testing.T) {
	r := newRig(t)
	r.enter(Up)
	r.now = r.now.Add(testPolicy.ResetAfter)
	r.do(Unhealthy{Name: "s", Run: r.s().number})
	r.exit(0)
	r.want(Starting)
}

// A failed check can park the service. If a client stops the service before its end, the service must stay down.
func TestAFailedCheckCanPark(t *testing.T) {
	r := newRig(t)
	r.enter(Up)
	r.do(Unhealthy{Name: "s", Run: r.s().number, Answer: "x", Park: true})
	r.exit(0)
	r.want(Parked)
	r.do(Start{"s"})
	r.want(Starting)

	r = newRig(t)
	r.enter(Up)
	r.do(Unhealthy{Name: "s", Run: r.s().number, Answer: "x"})
	r.do(Stop{"s"})
	r.exit(0)
	r.want(Down)
}

// A service with its own readiness report and readiness checks is ready only if both agree.
func TestReadyNeedsTheServiceAndItsChecks(t *testing.T) {
	for _, announces := range []bool{false, true} {
		r := newRig(t)
		own := testPolicy
		own.ReportsReadiness = announces
		r.do(Add{Name: "s", Policy: new(own), HasReadinessChecks: true})
		r.do(Start{"s"})
		r.do(Spawned{"s", 7})
		expect := func(when string, ready bool, said string) {
			t.Helper()
			if s := r.s(); s.ready != ready || s.readinessText != said || ready == s.readySince.IsZero() {
				t.Errorf("announces %t, %s: ready %t, %q", announces, when, s.ready, s.readinessText)
			}
		}
		expect("at first", false, "")
		r.do(ChecksReported{Name: "s", Run: r.s().number, Text: "no port"})
		expect("after a bad answer", false, "no port")
		r.do(StatusText{"s", r.s().number, "loading"})
		expect("after it said what it does", false, "loading; no port")
		r.do(StatusText{"s", r.s().number + 1, "another run"})
		r.do(StatusText{"s", r.s().number, ""})
		r.do(ChecksReported{Name: "s", Run: r.s().number + 1, Ready: true})
		expect("after one for another run", false, "no port")
		r.do(ChecksReported{Name: "s", Run: r.s().number, Ready: true})
		expect("after a good answer", !announces, "")
		r.do(Ready{"s", r.s().number, true, "one platform fails"})
		expect("when it says so too", true, "one platform fails")
		r.do(ChecksReported{Name: "s", Run: r.s().number, Text: "no port"})
		expect("after another bad answer", false, "one platform fails; no port")
		r.do(Add{Name: "s", Policy: new(own)})
		expect("without the checks", true, "one platform fails")
	}
}

func TestAnUnhealthyCmdIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.do(Add{Name: "c", Policy: &Policy{IsCMD: true}, Want: WantUp})
	r.do(Spawned{"c", 9})
	r.do(Unhealthy{Name: "c", Run: r.m.services["c"].number})
	if got := r.m.services["c"].state; got != Up {
		t.Errorf("it is %s", got)
	}
}
