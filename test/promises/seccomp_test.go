package promises_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestASeccompProfileThatForbidsToWait checks that hinit refuses to run under a seccomp profile
// without wait calls, and names the call.
func TestASeccompProfileThatForbidsToWait(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	for name, call := range map[string]uint{"waitid": unix.SYS_WAITID, "wait4": unix.SYS_WAIT4} {
		b := newTestContainer(t, setup{stageConfig: stageConfig{Refused: []uint{call}}})
		b.cmdline = []string{"sh", "-c", "echo never"}
		b.start()
		if code := b.wait(patience); code != 1 {
			t.Errorf("without %s it ended with code %d", name, code)
		}
		output, err := os.ReadFile(b.path("err"))
		want := fmt.Sprintf("[hinit] cannot wait for processes: %s: operation not permitted; allow waitid and wait4 in the seccomp profile", name)
		if err != nil || !strings.HasPrefix(string(output), want) || strings.Count(string(output), "\n") != 1 {
			t.Errorf("without %s it says %q, %v", name, output, err)
		}
		if out, err := os.ReadFile(b.path("out")); err != nil || len(out) > 0 {
			t.Errorf("without %s it starts the CMD: %q, %v", name, out, err)
		}
		sheet.add("faults", 1)
	}
}
