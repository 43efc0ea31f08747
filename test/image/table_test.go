package image

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryRowHasItsTests checks that the test functions that the table names exist.
func TestEveryRowHasItsTests(t *testing.T) {
	found := make(map[string]bool)
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "func Test"); ok {
				name, _, _ := strings.Cut(rest, "(")
				found["Test"+name] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Rows {
		if len(r.Tests) == 0 {
			t.Errorf("no test: %s", r.Behaviour)
		}
		for _, name := range r.Tests {
			if !found[name] {
				t.Errorf("there is no %s: %s", name, r.Behaviour)
			}
		}
	}
}
