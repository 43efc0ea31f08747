package pages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSame(t *testing.T) {
	for _, c := range []struct {
		name, want, got string
		same            bool
	}{
		{"numbers", "up (pid 64), 1.2s ago\n", "up (pid 7), 350ms ago\n", true},
		{"times", "SINCE 1m3s", "SINCE 2s", true},
		{"columns", "NAME  STATE\ncoder  up\n", "NAME   STATE\ncoder    up\n", true},
		{"order", "a\nb\n", "b\na\n", true},
		{"another word", "coder is up", "coder is down", false},
		{"a line more", "a\n", "a\nb\n", false},
		{"a line less", "a\nb\n", "a\n", false},
		{"twice", "a\na\n", "a\n", false},
		{"the id of a container", "up\n", strings.Repeat("0a", 32) + "\nup\n", true},
		{"another holder", "another hinit, by its note 9be030ba554f since", "another hinit, by its note 565e88ac8d82 since", true},
		{"any lines", "a\n...\n", "a\nb\nc\n", true},
		{"any text", "{\"pid\":27,...}", "{\"pid\":1,\"x\":\"y\"}", true},
		{"versions", "hinit devel (unknown revision) go1.26.8, pid 1", "hinit devel (abc, modified) go1.27, pid 3", true},
	} {
		if err := Compare(c.want, c.got); (err == nil) != c.same {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSteps(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# A page\n\n```text\n$ one\nfirst\nsecond\n$ two\n```\n\n" + Unchecked + "\n\n```text\n$ three\n```\n\n```yaml\na: b\n```\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	blocks, err := Read(page)
	if err != nil {
		t.Fatal(err)
	}
	steps := Steps(blocks)
	if len(steps) != 3 || steps[0].Want != "first\nsecond\n" || steps[0].Line != 4 || !steps[1].Checked || steps[2].Checked {
		t.Errorf("%+v", steps)
	}
	if yaml, err := FirstWith(blocks, "yaml", "a"); err != nil || yaml != "a: b\n" {
		t.Errorf("%q, %v", yaml, err)
	}
}
