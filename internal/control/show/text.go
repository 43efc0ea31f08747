package show

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// nameWidth is the maximum width of a name in a table, in columns.
	nameWidth = 40
	// phraseWidth is the maximum width of a cell with words, in columns.
	phraseWidth = 120
	// maxMarks is the maximum number of combining marks on a letter. Real languages need two.
	maxMarks = 2
	// blanks are characters that Unicode classifies as letters or symbols although they are invisible.
	blanks = "\u115f\u1160\u2800\u3164\uffa0"
)

// Line makes text that the agent may have chosen safe as one line on a terminal or in a log. Characters that are invisible, move
// the cursor, change the direction of writing or pile up are escaped as in Go: \n, \x1b, \u202e, and \xff for invalid UTF-8.
func Line(text string) string {
	if plainText(text) {
		return text
	}
	var b strings.Builder
	escape(&b, text)
	return b.String()
}

// Text makes each line of a text safe to print, as [Line] does.
func Text(text string) string {
	if plainText(strings.ReplaceAll(text, "\n", "")) {
		return text
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Line(lines[i])
	}
	return strings.Join(lines, "\n")
}

// Name works like [Line], for a name in a table. It cuts the name to 40 columns.
func Name(name string) string { return shorten(Line(name), nameWidth) }

func plainText(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// escape writes text to b, escaped as Line describes.
func escape(b *strings.Builder, text string) {
	b.Grow(len(text) + 16)
	marks := maxMarks // a mark at the beginning is escaped, because it would join the text before it
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		mark := unicode.Is(unicode.M, r)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(b, `\x%02x`, text[0])
			marks = maxMarks
		case mark && marks >= maxMarks, !strconv.IsPrint(r), strings.ContainsRune(blanks, r):
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
			marks = maxMarks
		case mark:
			b.WriteString(text[:n])
			marks++
		default:
			b.WriteString(text[:n])
			marks = 0
		}
		text = text[n:]
	}
}

// columns returns the width of an escaped text on a terminal, in columns.
func columns(text string) int {
	n := 0
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0x303e, r >= 0x3041 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// shorten cuts an escaped text that is wider than the number of columns in most, and ends it with an ellipsis.
func shorten(text string, most int) string {
	if len(text) <= most || columns(text) <= most {
		return text
	}
	n := 0
	for i, r := range text {
		if n += columnsOf(r); n > most-1 {
			return text[:i] + "…"
		}
	}
	return text
}
