package tools

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/testkit"
)

// unconnectedTerminal returns a terminal whose control socket has no listener.
func unconnectedTerminal(t *testing.T) *cli.Terminal {
	t.Helper()
	dir := t.TempDir()
	return &cli.Terminal{In: os.Stdin, Out: &strings.Builder{}, Err: &strings.Builder{}, Env: func(name string) (string, bool) {
		return map[string]string{"HINIT_RUNTIME_DIR": dir, "HINIT_CONFIG": filepath.Join(dir, "none.yaml")}[name], name == "HINIT_RUNTIME_DIR"
	}}
}

func TestCompletionWithoutALivingHinit(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"", "init run status explain"}, // only the first words of the answer
		{"sto", "stop"},
		{"logs --le", "--level"},
		{"logs --level wa", "warning"},
		{"logs --level =", "trace debug info warning error critical"}, // bash splits --level= into two words
		{"logs --level=wa", "--level=warning"},
		{"logs co", ""},
		{"config ", "check schema"},
		{"config check ", ":files"},
		{"run -c ", ":files"},
		{"profile re", "rename"},
		{"profile delete ", ""},
		{"completion ", "bash zsh fish"},
		{"man sta", "status start"},
		{"sandbox ex", "exec"},
		{"kanban list --arch", "--archived"},
		{"no-such-verb ", ""},
		{"status --watch --js", "--json"},
	} {
		var got []string
		for _, one := range candidatesFor(unconnectedTerminal(t), allVerbs(), strings.Split(c.words, " ")) {
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

// The completion's table must have the verbs and flags in the help of each verb.
func TestEveryVerbIsDescribed(t *testing.T) {
	all, flags := commandsByName(), 0
	for _, v := range allVerbs() {
		d, is := all[v.Name]
		if !is {
			t.Errorf("the completion does not know %s", v.Name)
		}
		flags += len(d.Flags)
		if v.Args == "..." {
			continue
		}
		for _, f := range d.Flags {
			if f.Usage == "" {
				t.Errorf("%s of %s says nothing of itself", f.Name, v.Name)
			}
		}
		for _, name := range []string{"--json", "-f", "--all"} {
			listed := strings.Contains(v.Args+" ", name+" ") || strings.Contains(v.Args, name+"]")
			has := slices.ContainsFunc(d.Flags, func(f commandFlag) bool { return f.Name == name })
			if listed != has {
				t.Errorf("%s: the usage lists %s: %v; there is such a flag: %v", v.Name, name, listed, has)
			}
		}
	}
	if flags < 40 {
		t.Errorf("only %d flags found", flags)
	}
}

func TestEveryCommandHasItsHelpAndNoHelpIsLeftOver(t *testing.T) {
	files, err := filepath.Glob("../help/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var verbs []string
	for _, v := range allVerbs() {
		if v.Args != "..." && v.Name != "version" { // the summary of external commands and of version says everything
			verbs = append(verbs, filepath.Join("..", "help", v.Name+".txt"))
		}
	}
	slices.Sort(verbs)
	if !slices.Equal(files, verbs) {
		t.Errorf("there are texts %q for the commands %q", files, verbs)
	}
}

func TestManualPages(t *testing.T) {
	for _, v := range allVerbs() {
		page, err := manualPage("hinit-" + v.Name + ".1")
		if err != nil {
			t.Errorf("%s has no page: %v", v.Name, err)
		}
		for _, f := range commandsByName()[v.Name].Flags {
			if !strings.Contains(string(page), strings.ReplaceAll(f.Name, "-", `\-`)) {
				t.Errorf("the page of %s lacks %s", v.Name, f.Name)
			}
		}
		for line := range strings.Lines(string(page)) {
			if strings.HasPrefix(line, ".") && !slices.Contains([]string{".TH", ".SH", ".TP", ".B", ".BR", ".br", ".PP", ".I", `.\"`}, strings.Fields(line)[0]) {
				t.Errorf("the page of %s has the request %q", v.Name, line)
			}
		}
	}
}

func TestDidYouMean(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"stauts"}, `did you mean "status"?`},
		{[]string{"logs", "--levl", "error"}, `did you mean "--level"?`},
		{[]string{"logs", "--level", "wraning", "x"}, `did you mean "warning"?`},
		{[]string{"config", "chekc"}, `did you mean "check"?`},
		{[]string{"completion", "bahs"}, `did you mean "bash"?`},
		{[]string{"man", "stats"}, `did you mean "status"?`},
		{[]string{"profile", "lsit"}, `did you mean "list"?`},
	} {
		term := unconnectedTerminal(t)
		if code := term.Run(c.words, allVerbs()); code != cmdline.ExitUsage {
			t.Errorf("%q ends with code %d", c.words, code)
		}
		if output := term.Err.(*strings.Builder).String(); !strings.Contains(output, c.want) {
			t.Errorf("%q says %q, want %q in it", c.words, output, c.want)
		}
	}
}

// Root's `hinit manual` into a directory of an agent must not follow a link of the agent, and must not replace the target of
// the link.
func TestTheManualReplacesNoFileToWhichAnAgentsLinkLeads(t *testing.T) {
	testkit.NeedRoot(t)
	agents, other := t.TempDir(), t.TempDir()
	roots := filepath.Join(other, "passwd")
	if err := errors.Join(os.WriteFile(roots, []byte("root"), 0o600), os.Symlink(roots, agents+"/hinit.1"), os.Symlink(other, agents+"/man"),
		os.Lchown(agents+"/hinit.1", 12321, 12321), os.Lchown(agents+"/man", 12321, 12321), os.Chown(agents, 12321, 12321)); err != nil {
		t.Fatal(err)
	}
	if code := writeManualPages(unconnectedTerminal(t), agents); code != cmdline.ExitDone {
		t.Errorf("exit code %d", code)
	}
	if text, err := os.ReadFile(roots); string(text) != "root" {
		t.Errorf("the file of root's has %.40q (%v)", text, err)
	}
	if info, err := os.Lstat(agents + "/hinit.1"); err != nil || info.Mode() != 0o644 || info.Size() == 0 {
		t.Errorf("the page is %v (%v)", info, err)
	}
	if code := writeManualPages(unconnectedTerminal(t), agents+"/man"); code != cmdline.ExitFailed {
		t.Errorf("through a directory that is a link of the agent's: exit code %d", code)
	}
	if pages, _ := filepath.Glob(other + "/*.1"); len(pages) > 0 {
		t.Errorf("written through the link: %q", pages)
	}
}
