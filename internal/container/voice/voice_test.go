package voice

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestAWarningIsSaidOnceAndKept(t *testing.T) {
	var out strings.Builder
	var kept []string
	v := New(func() io.Writer { return &out }, func(warning string) bool {
		if slices.Contains(kept, warning) {
			return false
		}
		kept = append(kept, warning)
		return true
	})
	v.Warn("no room for %s", "two\nlines")
	v.Warn("no room for %s", "two\nlines")
	v.Say("%d settings changed", 2)
	v.Line("as it is: 100%d")
	const want = "[hinit] warning: no room for two"
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], want) || lines[1] != "[hinit] 2 settings changed" || lines[2] != "as it is: 100%d" {
		t.Errorf("it said\n%s", out.String())
	}
	if len(kept) != 1 || strings.Contains(kept[0], "\n") {
		t.Errorf("it kept %q", kept)
	}
}
