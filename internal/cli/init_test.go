package cli

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// No package of hinit may allocate more than 8 KiB before main: each command initializes every package of the module, even
// unused ones. Compile expressions and fill tables when a verb first needs them.
func TestNoPackageOfHinitMakesMuchBeforeMain(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const limit = 8 << 10
	seen := false
	// Format: init hinit/internal/cli @2.1 ms, 0.08 ms clock, 46336 bytes, 408 allocs
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != "init" || !strings.HasPrefix(f[1], "hinit/") {
			continue
		}
		seen = true
		if n, err := strconv.Atoi(f[7]); err != nil || n > limit {
			t.Errorf("package %s makes %d bytes before main (%v), and %d are allowed", f[1], n, err, limit)
		}
	}
	if !seen {
		t.Errorf("the runtime tells of no package of hinit:\n%s", out)
	}
}
