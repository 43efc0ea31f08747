package imports

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each key in the tables of the how-tos must be in an example, so that a golden file shows its result.
func TestEachRowOfThePagesIsTried(t *testing.T) {
	examples := map[string]struct {
		page   string
		column int // column of the keys in the table
		names  []string
	}{
		"supervisord":     {"another-supervisor", 2, []string{"supervisord.conf", "conf.d", "more/supervisord.conf"}},
		"process-compose": {"another-supervisor", 3, []string{"process-compose.yaml", "more/process-compose.yaml", "more/.env"}},
		"pebble":          {"another-supervisor", 4, []string{"layers", "more/layers"}},
		"s6":              {"s6", 1, []string{"scandir", "source", "more/rc"}},
	}
	word := regexp.MustCompile("`([^`]+)`")
	aside := regexp.MustCompile(`\([^|]*?\)|;[^|]*`) // remark about a key in a cell of a table
	for who, e := range examples {
		have := ""
		for _, name := range e.names {
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
		text, err := os.ReadFile("../../docs/how-to/move-from-" + e.page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		tables, _, _ := strings.Cut(string(text), "## Commands")
		if e.column > 1 {
			tables, _, _ = strings.Cut(tables, "## What works")
		}
		for line := range strings.Lines(tables) {
			if !strings.HasPrefix(line, "| ") {
				continue
			}
			cell := strings.Split(line, "|")[e.column]
			if e.column > 1 {
				cell = aside.ReplaceAllString(strings.ReplaceAll(cell, "%(", "%"), "")
			}
			for _, m := range word.FindAllStringSubmatch(cell, -1) {
				rows++
				for part := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return strings.ContainsRune(" .:[]{}()%=/", r) }) {
					if part != strings.ToUpper(part) && part != "x" && part != "s" && !strings.Contains(have, strings.TrimSuffix(part, "…")) {
						t.Errorf("move-from-%s.md tells of %s of %s, which no example has", e.page, m[1], who)
					}
				}
			}
		}
		if rows < 10 {
			t.Errorf("move-from-%s.md has %d keys of %s", e.page, rows, who)
		}
	}
}

// The unit in the how-to must give the result in the how-to.
func TestTheUnitOnThePageIsImportedAsShown(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/move-from-another-supervisor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Units of systemd")
	unit := regexp.MustCompile("(?s)```ini\n(.*?)```").FindStringSubmatch(section)
	shown := regexp.MustCompile("(?s)```text\n\\$ hinit import [^\n]*\n(.*?)```").FindStringSubmatch(section)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("ssh.service", []byte(unit[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := Convert("ssh.service", "")
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, n := range result.Notes {
		got += n.String() + "\n"
	}
	if got += "$ cat hinit.yaml\n" + string(result.YAML); got != shown[1] {
		t.Errorf("the page shows\n%s\nthe import says\n%s", shown[1], got)
	}
}
