package tuning

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestTheStatusSaysWhoHasTakenEveryProcessNumber(t *testing.T) {
	dir := t.TempDir()
	const rest = " 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0\n"
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	services := map[string]int{"calm": 20, "bomb": 30, "down": 0}
	if output := processesUsedUp(dir, dir, func() map[string]int { return services }); output != "" {
		t.Errorf("without a limit: %s", output)
	}
	put("pids.max", "100\n")
	put("pids.current", "50\n")
	put("20/stat", "20 (calm) S 1 20 20"+rest)
	for pid := 30; pid < 60; pid++ {
		put(strconv.Itoa(pid)+"/stat", strconv.Itoa(pid)+" (a ) S 9) S 1 7 30"+rest)
	}
	put("70/stat", "gone")
	if output := processesUsedUp(dir, dir, func() map[string]int { return services }); output != "" {
		t.Errorf("half full: %s", output)
	}
	put("pids.current", "100\n")
	if output := processesUsedUp(dir, dir, func() map[string]int { return services }); !strings.Contains(output, "100 of the 100") || !strings.Contains(output, "bomb has 30 of them") || !strings.Contains(output, "hinit stop bomb") {
		t.Errorf("full: %s", output)
	}
	if output := processesUsedUp(dir, dir, func() map[string]int { return map[string]int{"down": 0} }); strings.Contains(output, "stop") {
		t.Errorf("full of nobody's: %s", output)
	}
	if output := processesUsedUp(dir, dir, func() map[string]int { return map[string]int{"calm": 20} }); strings.Contains(output, "calm") {
		t.Errorf("a service with one of a hundred is blamed: %s", output)
	}
	put("pids.max", "max\n")
	if output := processesUsedUp(dir, dir, func() map[string]int { return services }); output != "" {
		t.Errorf("with no limit: %s", output)
	}
}
