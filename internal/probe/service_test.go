package probe

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/internal/testkit"
	"hinit/profiles"
)

// TestLogChecks checks rules for a line that must come, one that must not come, and one that must keep coming. Lines of
// an earlier run don't count.
func TestLogChecks(t *testing.T) {
	t.Parallel()
	var seen func([]byte)
	r := newRig(nil)
	defer close(r.ended)
	r.options.WatchLog = func(_ string, f func([]byte)) { seen = f }
	r.newChecker = makeChecker
	look := func(want config.LogCheck, verdict Verdict) *logCheck {
		c := config.Check{Name: "log", Kind: config.CheckReady, Type: config.CheckLog, Log: want, Period: time.Hour, SuccessThreshold: 1, FailureThreshold: 1}
		next := &target{Target: targetWith(c), name: "s", options: &r.options, logMatches: logMatchesOf([]config.Check{c}), rules: []config.Check{c}, runStart: time.Now()}
		next.health = NewHealth(next.rules, 1, time.Now())
		next.health.Checks[0].Verdict = verdict
		r.searchLines(next, nil)
		return newLogCheck(c, next)
	}
	expect := func(l *logCheck, want bool) {
		t.Helper()
		if good, answer := l.check(time.Time{}); good != want {
			t.Errorf("%+v: %t, %q", l.settings, good, answer)
		}
	}
	once := look(config.LogCheck{Contains: "listening", Matches: `on \d+$`}, Pending)
	expect(once, false)
	seen([]byte("listening on x\nsomething on 80\n"))
	expect(once, false)
	seen([]byte("a\nlistening on 80\r\nb\n"))
	expect(once, true)
	expect(once, true)
	once.notBefore.Store(sinceProgramStart(time.Now()))
	expect(once, true)
	expect(look(config.LogCheck{Contains: "x"}, Passing), true) // has passed in the previous hinit, so it stays passed

	never := look(config.LogCheck{Contains: "FATAL", MustNotAppear: true}, Pending)
	expect(never, true)
	seen([]byte("FATAL\n"))
	expect(never, false)
	expect(never, true)

	often := look(config.LogCheck{Contains: "tick", MaxGap: time.Minute}, Pending)
	expect(often, true)
	often.startedAt = time.Now().Add(-time.Hour)
	expect(often, false)
	seen([]byte("tick\n"))
	expect(often, true)
}

// TestASetClockFailsNoCheck checks that a change of the wall clock neither fails a check nor delays one. The clock of a resumed
// virtual machine jumps by an hour, and hinit must not restart all services then. After a clock is set back, hinit must not
// miss faults for an hour.
func TestASetClockFailsNoCheck(t *testing.T) {
	t.Parallel()
	within := &logCheck{match: new(logMatch), settings: config.LogCheck{MaxGap: time.Minute}, startedAt: testkit.AfterClockStep(time.Now(), time.Hour)}
	if good, answer := within.check(time.Time{}); !good {
		t.Errorf("after the clock was set forward: %q", answer)
	}
	var seen func([]byte)
	r := newRig(nil)
	defer close(r.ended)
	r.options.WatchLog = func(_ string, f func([]byte)) { seen = f }
	c := config.Check{Type: config.CheckLog, Log: config.LogCheck{Contains: "ready"}, SuccessThreshold: 1, FailureThreshold: 1}
	next := &target{Target: targetWith(c), options: &r.options, logMatches: logMatchesOf([]config.Check{c}), rules: []config.Check{c}, previousRunEnd: testkit.AfterClockStep(time.Now(), -time.Hour)}
	next.health = NewHealth(next.rules, 1, time.Now())
	r.searchLines(next, nil)
	line := newLogCheck(c, next)
	seen([]byte("ready\n"))
	if good, answer := line.check(time.Time{}); !good {
		t.Errorf("after the clock was set back: %q", answer)
	}
	synctest.Test(t, func(t *testing.T) {
		future := profiles.State{Exists: true, Heartbeat: time.Now().Add(time.Hour)} // in the future: the clock was set back later
		s := &stateCheck{diskCall: diskCall{timeout: time.Minute}, settings: config.StateCheck{MaxHeartbeatAge: time.Minute}, read: func() (profiles.State, error) { return future, nil }}
		for _, want := range []bool{true, false} {
			if good, answer := s.check(time.Now().Add(time.Minute)); good != want {
				t.Errorf("a heartbeat in the future: %q", answer)
			}
			time.Sleep(10 * time.Minute)
		}
	})
}

func TestStateChecks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		want config.StateCheck
		st   profiles.State
		err  error
		good bool
	}{
		{config.StateCheck{MaxHeartbeatAge: time.Minute}, profiles.State{Exists: true, Written: now}, nil, true},
		{config.StateCheck{MaxHeartbeatAge: time.Minute}, profiles.State{Exists: true, Written: now.Add(-time.Hour)}, nil, false},
		{config.StateCheck{MaxHeartbeatAge: time.Minute}, profiles.State{}, nil, false},
		{config.StateCheck{MaxHeartbeatAge: time.Minute}, profiles.State{}, errors.New("no volume"), false},
		{config.StateCheck{Platforms: "any"}, profiles.State{Exists: true, Platforms: 2, TroubledPlatforms: 1}, nil, true},
		{config.StateCheck{Platforms: "any"}, profiles.State{Exists: true, Platforms: 2, TroubledPlatforms: 2}, nil, false},
		{config.StateCheck{Platforms: "any"}, profiles.State{Exists: true}, nil, false},
		{config.StateCheck{Platforms: "all"}, profiles.State{Exists: true, Platforms: 2, TroubledPlatforms: 1}, nil, false},
		{config.StateCheck{Platforms: "all"}, profiles.State{Exists: true, Platforms: 2}, nil, true},
	} {
		s := &stateCheck{diskCall: diskCall{timeout: time.Minute}, settings: tt.want, read: func() (profiles.State, error) { return tt.st, tt.err }}
		if good, answer := s.check(now.Add(time.Minute)); good != tt.good {
			t.Errorf("%+v of %+v: %t, %q", tt.want, tt.st, good, answer)
		}
	}
}

// TestAnExecCheckRunsAsItsService checks that the command of a check gets the service's user, priority, umask and
// limits, and the variables of its environment files.
func TestAnExecCheckRunsAsItsService(t *testing.T) {
	t.Parallel()
	own := proc.Spec{
		Argv: []string{"server"}, Env: []string{"A=1"}, Limits: []proc.Limit{{Resource: 7}},
		Setup: proc.Setup{Nice: 5, IOClass: proc.IOIdle, CPUs: "0", Umask: "077", NoNewPrivs: true, EnvFiles: []string{"/run/secrets/db"}, ProtectedVars: []string{"A"}, RefuseLinks: true, Cgroup: "/g", CgroupWrites: []string{"1:max"}},
	}
	e := newExecCheck(config.Check{Command: []string{"ask"}}, &target{Target: Target{Spec: own, Expand: strings.Clone}, options: &Options{}})
	want := own
	// The command is not in the group of the service, because a group with two runs can't be killed as a whole.
	want.Argv, want.Setup.Cgroup, want.Setup.CgroupWrites = []string{"ask"}, "", nil
	if !e.spec.StartsTheSame(want) {
		t.Errorf("it runs as %+v, want %+v", e.spec, want)
	}
}

// TestExecChecks checks that the answer of an exec check is the exit code with the last line, and that a command that
// takes too long gives no answer.
func TestExecChecks(t *testing.T) {
	t.Parallel()
	e := &execCheck{timeout: 20 * time.Millisecond, run: func(ctx context.Context, _ string, _ proc.Spec) (int, string, error) {
		return 3, "no route", nil
	}}
	if good, answer := e.check(time.Now().Add(time.Minute)); good || answer != "exit code 3: no route" {
		t.Errorf("%t, %q", good, answer)
	}
	e.run = func(ctx context.Context, _ string, _ proc.Spec) (int, string, error) {
		<-ctx.Done()
		return 0, "", ctx.Err()
	}
	if good, answer := e.check(time.Now().Add(e.timeout)); good || answer != "no answer within 20ms" {
		t.Errorf("%t, %q", good, answer)
	}
}

// A check whose process exits with code 0 in time must succeed, even if a process that it has left behind holds its output
// open.
func TestAnExecCheckThatLeavesAProcessHasItsOwnExitCode(t *testing.T) {
	e := &execCheck{timeout: time.Millisecond, run: func(ctx context.Context, _ string, _ proc.Spec) (int, string, error) {
		<-ctx.Done() // run reads the output until the timeout
		return 0, "fine", nil
	}}
	if good, answer := e.check(time.Now().Add(e.timeout)); !good || answer != "exit code 0: fine" {
		t.Errorf("good: %v, %q", good, answer)
	}
}
