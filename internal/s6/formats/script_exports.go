package formats

import (
	"maps"
	"slices"
	"strings"
)

// Exports returns the variables that a POSIX shell script exports with literal values, without running the script. It parses the
// lines `export NAME=VALUE...` up to the line that begins with exec. Values may be bare, quoted or escaped. unclear lists,
// sorted, the exported variables whose values only a shell could expand.
func Exports(script []byte) (set map[string]string, unclear []string) {
	set = make(map[string]string)
	dark := make(map[string]bool)
	text := string(script)
	for text != "" {
		rest, found := cutWord(text, "export")
		if _, last := cutWord(text, "exec"); last {
			break
		}
		for found {
			var name, value string
			var clear bool
			name, value, clear, rest = parseAssignment(strings.TrimLeft(rest, " \t"))
			if name == "" {
				break
			}
			delete(set, name)
			delete(dark, name)
			if clear {
				set[name] = value
			} else {
				dark[name] = true
			}
			found = clear
		}
		if !found {
			rest = text
		}
		_, text, _ = strings.Cut(rest, "\n")
	}
	return set, slices.Sorted(maps.Keys(dark))
}

func cutWord(text, word string) (rest string, found bool) {
	rest, found = strings.CutPrefix(text, word)
	return rest, found && rest != "" && (rest[0] == ' ' || rest[0] == '\t')
}

// parseAssignment parses NAME=WORD at the beginning of text. If text begins differently, name is "". clear reports whether the value
// is literal.
func parseAssignment(text string) (name, value string, clear bool, rest string) {
	n := 0
	for n < len(text) && (text[n] == '_' || isLetter(text[n]) || n > 0 && isDigit(text[n])) {
		n++
	}
	if n == 0 || n == len(text) || text[n] != '=' {
		return "", "", false, text
	}
	value, rest, clear = parseLiteral(text[n+1:])
	return text[:n], value, clear && strings.IndexByte(value, 0) < 0, rest
}

// parseLiteral parses a shell word at the beginning of text. If only a shell could expand it, ok is false.
func parseLiteral(text string) (value, rest string, ok bool) {
	var b strings.Builder
	quote := byte(0) // the open quote; 0: none
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == '\'':
			b.WriteByte(c)
		case c == '\\' && i+1 < len(text) && (quote == 0 || strings.IndexByte("$`\"\\\n", text[i+1]) >= 0):
			i++
			if text[i] != '\n' {
				b.WriteByte(text[i])
			} else if quote == 0 {
				return "", text, false
			}
		case quote == '"' && c != '$' && c != '`':
			b.WriteByte(c)
		case quote != 0, c == '\\':
			return "", text, false
		case c == '\'', c == '"':
			quote = c
		case strings.IndexByte(" \t\n;&|", c) >= 0:
			return b.String(), text[i:], true
		case isLetter(c) || isDigit(c) || strings.IndexByte("_@%+=:,./-", c) >= 0 || c >= 0x80:
			b.WriteByte(c)
		default:
			return "", text, false
		}
	}
	return b.String(), "", quote == 0
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
