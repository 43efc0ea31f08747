package cli

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Every command initializes every package of this module, even unused ones. So initialisation is bounded: no expression is
// compiled and no table is filled before a verb needs it.
func TestNoPackageOfHinitMakesMuchBeforeMain(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const most = 8 << 10
	seen := false
	for line := range strings.Lines(string(out)) { // init hinit/internal/cli @2.1 ms, 0.08 ms clock, 46336 bytes, 408 allocs
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != "init" || !strings.HasPrefix(f[1], "hinit/") {
			continue
		}
		seen = true
		if n, err := strconv.Atoi(f[7]); err != nil || n > most {
			t.Errorf("package %s makes %d bytes before main (%v), and %d are allowed", f[1], n, err, most)
		}
	}
	if !seen {
		t.Errorf("the runtime tells of no package of hinit:\n%s", out)
	}
}
