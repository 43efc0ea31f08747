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

// TestACommandInitialisesLittle: every command waits for the initialisation of all packages in the binary. Counts are the same on each run;
// times are not. A table, a regular expression or a template that only one command needs is made when it is needed (sync.OnceValue).
func TestACommandInitialisesLittle(t *testing.T) {
	t.Parallel()
	const packages, bytes, oursBytes = 115, 105_000, 15_000 // with hinit's own packages; the counts were 107, 94,160 and 13,096 when this was written
	cmd := exec.Command(filepath.Join(built.bin, "hinit"), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	count, sum, ours := 0, 0, 0
	var list []string
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) @.* (\d+) bytes, \d+ allocs$`).FindAllSubmatch(out, -1) {
		n, _ := strconv.Atoi(string(m[2])) // digits alone
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
