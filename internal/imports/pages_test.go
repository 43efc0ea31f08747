package imports

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEachRowOfThePagesIsTried: every key in the tables of the how-tos stands in an example, so that its golden file shows what becomes
// of it.
func TestEachRowOfThePagesIsTried(t *testing.T) {
	examples := map[string][]string{
		"supervisord": {"supervisord.conf", "conf.d", "more/supervisord.conf"}, "process-compose": {"process-compose.yaml", "more/process-compose.yaml", "more/.env"},
		"pebble": {"layers", "more/layers"}, "s6": {"scandir", "source", "more/rc"},
	}
	word := regexp.MustCompile("`([^`]+)`")
	for page, names := range examples {
		have := ""
		for _, name := range names {
			err := filepath.WalkDir(filepath.Join("testdata", name), func(path string, d fs.DirEntry, err error) error {
				have += path + "\n"
				if err != nil || d.IsDir() {
					return err
				}
				text, err := os.ReadFile(path)
				have += string(text)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile("../../docs/how-to/move-from-" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		tables, _, _ := strings.Cut(string(text), "## Commands")
		for line := range strings.Lines(tables) {
			if !strings.HasPrefix(line, "| ") {
				continue
			}
			for _, m := range word.FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
				rows++
				for part := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return strings.ContainsRune(" .:[]{}()%=/", r) }) {
					if part != strings.ToUpper(part) && part != "x" && part != "s" && !strings.Contains(have, strings.TrimSuffix(part, "…")) {
						t.Errorf("move-from-%s.md tells of %s, which no example has", page, m[1])
					}
				}
			}
		}
		if rows < 10 {
			t.Errorf("move-from-%s.md has %d keys", page, rows)
		}
	}
}
