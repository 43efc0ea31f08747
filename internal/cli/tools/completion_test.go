package tools

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
)

// quiet is a terminal where no hinit answers.
func quiet(t *testing.T) *cli.Terminal {
	t.Helper()
	dir := t.TempDir()
	return &cli.Terminal{In: os.Stdin, Out: &strings.Builder{}, Err: &strings.Builder{}, Env: func(name string) (string, bool) {
		return map[string]string{"HINIT_RUNTIME_DIR": dir, "HINIT_CONFIG": filepath.Join(dir, "none.yaml")}[name], name == "HINIT_RUNTIME_DIR"
	}}
}

func TestCompletionWithoutALivingHinit(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"", "init run status explain"}, // and so on
		{"sto", "stop"},
		{"logs --le", "--level"},
		{"logs --level wa", "warning"},
		{"logs --level =", "trace debug info warning error critical"}, // bash splits --level=
		{"logs --level=wa", "--level=warning"},
		{"logs co", ""},
		{"config ", "check schema"},
		{"config check ", ":files"},
		{"run -c ", ":files"},
		{"profile re", "rename"},
		{"profile delete ", ""},
		{"completion ", "bash zsh fish"},
		{"man sta", "status start"},
		{"sandbox ", ""},
		{"no-such-verb ", ""},
		{"status --watch --js", "--json"},
	} {
		var got []string
		for _, one := range complete(quiet(t), table(), strings.Split(c.words, " ")) {
			got = append(got, one.word)
		}
		want := strings.Fields(c.want)
		if c.words == "" && len(got) > len(want) {
			got = got[:len(want)]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q completes to %q, want %q", c.words, got, want)
		}
	}
}

// TestEveryVerbCanBeDescribed: a verb that did something before it answers --help would do it for every key press.
func TestEveryVerbCanBeDescribed(t *testing.T) {
	flags := 0
	for _, v := range table() {
		d := describe(v)
		flags += len(d.flags)
		if v.Outside {
			continue
		}
		for _, f := range d.flags {
			if f.usage == "" {
				t.Errorf("%s of %s says nothing of itself", f.name, v.Name)
			}
		}
		for _, name := range []string{"--json", "-f", "--all"} {
			listed := strings.Contains(v.Args+" ", name+" ") || strings.Contains(v.Args, name+"]")
			has := slices.ContainsFunc(d.flags, func(f describedFlag) bool { return f.name == name })
			if listed != has {
				t.Errorf("%s: the usage lists %s: %v; there is such a flag: %v", v.Name, name, listed, has)
			}
		}
	}
	if flags < 40 {
		t.Errorf("only %d flags found", flags)
	}
}

func TestManualPages(t *testing.T) {
	for _, v := range table() {
		var b strings.Builder
		d := describe(v)
		manualOf(&b, d)
		page := b.String()
		for _, f := range d.flags {
			if !strings.Contains(page, roff(f.name)) {
				t.Errorf("the page of %s lacks %s", v.Name, f.name)
			}
		}
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, ".") && !slices.Contains([]string{".TH", ".SH", ".TP", ".B", ".BR", ".br", ".PP", ".I", `.\"`}, strings.Fields(line)[0]) {
				t.Errorf("the page of %s has the request %q", v.Name, line)
			}
		}
	}
	if got := roff(`.5 of a-b \n`); got != `\&.5 of a\-b \en` {
		t.Errorf("roff text: %q", got)
	}
}

func TestDidYouMean(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"stauts"}, `did you mean: hinit status`},
		{[]string{"logs", "--levl", "error"}, `did you mean "--level"?`},
		{[]string{"logs", "--level", "wraning", "x"}, `did you mean "warning"?`},
		{[]string{"config", "chekc"}, `did you mean "check"?`},
		{[]string{"completion", "bahs"}, `did you mean "bash"?`},
		{[]string{"man", "stats"}, `did you mean "status"?`},
		{[]string{"profile", "lsit"}, `did you mean "list"?`},
	} {
		term := quiet(t)
		if code := term.Run(c.words, table()); code != cmdline.WrongUsage {
			t.Errorf("%q ends with code %d", c.words, code)
		}
		if said := term.Err.(*strings.Builder).String(); !strings.Contains(said, c.want) {
			t.Errorf("%q says %q, want %q in it", c.words, said, c.want)
		}
	}
}
