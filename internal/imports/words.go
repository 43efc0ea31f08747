package imports

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// split takes a command line apart as a shell would, with quotes and backslashes and nothing else.
func split(line string) (words []string, err error) {
	var word strings.Builder
	open, escaped, begun := rune(0), false, false
	for _, r := range line {
		switch {
		case escaped:
			if open == '"' && !strings.ContainsRune("\"\\$`", r) {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && open != '\'':
			escaped, begun = true, true
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
	}
	if open != 0 || escaped {
		return nil, errors.New("a quote is not closed")
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// variable is a reference that the other supervisor replaces and hinit does not.
var variable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)`)
})

// quote writes a word for a shell; references to variables stay ones.
func quote(word string) string {
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
	for _, at := range variable().FindAllStringIndex(word, -1) {
		put(word[last:at[0]])
		b.WriteString(`"` + word[at[0]:at[1]] + `"`)
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
		quoted[i] = quote(w)
	}
	return []string{"sh", "-c", "exec " + strings.Join(quoted, " ")}
}

// codes returns the exit codes of a list that mean success besides 0.
func codes(list []string) (others []string) {
	for _, code := range list {
		if n, err := strconv.Atoi(strings.TrimSpace(code)); err == nil && n > 0 && n < 256 {
			others = append(others, strconv.Itoa(n))
		}
	}
	return others
}
