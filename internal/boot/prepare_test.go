package boot

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/procstat"
	"hinit/internal/testkit"
)

func TestHangIsAbandoned(t *testing.T) { synctest.Test(t, testHangingPhase) }

func testHangingPhase(t *testing.T) {
	messages := &logRecorder{}
	o := Options{Home: "/data", Say: messages.say}
	o.PhaseBudget = 50 * time.Millisecond
	o = o.withDefaults()
	release, gone := make(chan struct{}), make(chan struct{})
	ran := map[string]bool{}
	ok := func(name string) func(context.Context, *Step) error {
		return func(context.Context, *Step) error { ran[name] = true; return nil }
	}
	start := time.Now()
	r := &Report{Env: map[string]string{}}
	r.Run(context.Background(), o, []Phase{
		{"first", true, ok("first")},
		{"hangs", true, func(ctx context.Context, s *Step) error {
			defer close(gone)
			s.Warn("before")
			<-release
			if ctx.Err() == nil {
				t.Error("the context of an abandoned phase has not ended")
			}
			s.Warn("after")
			s.Env["LATE"] = "x"
			return nil
		}},
		{"skipped", true, ok("skipped")},
		{"independent", false, ok("independent")},
	})
	if took := time.Since(start); took != o.PhaseBudget {
		t.Errorf("it was waited for %v", took)
	}
	close(release)
	<-gone
	if !ran["first"] || ran["skipped"] || !ran["independent"] {
		t.Errorf("ran %v", ran)
	}
	if len(r.Phases) != 3 || !strings.HasPrefix(r.Phases[1].Error, "abandoned: ") || !r.Unusable || len(r.Env) != 0 {
		t.Errorf("report is %+v", r)
	}
	if text := messages.text(); !strings.HasPrefix(text, "[stage2] Warning: before\n[stage2] Warning: /data does not answer: the boot step \"hangs\" was abandoned") || strings.Count(text, "\n") != 1 {
		t.Errorf("said %q", text)
	}
	if len(r.Warnings) != 2 {
		t.Errorf("warnings are %q", r.Warnings)
	}
}

func TestTotalBudget(t *testing.T) { synctest.Test(t, testTotalBudget) }

func testTotalBudget(t *testing.T) {
	o := Options{Home: "/data"}
	o.TotalBudget = 50 * time.Millisecond
	var gone []chan struct{}
	var phases []Phase
	for range 3 {
		done := make(chan struct{})
		gone = append(gone, done)
		phases = append(phases, Phase{"x", false, func(ctx context.Context, _ *Step) error {
			defer close(done)
			<-ctx.Done()
			return nil
		}})
	}
	start := time.Now()
	r := &Report{Env: map[string]string{}}
	r.Run(context.Background(), o, phases)
	for _, done := range gone {
		<-done
	}
	if len(r.Phases) != 3 || time.Since(start) != o.TotalBudget {
		t.Errorf("%+v after %s", r, time.Since(start))
	}
}

func TestModes(t *testing.T) {
	self, switches := fsutil.ProcessActor(), testAgentActor()
	full := procstat.Status("CapEff:\t000001ffffffffff\nNoNewPrivs:\t0\n")
	for _, tt := range []struct {
		name   string
		o      ContainerFacts
		status procstat.Status
		ro, no bool
		want   []string // the start of each expected line
		root   bool
	}{
		{"root", ContainerFacts{0, switches, agentUID, true, "hermes", false}, full, false, false, nil, true},
		{"agent", ContainerFacts{10000, switches, agentUID, true, "hermes", false}, full, false, false, []string{"started as uid 10000: no change"}, true},
		{"anybody", ContainerFacts{1234, switches, agentUID, true, "hermes", false}, full, false, false, []string{"started as uid 1234, which is not hermes"}, true},
		{"unknown", ContainerFacts{1234, self, 1234, false, "hermes", false}, full, false, false, []string{"started as uid 1234: no change"}, false},
		{"a pod", ContainerFacts{10000, self, agentUID, true, "hermes", true}, full, false, true, []string{"started as uid 10000: no change", "/run cannot"}, true},
		{"read-only", ContainerFacts{0, self, 0, true, "root", false}, full, true, true, []string{"the root file system", "/run cannot"}, true},
		{"no capabilities", ContainerFacts{0, switches, agentUID, true, "hermes", false}, "CapEff:\t0\nNoNewPrivs:\t1\n", false, false, []string{"no CAP_KILL", "no CAP_CHOWN", "no CAP_DAC_OVERRIDE", "no_new_privs"}, true},
	} {
		if tt.root && os.Geteuid() != 0 {
			continue
		}
		got := startRestrictions(tt.o, tt.status, tt.ro, tt.no)
		if len(got) != len(tt.want) {
			t.Errorf("%s: got %q", tt.name, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], tt.want[i]) || strings.Contains(got[i], "\n") {
				t.Errorf("%s: got %q, want %q", tt.name, got[i], tt.want[i])
			}
		}
	}
}

// An agent can make any number of homes. The boot must leave the homes that exceed its time to the repair.
func TestHomesBeyondTheTimeOfTheBootAreForTheRepair(t *testing.T) {
	testkit.NeedRoot(t)
	home := t.TempDir()
	must(t, os.Chmod(filepath.Dir(home), 0o755))
	must(t, os.MkdirAll(home+"/profiles/a", 0o755))
	o := Options{Home: home, User: "hermes", Agent: testAgentActor(), Say: func(LogLine) {}}
	d, err := fsutil.OpenNoLink(home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	work := (&preparer{Options: o, root: d}).newOwnershipPhase(NewStep(o.Say))
	work.deadline = time.Now().Add(-time.Hour)
	work.chownProfiles(d)
	if uid := uidOf(t, home+"/profiles/a"); uid != 0 {
		t.Errorf("a home beyond the time is uid %d's", uid)
	}
	work.deadline = time.Time{}
	work.chownProfiles(d)
	if uid := uidOf(t, home+"/profiles/a"); uid != agentUID {
		t.Errorf("the home is uid %d's", uid)
	}
}
