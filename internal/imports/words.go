package imports

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/samber/lo"

	"hinit/internal/cmdline"
)

// unescape decodes the escape sequence at the beginning of rest. quote is the quote character around the sequence, or 0. length
// is the length of the sequence, or 0 if it is invalid.
type unescape func(rest string, quote rune) (text string, length int)

// shellEscape decodes an escape sequence by the rules of a shell.
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

// splitWords splits a command line into words. It handles quotes and backslashes; escape decodes the backslashes.
func splitWords(line string, escape unescape) (words []string, err error) {
	if !utf8.ValidString(line) {
		return nil, errors.New("it is no UTF-8; save the file as UTF-8")
	}
	var word strings.Builder
	open, inWord := rune(0), false
	for i := 0; i < len(line); {
		r, size := utf8.DecodeRuneInString(line[i:])
		switch {
		case r == '\\':
			var text string
			if text, size = escape(line[i:], open); size == 0 {
				return nil, errors.New("a backslash stands at the end")
			}
			word.WriteString(text)
			inWord = true
		case open != 0 && r == open:
			open = 0
		case open != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			open, inWord = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
		i += size
	}
	if open != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

func (im *importer) splitSetting(e setting) []string {
	words, err := splitWords(e.value, shellEscape)
	if err != nil {
		im.addNote(e.sourceRef, "cannot be taken apart: %v", err)
	}
	return words
}

// variableReference matches a reference to a variable, $NAME or ${NAME}. The other supervisor replaces it; hinit does not.
var variableReference = regexp.MustCompile(`\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)`)

// shellQuote quotes a word for a shell, except the parts that the expression references matches, so that the shell replaces
// these parts. If references also matches $$, shellQuote turns $$ into one dollar.
func shellQuote(word string, references *regexp.Regexp) string {
	var b strings.Builder
	last := 0
	put := func(text string) {
		if text != "" {
			b.WriteString(cmdline.ShellQuote(text))
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

// wrapInShell returns a command that runs words in a shell. The shell replaces the variables ${NAME} in them, and $$ becomes
// one dollar.
func wrapInShell(words []string) []string {
	quoted := lo.Map(words, func(w string, _ int) string { return shellQuote(w, unitVariable) })
	return []string{"sh", "-c", "exec " + strings.Join(quoted, " ")}
}

// simpleTemplate matches a template of process-compose with only a variable or a quoted text.
var simpleTemplate = regexp.MustCompile(`\{\{-?\s*(?:\.([A-Za-z_][A-Za-z0-9_]*)|"((?:[^"\\]|\\.)*)")\s*-?\}\}`)

// escapedBraces replaces "{{" in an inserted value, so that the value is not read as a template. YAML files can't contain this
// character.
const escapedBraces = "\x00"

// fillTemplates replaces the templates in text by values. rest is the text from the first irreplaceable template, or "".
func fillTemplates(text string, values map[string]string) (filled, rest string) {
	filled = simpleTemplate.ReplaceAllStringFunc(text, func(m string) string {
		part := simpleTemplate.FindStringSubmatch(m)
		value, known := values[part[1]]
		switch {
		case part[1] == "": // the braces in a quoted text belong to another program
			value = strings.ReplaceAll(part[2], `\"`, `"`)
		case !known:
			return m
		}
		return strings.ReplaceAll(value, "{{", escapedBraces)
	})
	if open := strings.Index(filled, "{{"); open >= 0 {
		rest = strings.ReplaceAll(filled[open:], escapedBraces, "{{")
	}
	return strings.ReplaceAll(filled, escapedBraces, "{{"), rest
}
