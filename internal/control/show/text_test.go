package show

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"hinit/client"
)

func TestNothingInANameMovesATerminal(t *testing.T) {
	for text, want := range map[string]string{
		"gateway-coder":                    "gateway-coder",
		"gateway-ü":                        "gateway-ü",
		"名前":                               "名前",
		"a\nb\rc\td":                       `a\nb\rc\td`,
		"\x1b]0;owned\a":                   `\x1b]0;owned\a`,
		"\x1b[31mred":                      `\x1b[31mred`,
		"\u009b2J":                         `\u009b2J`,
		"\x9b2J\xff":                       `\x9b2J\xff`,
		"a\u202eb\u2066\u200b\ufeff\u00ad": `a\u202eb\u2066\u200b\ufeff\u00ad`,
		"\u2028\u2029\u00a0\U000e0041":     `\u2028\u2029\u00a0\U000e0041`,
		"\u0301a":                          `\u0301a`,
		"e\u0301":                          "e\u0301",
		"e\u0301\u0301\u0301":              "e\u0301\u0301" + `\u0301`,
		"\u3164\u2800":                     `\u3164\u2800`,
		"\x7f":                             `\x7f`,
	} {
		if got := EscapeLine(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestANameIsNotWiderThanItsColumn(t *testing.T) {
	for _, name := range []string{strings.Repeat("x", 251), strings.Repeat("名", 80), strings.Repeat("\x1b", 200), strings.Repeat("e\u0301", 100)} {
		if got := EscapeName(name); textColumns(got) > maxNameWidth || textColumns(got) < maxNameWidth-2 || !strings.HasSuffix(got, "…") {
			t.Errorf("%q is %d columns wide", got, textColumns(got))
		}
	}
	if got := EscapeName(strings.Repeat("x", 40)); got != strings.Repeat("x", 40) {
		t.Errorf("%q was cut", got)
	}
}

// findTerminalControl returns the first character of the text that controls a terminal, or "".
func findTerminalControl(text string) (what string) {
	marks := 0
	for i, r := range text {
		switch {
		case r == '\n':
			marks = 0
			continue
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd"):
			return "no UTF-8"
		case unicode.In(r, unicode.C, unicode.Zl, unicode.Zp):
			return string(r)
		case unicode.Is(unicode.M, r):
			if marks++; marks > maxCombiningMarks {
				return "a heap of marks"
			}
		default:
			marks = 0
		}
	}
	return ""
}

func FuzzNames(f *testing.F) {
	for _, name := range []string{"coder", "a\nb", "\x1b[2J", "\u202e", "\xff\xc2", "\u0301\u0301\u0301", "\u009b", strings.Repeat("\u0483x", 70)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		code := 1
		s := client.Service{
			Name: name, Profile: name, State: "down", Want: "up", Reason: name, Since: time.Now(), Needs: []string{name},
			LastExit: &client.Exit{Cause: "spawn", Error: name, EndedAt: time.Now()},
		}
		waiting, exited := s, s
		waiting.State, exited.LastExit = "waiting", &client.Exit{Code: &code, Cause: name}
		st := client.Status{
			Init: client.Init{
				Version: "1", Home: name, Warnings: []string{name}, Boot: []client.BootStep{{Name: name}}, Cmd: &client.Cmd{Argv: []string{name, name}},
				Repair: &client.Repair{Directory: name},
			},
			Services: []client.Service{s, waiting, exited},
		}
		for _, named := range []bool{false, true} {
			got := string(StatusTable(st, Layout{NamesGiven: named, Verbose: true}))
			if what := findTerminalControl(got); what != "" {
				t.Errorf("status has %q in it: %q", what, got)
			}
			if lines := strings.Count(got, "\n"); lines != 9 {
				t.Errorf("status has %d lines: %q", lines, got)
			}
			if EscapeText(got) != got {
				t.Errorf("escaped twice, it is another text: %q", got)
			}
		}
		for _, got := range []string{EscapeLine(name), EscapeName(name), CommandResultText(s)} {
			if what := findTerminalControl(got); what != "" || strings.Contains(got, "\n") {
				t.Errorf("%q has %q in it", got, what)
			}
		}
		if got := EscapeName(name); textColumns(got) > maxNameWidth {
			t.Errorf("%q is %d columns wide", got, textColumns(got))
		}
	})
}
