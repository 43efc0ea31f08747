package imports

import (
	"regexp"
	"strings"
)

// simple matches a template of process-compose that stands for one value or for a text.
var simple = regexp.MustCompile(`\{\{-?\s*(?:\.([A-Za-z_][A-Za-z0-9_]*)|"((?:[^"\\]|\\.)*)")\s*-?\}\}`)

// braces replaces the braces in an inserted value, so that they begin no template. No YAML file has this character.
const braces = "\x00"

// fill inserts values into the templates of a text. rest is a template that would have to be executed, or "".
func fill(text string, values map[string]string) (filled, rest string) {
	filled = simple.ReplaceAllStringFunc(text, func(m string) string {
		part := simple.FindStringSubmatch(m)
		value, known := values[part[1]]
		switch {
		case part[1] == "": // a text; braces in it belong to another program
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
