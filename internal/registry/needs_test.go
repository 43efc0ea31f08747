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

// TestWhatIsRegisteredDuringTheBootWaitsForIt: a slot of the agent started its gateway before the boot had removed what the last one had left.
func TestWhatIsRegisteredDuringTheBootWaitsForIt(t *testing.T) {
	r := New(Options{})
	r.AddProfile("decided")
	for _, tt := range []struct {
		unit           supervisor.Unit
		boot, profiles bool // what has come about
		want           string
	}{
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "coder"}, false, false, "[profiles]"},
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "coder"}, true, false, "[profiles]"}, // the volume is slow, and the boot goes on without
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "coder"}, true, true, "[]"},
		{supervisor.Unit{Kind: supervisor.KindGateway, Profile: "decided"}, false, false, "[]"}, // the boot itself starts it
		{supervisor.Unit{Kind: supervisor.KindService}, false, true, "[boot]"},
		{supervisor.Unit{Kind: supervisor.KindService}, true, false, "[]"},
		{supervisor.Unit{Kind: supervisor.KindHook}, false, false, "[]"}, // else the boot would wait for itself
	} {
		r.met[NeedBoot].Store(tt.boot)
		r.met[NeedProfiles].Store(tt.profiles)
		if got := fmt.Sprint(r.unmetNeeds(tt.unit)); got != tt.want {
			t.Errorf("a %s of %q, boot %v, profiles %v: waits for %s, not %s", tt.unit.Kind, tt.unit.Profile, tt.boot, tt.profiles, got, tt.want)
		}
	}
}

// TestThereIsOneDoorToTheSupervisor: what is registered by another way does not wait for the boot. A look of a check may be, because the
// checked service runs. The boot program is what the boot itself waits for. A program without PID 1 has no registry, and its runs go straight to its supervisor.
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
		"../container/health/health.go: err = h.o.Loop.Register(context.WithoutCancel(ctx), supervisor.Unit{",   // a look of a check
		"../container/prepare/bootprogram.go: err = loop.Register(context.WithoutCancel(ctx), supervisor.Unit{", // a task of the boot, which waits for nothing
		"../registry/registry.go: return r.Loop.RegisterSoon(ctx, &u, want)", "../registry/registry.go: registered := r.Loop.RegisterSoon(ctx, &u, want)",
	}
	if !slices.Equal(doors, want) {
		t.Errorf("services are registered by\n%s", strings.Join(doors, "\n"))
	}
}
