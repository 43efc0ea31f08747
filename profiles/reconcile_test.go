package profiles_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/profiles"
)

func bootTime() time.Time { return time.Date(2026, 6, 1, 12, 0, 0, 0, time.Local) }

func getenvOf(pairs ...string) func(string) string {
	return func(name string) string {
		for _, pair := range pairs {
			if key, value, _ := strings.Cut(pair, "="); key == name {
				return value
			}
		}
		return ""
	}
}

func TestReconcile(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "gateway_state.json", `{"desired_state":"running","gateway_state":"stopped"}`)
	profiles.Write(t, s, "state/gateway.lifecycle.json", `{"phase":"running","pid":3}`)
	for name, state := range map[string]string{
		"a-run": `{"gateway_state":"draining"}`, "b-stop": `{"desired_state":"stopped","gateway_state":"running"}`,
		"c-none": "", "d-bad": "{", "e-odd": `{"desired_state":"run ning\nx profile=y"}`, "f-start": `{"gateway_state":"starting"}`,
	} {
		profiles.Write(t, s, "profiles/"+name+"/SOUL.md", "")
		profiles.Write(t, s, "profiles/"+name+"/gateway.pid", "{}")
		profiles.Write(t, s, "profiles/"+name+"/processes.json", "[]")
		profiles.Write(t, s, "profiles/"+name+"/.gateway_state.json.1x2.tmp", "{")
		profiles.Write(t, s, "profiles/"+name+"/..gateway-planned-stop.json.1x2.tmp", "{")
		profiles.Write(t, s, "profiles/"+name+"/gateway.lock", "{}")
		if state != "" {
			profiles.Write(t, s, "profiles/"+name+"/gateway_state.json", state)
		}
	}
	profiles.Write(t, s, "gateway.pid", "{}")
	profiles.Write(t, s, "profiles/a-run/state/gateway.lifecycle.json", `{"phase":"exited","exit_code":0}`)
	profiles.Write(t, s, "profiles/b-stop/state/gateway.lifecycle.json", `{"phase":"odd"}`)
	profiles.Write(t, s, "profiles/BAD/SOUL.md", "")
	profiles.Write(t, s, "profiles/default/SOUL.md", "")
	profiles.Write(t, s, "profiles/nosoul/gateway_state.json", `{"desired_state":"running"}`)

	s.SetClock(bootTime)
	p := s.Reconcile(profiles.BootOptions{})
	want := []struct {
		name, prior, exit string
		start             bool
	}{
		{"default", "running", "unclean", true},
		{"a-run", "running", "clean", true},
		{"b-stop", "stopped", "unknown", false},
		{"c-none", "None", "unknown", false},
		{"d-bad", "None", "unknown", false},
		{"e-odd", "run ning\nx profile=y", "unknown", false},
		{"f-start", "starting", "unknown", false},
	}
	if len(p.Profiles) != len(want) || p.Topology.Multiplexed {
		t.Fatalf("plan %+v", p)
	}
	for i, w := range want {
		got := p.Profiles[i]
		if got.Profile.Name != w.name || got.PriorState != w.prior || got.PriorExit != w.exit || got.Start != w.start {
			t.Errorf("decision %+v, want %+v", got, w)
		}
		rel, _ := filepath.Rel(s.Root(), got.Profile.Home)
		for _, stale := range []string{"gateway.pid", "processes.json", ".gateway_state.json.1x2.tmp", "..gateway-planned-stop.json.1x2.tmp"} {
			if profiles.Exists(t, s, filepath.Join(rel, stale)) {
				t.Errorf("%s of %s is still there", stale, w.name)
			}
		}
		if w.name != profiles.Default && !profiles.Exists(t, s, filepath.Join(rel, "gateway.lock")) {
			t.Errorf("gateway.lock of %s is gone", w.name)
		}
	}
	wantLines := []string{
		"profile=default prior_state=running action=started",
		"profile=a-run prior_state=running action=started",
		"profile=b-stop prior_state=stopped action=registered",
		"profile=c-none prior_state=None action=registered",
		"profile=d-bad prior_state=None action=registered",
		`profile=e-odd prior_state="run\x20ning\nx\x20profile=y" action=registered`,
		"profile=f-start prior_state=starting action=registered",
	}
	log := strings.Split(strings.TrimSuffix(profiles.Read(t, s, "logs/container-boot.log"), "\n"), "\n")
	if len(log) != len(wantLines) || len(p.Lines) != len(wantLines) {
		t.Fatalf("log %q, lines %q", log, p.Lines)
	}
	format := regexp.MustCompile(`^2026-06-01T12:00:00[+-]\d{4} profile=\S+ prior_state=\S+ action=(started|registered) prior_exit=(clean|unclean|unknown)$`)
	for i, line := range wantLines {
		if p.Lines[i] != "reconcile: "+line {
			t.Errorf("line %q, want %q", p.Lines[i], line)
		}
		if !format.MatchString(log[i]) || !strings.Contains(log[i], line) || !strings.HasSuffix(log[i], "prior_exit="+want[i].exit) {
			t.Errorf("log line %q", log[i])
		}
	}
	if len(p.Warnings) > 0 {
		t.Errorf("the boot warns of what the Watcher reports: %v", p.Warnings)
	}
}

func TestMigration(t *testing.T) {
	for name, tt := range map[string]struct {
		o        profiles.BootOptions
		state    string
		migrates bool
		starts   bool
	}{
		"gateway run":        {profiles.BootOptions{CMDAsksForGateway: true}, "", true, true},
		"no CMD":             {profiles.BootOptions{}, "", false, false},
		"foreground":         {profiles.BootOptions{CMDIsGateway: true}, "", false, false},
		"has a state":        {profiles.BootOptions{CMDAsksForGateway: true}, `{"desired_state":"stopped"}`, false, false},
		"has a broken state": {profiles.BootOptions{CMDAsksForGateway: true}, `{`, false, false},
		"foreground, was up": {profiles.BootOptions{CMDIsGateway: true}, `{"gateway_state":"running"}`, false, false},
		"another CMD":        {profiles.BootOptions{}, `{"gateway_state":"running"}`, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			if tt.state != "" {
				profiles.Write(t, s, profiles.StateFile, tt.state)
			}
			s.SetClock(bootTime)
			p := s.Reconcile(tt.o)
			if p.Profiles[0].Start != tt.starts {
				t.Errorf("start %t, want %t", p.Profiles[0].Start, tt.starts)
			}
			want := tt.state
			if tt.migrates {
				want = fmt.Sprintf(`{"gateway_state": "running", "desired_state": "running", "timestamp": %d, "migrated_from": "legacy-container-cmd"}`+"\n", bootTime().Unix())
				assertMode(t, filepath.Join(s.Root(), profiles.StateFile), 0o644)
				if p.Profiles[0].PriorState != profiles.Running {
					t.Errorf("prior state %q", p.Profiles[0].PriorState)
				}
			}
			if want == "" && profiles.Exists(t, s, profiles.StateFile) {
				t.Error("a state was written")
			} else if want != "" && profiles.Read(t, s, profiles.StateFile) != want {
				t.Errorf("state %q, want %q", profiles.Read(t, s, profiles.StateFile), want)
			}
		})
	}
}

func TestDashboardContainer(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "gateway.pid", "{}")
	p := s.Reconcile(profiles.BootOptions{OnlyDashboard: true})
	if len(p.Profiles) != 0 || profiles.Exists(t, s, "logs") || !profiles.Exists(t, s, "gateway.pid") {
		t.Errorf("plan %+v", p)
	}
	if want := "reconcile: skipping (dashboard container — does not need per-profile gateways)"; !slices.Equal(p.Lines, []string{want}) {
		t.Errorf("lines %q", p.Lines)
	}
}

func TestReconcileMultiplex(t *testing.T) {
	for name, tt := range map[string]struct {
		config, env string
		on          bool
	}{
		"config":              {"gateway:\n  multiplex_profiles: true\n", "", true},
		"environment wins":    {"multiplex_profiles: false\n", "GATEWAY_MULTIPLEX_PROFILES=1", true},
		"and says off":        {"multiplex_profiles: true\n", "GATEWAY_MULTIPLEX_PROFILES=0", false},
		"blank":               {"multiplex_profiles: true\n", "GATEWAY_MULTIPLEX_PROFILES= ", true},
		"unknown word":        {"multiplex_profiles: true\n", "GATEWAY_MULTIPLEX_PROFILES=maybe", true},
		"config without it":   {"x: 1\n", "GATEWAY_MULTIPLEX_PROFILES=1", true},
		"no config":           {"", "GATEWAY_MULTIPLEX_PROFILES=on", true},
		"no config, env off":  {"", "GATEWAY_MULTIPLEX_PROFILES=no", false},
		"no config, no env":   {"", "", false},
		"config out of reach": {"link", "GATEWAY_MULTIPLEX_PROFILES=true", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			profiles.Write(t, s, "gateway_state.json", `{"desired_state":"running"}`)
			profiles.Write(t, s, "profiles/a/SOUL.md", "")
			profiles.Write(t, s, "profiles/a/gateway_state.json", `{"desired_state":"running"}`)
			if tt.config == "link" {
				if err := os.Symlink("/etc/passwd", filepath.Join(s.Root(), "config.yaml")); err != nil {
					t.Fatal(err)
				}
			} else if tt.config != "" {
				profiles.Write(t, s, "config.yaml", tt.config)
			}
			p := s.Reconcile(profiles.BootOptions{Getenv: getenvOf(tt.env)})
			if p.Topology.Multiplexed != tt.on || !p.Profiles[0].Start || p.Profiles[1].Start == tt.on {
				t.Errorf("plan %+v", p)
			}
			if p.Profiles[1].PriorState != profiles.Running {
				t.Errorf("prior state %q", p.Profiles[1].PriorState)
			}
		})
	}
}

func TestBootLogRotation(t *testing.T) {
	s := profiles.NewVolume(t)
	for _, size := range []int{profiles.BootLogMax - 1, profiles.BootLogMax} {
		old := strings.Repeat("x", size-1) + "\n"
		profiles.Write(t, s, "logs/container-boot.log", old)
		if p := s.Reconcile(profiles.BootOptions{}); len(p.Warnings) != 0 {
			t.Error(p.Warnings)
		}
		now := profiles.Read(t, s, "logs/container-boot.log")
		if size < profiles.BootLogMax {
			if len(now) <= size || profiles.Exists(t, s, "logs/container-boot.log.1") {
				t.Errorf("rotated at %d", size)
			}
			profiles.Write(t, s, "logs/container-boot.log.1", "older")
			continue
		}
		if strings.HasPrefix(now, "x") || profiles.Read(t, s, "logs/container-boot.log.1") != old {
			t.Errorf("not rotated at %d", size)
		}
	}
}

// TestReconcileGoesOn checks that the boot decides about all profiles in spite of missing or broken
// files.
func TestReconcileGoesOn(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "profiles/a/SOUL.md", "")
	profiles.Write(t, s, "profiles/a/gateway_state.json", `{"desired_state":"running"}`)
	profiles.Write(t, s, "profiles/a/gateway.pid/full", "a directory where a file should be")
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(s.Root(), "logs")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "new"), filepath.Join(s.Root(), profiles.StateFile)); err != nil {
		t.Fatal(err)
	}
	p := s.Reconcile(profiles.BootOptions{CMDAsksForGateway: true})
	if len(p.Profiles) != 2 || !p.Profiles[1].Start || len(p.Lines) != 2 {
		t.Errorf("plan %+v", p)
	}
	var all []string
	for _, w := range p.Warnings {
		all = append(all, w.String())
	}
	text := strings.Join(all, "\n")
	for _, want := range []string{"gateway.pid", "boot log"} {
		if !strings.Contains(text, want) {
			t.Errorf("no warning about %s in %q", want, text)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("a link was followed: %v, %v", left, err)
	}

	missing := profiles.Open(filepath.Join(s.Root(), "missing"), nil, "")
	p = missing.Reconcile(profiles.BootOptions{})
	if len(p.Profiles) != 1 || p.Profiles[0].Start || p.Profiles[0].PriorState != "None" {
		t.Errorf("without a volume: %+v", p)
	}
}

func BenchmarkReconcile200(b *testing.B) {
	s := profiles.Open(b.TempDir(), nil, "")
	for i := range 200 {
		home := filepath.Join(s.Root(), "profiles", fmt.Sprintf("p%03d", i))
		if err := os.MkdirAll(home, 0o755); err != nil {
			b.Fatal(err)
		}
		for file, content := range map[string]string{"SOUL.md": "", profiles.StateFile: profiles.ObservedState} {
			if err := os.WriteFile(filepath.Join(home, file), []byte(content), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		if p := s.Reconcile(profiles.BootOptions{}); len(p.Profiles) != 201 {
			b.Fatalf("%d profiles", len(p.Profiles))
		}
	}
}

func TestTheBootLogIsWrittenAfterTheDecisionsWereToldOf(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "profiles/coder/SOUL.md", "")
	var reported []profiles.Decision
	p := s.Reconcile(profiles.BootOptions{OnDecision: func(d profiles.Decision) {
		reported = append(reported, d)
		if _, err := os.Lstat(filepath.Join(s.Root(), "logs/container-boot.log")); err == nil {
			t.Error("the boot log says already what is only being decided")
		}
	}})
	if !slices.Equal(reported, p.Profiles) || len(reported) != 2 {
		t.Errorf("told %+v, decided %+v", reported, p.Profiles)
	}
	if _, err := os.Lstat(filepath.Join(s.Root(), "logs/container-boot.log")); err != nil {
		t.Error(err)
	}
}

// TestGatewaysNeedNotWaitForTheLastProfile checks that decisions are returned in groups, before all
// homes are examined.
func TestGatewaysNeedNotWaitForTheLastProfile(t *testing.T) {
	for _, multiplexed := range []bool{false, true} {
		s := profiles.NewVolume(t)
		for i := range 3 * profiles.DecisionBatch {
			profiles.Write(t, s, fmt.Sprintf("profiles/p%03d/SOUL.md", i), "")
			profiles.Write(t, s, fmt.Sprintf("profiles/p%03d/gateway.pid", i), "{}")
		}
		if multiplexed {
			profiles.Write(t, s, "config.yaml", "gateway:\n  multiplex_profiles: true\n")
		}
		last := filepath.Join(s.Root(), fmt.Sprintf("profiles/p%03d/gateway.pid", 3*profiles.DecisionBatch-1))
		told := 0
		p := s.Reconcile(profiles.BootOptions{OnDecision: func(d profiles.Decision) {
			told++
			_, err := os.Lstat(last)
			if cleared := err != nil; d.Profile.Name == profiles.Default && cleared != multiplexed {
				t.Errorf("multiplexed %v: the default gateway may start when the home of the last profile has been cleared: %v", multiplexed, cleared)
			}
		}})
		if told != len(p.Profiles) || p.Topology.Multiplexed != multiplexed {
			t.Errorf("%d of %d decisions were told; multiplexed %v, want %v", told, len(p.Profiles), p.Topology.Multiplexed, multiplexed)
		}
	}
}

// TestAHomeOfManyNamesHoldsUpNoStart checks that the boot does not read millions of names in one
// home before other gateways start.
func TestAHomeOfManyNamesHoldsUpNoStart(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "profiles/p/SOUL.md", "")
	for i := range 2 * fsutil.MaxDirNames { // all of these names take more than 4 MB
		if err := os.Symlink("x", filepath.Join(s.Root(), "profiles/p", fmt.Sprintf("%0240d", i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"gateway.pid", "processes.json"} {
		profiles.Write(t, s, "profiles/p/"+name, "{}")
	}
	profiles.Write(t, s, "profiles/p/gateway_state.json", `{"desired_state":"running"}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := s.Reconcile(profiles.BootOptions{})
	runtime.ReadMemStats(&after)
	if len(p.Profiles) != 2 || !p.Profiles[1].Start || len(p.Warnings) > 0 {
		t.Errorf("plan %+v, %+v", p.Profiles, p.Warnings)
	}
	if profiles.Exists(t, s, "profiles/p/gateway.pid") || profiles.Exists(t, s, "profiles/p/processes.json") {
		t.Error("a stale file is still there")
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 4<<20 {
		t.Errorf("the names took %d KB", taken>>10)
	}
}

// TestForgedTimesOfUseOnlyOrderTheStarts checks that forged last-use times change only the order of
// starts. Links and FIFOs in their place must not be followed.
func TestForgedTimesOfUseOnlyOrderTheStarts(t *testing.T) {
	s := profiles.NewVolume(t)
	elsewhere := filepath.Join(t.TempDir(), "root")
	put := map[string]func(path string) error{
		"fifo":   func(path string) error { return unix.Mkfifo(path, 0o666) },
		"link":   func(path string) error { return os.Symlink(elsewhere, path) },
		"loop":   func(path string) error { return os.Symlink(path, path) },
		"future": func(path string) error { return os.Mkdir(path, 0) },
		"past":   func(path string) error { return os.WriteFile(path, nil, 0) },
	}
	if err := errors.Join(os.WriteFile(elsewhere, nil, 0o600), os.Chtimes(elsewhere, time.Time{}, bootTime().AddDate(50, 0, 0))); err != nil {
		t.Fatal(err)
	}
	for name, file := range put {
		profiles.Write(t, s, "profiles/"+name+"/SOUL.md", "")
		profiles.Write(t, s, "profiles/"+name+"/gateway_state.json", `{"desired_state":"running"}`)
		for _, used := range []string{"state.db", "sessions"} {
			path := filepath.Join(s.Root(), "profiles", name, used)
			if err := file(path); err != nil {
				t.Fatal(err)
			}
			if years := map[string]int{"future": 400, "past": -400}[name]; years != 0 {
				_ = os.Chtimes(path, time.Time{}, bootTime().AddDate(years, 0, 0)) // Ignore the error: the file system may not permit this date.
			}
		}
	}
	p := s.Reconcile(profiles.BootOptions{})
	if len(p.Profiles) != len(put)+1 || len(p.Warnings) > 0 {
		t.Fatalf("plan %+v, %+v", p.Profiles, p.Warnings)
	}
	for _, d := range p.Profiles[1:] {
		if !d.Start || d.Profile.Name == "link" && d.LastUsed.After(time.Now()) {
			t.Errorf("%s starts: %v, used %v", d.Profile.Name, d.Start, d.LastUsed)
		}
	}
}

// TestTheBootRemovesHalfWrittenSecrets checks that a boot removes the half-written secrets of a
// killed one.
func TestTheBootRemovesHalfWrittenSecrets(t *testing.T) {
	s := profiles.NewVolume(t)
	left := []string{"..env.1x2y3z.tmp", ".auth.json.1x2y3z.tmp", ".config.yaml.1x2y3z.tmp", "..hinit-topology.1x2y3z.tmp"}
	kept := []string{".env", "auth.json", "env.tmp", "..envrc.1x.tmp", ".notes.1x.tmp"}
	for _, file := range slices.Concat(left, kept) {
		profiles.Write(t, s, file, "KEY=secret")
	}
	s.Reconcile(profiles.BootOptions{})
	for _, file := range left {
		if profiles.Exists(t, s, file) {
			t.Errorf("%s is left", file)
		}
	}
	for _, file := range kept {
		if !profiles.Exists(t, s, file) {
			t.Errorf("%s is gone", file)
		}
	}
}
