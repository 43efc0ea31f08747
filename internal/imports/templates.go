package imports

import (
	"regexp"
	"strings"
)

// simple is a template of process-compose that stands for one value, or for a text.
var simple = regexp.MustCompile(`\{\{-?\s*(?:\.([A-Za-z_][A-Za-z0-9_]*)|"((?:[^"\\]|\\.)*)")\s*-?\}\}`)

// braces stand for the braces of a filled in value, which begin no template here. No YAML file has such a character.
const braces = "\x00"

// fill puts values into the templates of a text. rest is a template that would have to be carried out, "" for none.
func fill(text string, values map[string]string) (filled, rest string) {
	filled = simple.ReplaceAllStringFunc(text, func(m string) string {
		part := simple.FindStringSubmatch(m)
		value, known := values[part[1]]
		switch {
		case part[1] == "": // a text: it may have braces of its own, which are another program's
			value = strings.ReplaceAll(part[2], `\"`, `"`)
		case !known:
			return m
		}
		return strings.ReplaceAll(value, "{{", braces)
	})
	if open := strings.Index(filled, "{{"); open >= 0 {
		rest = strings.ReplaceAll(filled[open:], braces, "{{")
	}
	if r := []rune(rest); len(r) > 40 {
		rest = string(r[:40]) + "…"
	}
	return strings.ReplaceAll(filled, braces, "{{"), rest
}
