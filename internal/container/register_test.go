package container

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/gateways"
	"hinit/supervisor"
)

// TestWhatIsRegisteredDuringTheBootWaitsForIt: a slot of the agent started its gateway before the boot had removed what the last one had left.
func TestWhatIsRegisteredDuringTheBootWaitsForIt(t *testing.T) {
	c := new(container)
	c.keeper = gateways.New(gateways.Options{})
	c.keeper.Found("decided")
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
		c.metNeeds.boot.Store(tt.boot)
		c.metNeeds.profiles.Store(tt.profiles)
		if got := fmt.Sprint(c.unmet(tt.unit)); got != tt.want {
			t.Errorf("a %s of %q, boot %v, profiles %v: waits for %s, not %s", tt.unit.Kind, tt.unit.Profile, tt.boot, tt.profiles, got, tt.want)
		}
	}
}

// TestThereIsOneDoorToTheSupervisor: what is registered by another way does not wait for the boot. The CMD may, because it comes after it,
// and a check, because what it looks at runs.
func TestThereIsOneDoorToTheSupervisor(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	rooms, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var doors []string
	for _, name := range append(files, rooms...) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if (strings.Contains(line, "loop.Register") || strings.Contains(line, "Loop.Register(")) && !strings.Contains(line, "c.units.Cmd(") && !strings.Contains(line, "checkUnit(") {
				doors = append(doors, name+": "+strings.TrimSpace(line))
			}
		}
	}
	if len(doors) != 1 || !strings.Contains(doors[0], "registered := c.loop.RegisterSoon(ctx, u, want)") {
		t.Errorf("services are registered by\n%s", strings.Join(doors, "\n"))
	}
}
