package script_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestACommandInitialisesLittle limits the packages and allocations before main, for which every command waits. Counts
// are the same on each run; times are not. Make a table, a regular expression or a template that only one command needs
// when it is needed (sync.OnceValue).
func TestACommandInitialisesLittle(t *testing.T) {
	t.Parallel()
	// oursBytes counts hinit's own packages. The limits are a little above the measured values.
	const packages, bytes, oursBytes = 115, 105_000, 15_000
	cmd := exec.Command(filepath.Join(built.bin, "hinit"), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	count, sum, ours := 0, 0, 0
	var list []string
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) @.* (\d+) bytes, \d+ allocs$`).FindAllSubmatch(out, -1) {
		n, _ := strconv.Atoi(string(m[2])) // This group consists of digits.
		count++
		sum += n
		if strings.HasPrefix(string(m[1]), "hinit/") {
			ours += n
			list = append(list, string(m[0]))
		}
	}
	t.Logf("%d packages allocate %d bytes, %d of these by hinit's own", count, sum, ours)
	if count < 50 || count > packages || sum > bytes || ours > oursBytes {
		t.Errorf("at most %d packages, %d bytes and %d of hinit's own are allowed:\n%s", packages, bytes, oursBytes, strings.Join(list, "\n"))
	}
}
