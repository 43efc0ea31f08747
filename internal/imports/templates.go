package imports

import (
	"regexp"
	"strings"
)

// simple is a template of process-compose that stands for one value, or for a text.
var simple = regexp.MustCompile(`\{\{-?\s*(?:\.([A-Za-z_][A-Za-z0-9_]*)|"((?:[^"\\]|\\.)*)")\s*-?\}\}`)

// fill puts values into the templates of a text. rest is a template that would have to be carried out, "" for none.
func fill(text string, values map[string]string) (filled, rest string) {
	if !strings.Contains(text, "{{") {
		return text, ""
	}
	var b strings.Builder
	left := text
	for {
		at := simple.FindStringSubmatchIndex(left)
		if at == nil {
			break
		}
		note := func(part string) {
			if open := strings.Index(part, "{{"); open >= 0 && rest == "" {
				rest = part[open:]
			}
		}
		note(left[:at[0]])
		b.WriteString(left[:at[0]])
		switch value, known := "", false; {
		case at[2] < 0: // a text: it may have braces of its own, which are another program's
			b.WriteString(strings.ReplaceAll(left[at[4]:at[5]], `\"`, `"`))
		default:
			if value, known = values[left[at[2]:at[3]]]; !known {
				note(left[at[0]:at[1]])
				value = left[at[0]:at[1]]
			}
			b.WriteString(value)
		}
		left = left[at[1]:]
	}
	if open := strings.Index(left, "{{"); open >= 0 && rest == "" {
		rest = left[open:]
	}
	b.WriteString(left)
	if r := []rune(rest); len(r) > 40 {
		rest = string(r[:40]) + "…"
	}
	return b.String(), rest
}
