package registry

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hinit/supervisor"
)

// A service that is registered during the boot starts only after the boot. Otherwise a slot of the agent could start its
// gateway before the boot has removed the files of the last run.
func TestWhatIsRegisteredDuringTheBootWaitsForIt(t *testing.T) {
	r := New(Options{})
	r.AddProfile("decided")
	for _, tt := range []struct {
		unit           supervisor.Unit
		boot, profiles bool // finished steps of the boot
		want           string
	}{
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "coder"}, false, false, "[profiles]"},
		// the volume is slow, and the boot continues without the profiles
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "coder"}, true, false, "[profiles]"},
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "coder"}, true, true, "[]"},
		// the boot starts this gateway itself
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "decided"}, false, false, "[]"},
		{supervisor.Unit{Kind: supervisor.KindService}, false, true, "[boot]"},
		{supervisor.Unit{Kind: supervisor.KindService}, true, false, "[]"},
		// the boot waits for hooks, so a hook must not wait for the boot
		{supervisor.Unit{Kind: supervisor.KindHook}, false, false, "[]"},
	} {
		r.needsMet[NeedBoot].Store(tt.boot)
		r.needsMet[NeedProfiles].Store(tt.profiles)
		if got := fmt.Sprint(r.unmetNeeds(tt.unit)); got != tt.want {
			t.Errorf("a %s of %q, boot %v, profiles %v: waits for %s, not %s", tt.unit.Kind, tt.unit.Profile, tt.boot, tt.profiles, got, tt.want)
		}
	}
}

// All services must be registered through this package, which makes them wait for the boot. Exceptions: the run of a check,
// whose service is already up; the boot program, for which the boot waits; and programs without PID 1, which have no registry.
func TestThereIsOneDoorToTheSupervisor(t *testing.T) {
	var doors []string
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			call := strings.Contains(line, "oop.Register(") || strings.Contains(line, "oop.RegisterSoon(")
			if call && !strings.Contains(line, "b.loop.Register(") {
				doors = append(doors, name+": "+strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		// this call registers the run of a check
		"../container/health/health.go: err = h.options.Loop.Register(context.WithoutCancel(ctx), supervisor.Unit{",
		"../container/prepare/bootprogram.go: err = loop.Register(context.WithoutCancel(ctx), supervisor.Unit{",
		"../registry/registry.go: return r.Loop.RegisterSoon(ctx, &u, want)", "../registry/registry.go: registered := r.Loop.RegisterSoon(ctx, &u, want)",
	}
	if !slices.Equal(doors, want) {
		t.Errorf("services are registered by\n%s", strings.Join(doors, "\n"))
	}
}
