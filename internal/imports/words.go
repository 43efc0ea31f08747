package imports

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"
)

// unescape reads what a backslash stands for, inside quotes of a kind or outside of them (0). It returns the length of what it has read, 0 for
// an error.
type unescape func(rest string, quote rune) (text string, length int)

// shellEscape is the backslash of a shell.
func shellEscape(rest string, quote rune) (text string, length int) {
	_, size := utf8.DecodeRuneInString(rest[1:])
	switch {
	case quote == '\'':
		return `\`, 1
	case size > 0 && quote == '"' && !strings.ContainsRune("\"\\$`", rune(rest[1])):
		return rest[:1+size], 1 + size
	case size > 0:
		return rest[1 : 1+size], 1 + size
	}
	return "", 0
}

// split takes a command line apart, with quotes and backslashes and nothing else.
func split(line string, escape unescape) (words []string, err error) {
	var word strings.Builder
	open, begun := rune(0), false
	for i := 0; i < len(line); {
		r, size := utf8.DecodeRuneInString(line[i:])
		switch {
		case r == '\\':
			var text string
			if text, size = escape(line[i:], open); size == 0 {
				return nil, errors.New("a backslash stands at the end")
			}
			word.WriteString(text)
			begun = true
		case open != 0 && r == open:
			open = 0
		case open != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			open, begun = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
		i += size
	}
	if open != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// variable is a reference that the other supervisor replaces and hinit does not.
var variable = regexp.MustCompile(`\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)`)

// quote writes a word for a shell. The parts that references finds stay references to variables; $$ is one dollar there.
func quote(word string, references *regexp.Regexp) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+") == "" {
		return word
	}
	var b strings.Builder
	last := 0
	put := func(text string) {
		if text != "" {
			b.WriteString("'" + strings.ReplaceAll(text, "'", `'\''`) + "'")
		}
	}
	for _, at := range references.FindAllStringIndex(word, -1) {
		put(word[last:at[0]])
		if found := word[at[0]:at[1]]; found == "$$" {
			put("$")
		} else {
			b.WriteString(`"` + found + `"`)
		}
		last = at[1]
	}
	put(word[last:])
	if b.Len() == 0 {
		return "''"
	}
	return b.String()
}

// throughShell is a command whose words refer to variables.
func throughShell(words []string) []string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w, variable)
	}
	return []string{"sh", "-c", "exec " + strings.Join(quoted, " ")}
}
