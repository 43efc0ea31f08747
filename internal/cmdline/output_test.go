package cmdline

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestALogKeepsItsColoursOnATerminalAndNothingElse(t *testing.T) {
	for line, want := range map[string]string{
		"plain\ttext":                           "plain\ttext",
		"\x1b[1;31mred\x1b[0m done":             "\x1b[1;31mred\x1b[0m done\x1b[0m",
		"\x1b[38:5:200mx":                       "\x1b[38:5:200mx\x1b[0m",
		"\x1b[2J\x1b[H":                         `\x1b[2J\x1b[H`,
		"\x1b]52;c;bHM=\a":                      `\x1b]52;c;bHM=\a`,
		"50%\r100%":                             `50%\r100%`,
		"\x1b[" + strings.Repeat("1", 99) + "m": `\x1b[` + strings.Repeat("1", 99) + "m",
	} {
		if got := EscapeOutput(line); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

func TestAJSONDocumentHasNothingThatATerminalObeys(t *testing.T) {
	for text, want := range map[string]string{
		`plain ü`: `"plain ü"`, "\u202e\u200b": `"\u202e\u200b"`, "e\u0301\u2800": `"e\u0301\u2800"`, "\U000e0001 \ufffd": `"\udb40\udc01 ` + "\ufffd" + `"`,
	} {
		before, _ := json.Marshal(text)
		got := EscapeJSON(before)
		if string(got) != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
		var again string
		if err := json.Unmarshal(got, &again); err != nil || again != text {
			t.Errorf("%q became %q, %v", text, again, err)
		}
	}
}

// Terminal sequences must be escaped even if a program writes them in two parts, or in a line longer than the buffer.
func TestAProgramThatWritesPiecesControlsNoTerminal(t *testing.T) {
	var out strings.Builder
	w := &lineWriter{output: &out}
	for _, part := range []string{"a\t\x1b[31mred", "\n\x1b]0;ow", "ned\a\n", strings.Repeat("x", maxBufferedLine+1), "\x1b[2J\n"} {
		if n, err := w.Write([]byte(part)); err != nil || n != len(part) {
			t.Fatal(n, err)
		}
	}
	if want := "a\t\x1b[31mred\x1b[0m\n\\x1b]0;owned\\a\n" + strings.Repeat("x", maxBufferedLine+1) + "\\x1b[2J\n"; out.String() != want {
		t.Errorf("%.100q is shown", out.String())
	}
	if to, end := TerminalWriter(&out); to != &out || end == nil {
		t.Error("what goes to no terminal is changed")
	}
}
