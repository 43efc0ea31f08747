package probe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hinit/internal/config"
)

func newRule(kind string, success, failure int) config.Check {
	on := config.OnFailureRestart
	if kind == config.CheckReady {
		on = ""
	}
	return config.Check{Name: kind, Kind: kind, Period: 10 * time.Second, Timeout: time.Second, SuccessThreshold: success, FailureThreshold: failure, OnFailure: on}
}

// TestThresholds checks the state after each answer. Answers: + good, - bad. States: . pending, P passing, F failing, r
// restart requested.
func TestThresholds(t *testing.T) {
	for _, tt := range []struct {
		kind             string
		success, failure int
		answers, want    string
	}{
		{config.CheckReady, 1, 3, "+", "P"},
		{config.CheckReady, 1, 3, "--+", "..P"},
		{config.CheckReady, 1, 3, "---+", "..FP"},
		{config.CheckReady, 1, 3, "+--+---", "PPPPPPF"},
		{config.CheckReady, 3, 1, "++-+++-", "..F.."[:2] + "FFFPF"},
		{config.CheckReady, 2, 2, "+-+-++", "....." + "P"},
		{config.CheckReady, 2, 2, "--++--", ".FFPPF"},
		{config.CheckAlive, 1, 3, "---", "..r"},
		{config.CheckAlive, 1, 3, "+--+---", "PPPPPPr"},
		{config.CheckAlive, 1, 1, "-", "r"},
		{config.CheckAlive, 1, 3, "------", "..rrrr"}, // after the request for a restart, later answers change nothing
		{config.CheckStartup, 1, 5, "----+", "....P"},
		{config.CheckStartup, 1, 5, "----+-----", "....PPPPPP"}, // a start-up check that has passed is not made again
		{config.CheckStartup, 1, 2, "--", ".r"},
	} {
		now := time.Unix(1000, 0)
		h := NewHealth([]config.Check{newRule(tt.kind, tt.success, tt.failure)}, 7, now)
		got, given := "", false
		for _, a := range tt.answers {
			now = now.Add(time.Second)
			_, act := h.RecordResult(0, now, a == '+', "x")
			given = given || act == config.OnFailureRestart
			switch v := h.Checks[0].Verdict; {
			case given:
				got += "r"
			default:
				got += map[Verdict]string{Pending: ".", Passing: "P", Failing: "F"}[v]
			}
		}
		if got != tt.want {
			t.Errorf("%s %d/%d, answers %s: %s, expected %s", tt.kind, tt.success, tt.failure, tt.answers, got, tt.want)
		}
	}
}

// No other check may run or count before the start-up check has passed, or after the request for a restart.
func TestHeldUntilStarted(t *testing.T) {
	now := time.Unix(1000, 0)
	h := NewHealth([]config.Check{newRule(config.CheckAlive, 1, 1), newRule(config.CheckStartup, 1, 3), newRule(config.CheckReady, 1, 1)}, 7, now)
	idle := func(int) bool { return false }
	if !h.IsOnHold(0) || h.IsOnHold(1) || !h.IsOnHold(2) {
		t.Error("the wrong checks are on hold at first")
	}
	if changed, act := h.RecordResult(0, now, false, "dead"); changed || act != "" {
		t.Error("a check on hold has changed something")
	}
	if ready, output := h.Ready(); ready || !strings.Contains(output, "startup has not passed yet") {
		t.Errorf("it is ready %t, %q", ready, output)
	}
	h.RecordStart(1, now, 0)
	now = now.Add(9 * time.Second)
	h.RecordResult(1, now, true, "ok")
	if h.IsOnHold(0) || !h.IsOnHold(1) || h.IsOnHold(2) {
		t.Error("the wrong checks are on hold after the start")
	}
	if due, ok := h.NextDue(idle); !ok || !due.Equal(now) {
		t.Errorf("the next look is at %v, %t: those that waited are asked at once", due, ok)
	}
	h.RecordResult(2, now, true, "ok")
	if ready, output := h.Ready(); !ready || output != "" {
		t.Errorf("it is ready %t, %q", ready, output)
	}
	if _, act := h.RecordResult(0, now, false, "dead"); act != config.OnFailureRestart {
		t.Errorf("a failed check leads to %q", act)
	}
	if _, some := h.NextDue(idle); some {
		t.Error("a run that is given up is asked")
	}
	if h = NewHealth([]config.Check{h.Checks[0].Rule}, 8, now); h.IsOnHold(0) {
		t.Error("the next run is not asked")
	}
}

func TestDelayPeriodAndJitter(t *testing.T) {
	begin := time.Unix(1000, 0)
	r := newRule(config.CheckAlive, 1, 3)
	r.InitialDelay, r.Jitter = 4*time.Second, 0.5
	h := NewHealth([]config.Check{r}, 1, begin)
	for _, tt := range []struct {
		random float64
		want   time.Duration
	}{{0, 14 * time.Second}, {1, 9 * time.Second}, {0.5, 11500 * time.Millisecond}} {
		h.Checks[0].Due = begin.Add(r.InitialDelay)
		h.RecordStart(0, begin.Add(r.InitialDelay), tt.random)
		if got := h.Checks[0].Due.Sub(begin); got != tt.want {
			t.Errorf("with %v it is due after %v, expected %v", tt.random, got, tt.want)
		}
	}
}

// Unchanged checks must keep their state in a reload. A new start-up check must not put the checks of a running service on
// hold.
func TestAReloadKeepsWhatChecksHaveComeTo(t *testing.T) {
	now := time.Unix(1000, 0)
	alive := newRule(config.CheckAlive, 1, 3)
	h := NewHealth([]config.Check{alive}, 3, now)
	h.RecordResult(0, now, false, "x")
	h.RecordResult(0, now, false, "x")
	alive.Period = time.Second
	h.ReplaceRules([]config.Check{newRule(config.CheckStartup, 1, 3), newRule(config.CheckReady, 1, 1), alive}, now)
	if h.Run != 3 || h.IsOnHold(2) || h.Checks[2].InARow != 2 || h.Checks[2].Rule.Period != time.Second {
		t.Errorf("after the reload: %+v", h)
	}
	if _, act := h.RecordResult(2, now, false, "x"); act != config.OnFailureRestart {
		t.Error("the bad answers before the reload don't count")
	}
}

func TestSkippedChecksHoldNothing(t *testing.T) {
	now := time.Unix(1000, 0)
	h := NewHealth([]config.Check{newRule(config.CheckStartup, 1, 3), newRule(config.CheckReady, 1, 3)}, 1, now)
	h.Skip(0, now, "no port")
	h.Skip(1, now, "no port")
	if ready, output := h.Ready(); !ready || output != "" {
		t.Errorf("ready %t, %q", ready, output)
	}
}

// FuzzHealth checks that a run is given up at most once, and only by a failing check that may do so. The verdict must follow
// the thresholds, and a check on hold must change nothing.
func FuzzHealth(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte("checks of a service that flaps"))
	f.Fuzz(func(t *testing.T, input []byte) {
		now := time.Unix(1000, 0)
		rules := []config.Check{newRule(config.CheckStartup, 1, 2), newRule(config.CheckReady, 2, 3), newRule(config.CheckAlive, 1, 3), newRule(config.CheckAlive, 1, 2)}
		rules[3].OnFailure, rules[3].Name = config.OnFailureReport, "report"
		h := NewHealth(rules, 1, now)
		given := 0
		for _, b := range input {
			now = now.Add(time.Duration(b) * 10 * time.Millisecond)
			i := int(b) % len(rules)
			before, held := fmt.Sprint(h), h.IsOnHold(i)
			switch b / 64 {
			case 3:
				h.RecordStart(i, now, float64(b)/256)
				if due := h.Checks[i].Due; due.Before(now.Add(rules[i].Period/2)) || due.After(now.Add(rules[i].Period)) {
					t.Fatalf("due %v after %v", due, now)
				}
			case 2:
				h.ReplaceRules(rules, now)
			default:
				changed, act := h.RecordResult(i, now, b/64 == 1, "a")
				c := h.Checks[i]
				switch {
				case held && (changed || act != "" || fmt.Sprint(h) != before):
					t.Fatal("a check on hold has changed something")
				case act != "" && (c.Verdict != Failing || c.Rule.Kind == config.CheckReady || !changed || c.InARow < c.Rule.FailureThreshold):
					t.Fatalf("%q after %+v", act, c)
				case act == config.OnFailureRestart:
					given++
				}
				if changed && c.Verdict == Passing && c.InARow < c.Rule.SuccessThreshold {
					t.Fatalf("it passes after %+v", c)
				}
			}
			if given > 1 || h.Abandoned != (given == 1) {
				t.Fatalf("given up %d times, %t", given, h.Abandoned)
			}
			if ready, _ := h.Ready(); ready && (!h.Started() || h.Checks[1].Verdict != Passing) {
				t.Fatal("it is ready though a check says not")
			}
		}
	})
}
