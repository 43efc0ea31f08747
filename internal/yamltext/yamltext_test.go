package yamltext

import (
	"fmt"
	"strings"
	"testing"
)

func TestAMistakeIsNamedWithItsLineAndItsUsualCause(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"a: b\n":                          "",
		"a: b\n---\nc: d\n":               "[{2 cannot read a second document; one file is one configuration}]",
		"a: b\nc: \xff\n":                 "[{2 cannot parse YAML: the byte 0xff in column 4 is no UTF-8; save the file as UTF-8}]",
		"a:b\nc: d\n":                     "[{2 cannot parse YAML: mapping values are not allowed in this context; line 1 needs a space after its colon}]",
		"a: *b\n":                         "[{1 cannot parse YAML: unknown anchor 'b' referenced; quote a text that begins with *}]",
		"a: [ls, *.txt]\n":                "[{1 cannot parse YAML: did not find expected alphabetic or numeric character; quote a text that begins with *}]",
		strings.Repeat("a,", 500_000):     "[{1 cannot read more than 100000 values; remove what is not needed here}]",
		"a: &a [*a]\nb: [*a, *a, *a]\n":   "[{1 cannot read more than 100000 values, and with its aliases (*name) the file has more; write out what is needed}]",
		"a:\n" + strings.Repeat(" ", 100): "",
		strings.Repeat("- abcdefghijklmnop\n", 60_000): "[{50000 cannot read more than 100000 values; remove what is not needed here}]",
	} {
		root, faults := Parse([]byte(text))
		got := ""
		if len(faults) > 0 {
			got = fmt.Sprint(faults)
		}
		if got != want {
			t.Errorf("%.40q: got %s, want %s", text, got, want)
		}
		if strings.HasPrefix(text, "a: b") && root == nil && !strings.Contains(text, "\xff") {
			t.Errorf("%.40q has no root", text)
		}
	}
}

// A file with many YAML directives must be refused. The parser needs a minute for 90,000 of them.
func TestDirectivesAreFew(t *testing.T) {
	for _, text := range []string{"%TAG !a! x\n", "\r%TAG !a! x", "%\x00T\x00A\x00G\x00\n\x00"} {
		if LineOfTooManyValues([]byte(strings.Repeat(text, 90))) != 0 || LineOfTooManyValues([]byte(strings.Repeat(text, 101))) == 0 {
			t.Errorf("%q: the limit is another one", text)
		}
	}
	if LineOfTooManyValues([]byte("a: "+strings.Repeat("100% ", 10_000))) != 0 {
		t.Error("a text has too many percent signs")
	}
}

// The line of a mistake is searched only in a short file. The search parses each beginning of the file, which takes seconds for
// a long one.
func TestALongFileWithAMistakeIsReadOnce(t *testing.T) {
	if line := findBrokenLine([]byte(strings.Repeat("- "+strings.Repeat("b", 140)+"\n", 400) + "]")); line != 0 {
		t.Errorf("line %d is searched for", line)
	}
}

// Nested lists must count as values. Each level has two bytes, and the parser needs 135 MB for a megabyte of them.
func TestAValueInAValueIsCounted(t *testing.T) {
	for _, text := range []string{"- ", "? "} {
		if LineOfTooManyValues([]byte(strings.Repeat(text, maxValues))) != 0 || LineOfTooManyValues([]byte(strings.Repeat(text, maxValues+1))) != 1 {
			t.Errorf("%q: the limit is another one", text)
		}
	}
}
