// Package dotenv reads files of variables, the .env of a profile and the env_file of a service: lines NAME=VALUE, with or without
// "export". A value in quotes may have several lines; after one without quotes, " #" begins a comment.
//
// It promises not to fail: a line that sets nothing is left out. It owns no goroutine and opens no file.
package dotenv

import "strings"

// Var is one variable as it stands in a file.
type Var struct {
	Name  string
	Raw   string // between its quotes, if it has any
	Quote byte   // '"' or '\'', 0 for none
}

// Value is what the variable is set to. Only a value in double quotes has escapes.
func (v Var) Value() string {
	if v.Quote == '"' {
		return Unescape(v.Raw)
	}
	return v.Raw
}

// Unescape replaces the escapes that a value in double quotes may have.
func Unescape(raw string) string { return unescape.Replace(raw) }

var unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "", `\"`, `"`, `\'`, `'`)

// Parse returns the variables of a file in their order.
func Parse(text string) []Var {
	var vars []Var
	var open [256]bool // no such quote ends a value any more: looking for it again would read the rest of the text once a line
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		v := Var{Name: strings.TrimSpace(name), Raw: value}
		if value != "" && strings.IndexByte(`"'`, value[0]) >= 0 {
			v.Quote = value[0]
			v.Raw, text, open[v.Quote] = quoted(value, text, open[v.Quote])
		} else if i := strings.Index(value, " #"); i >= 0 {
			v.Raw = strings.TrimSpace(value[:i])
		}
		vars = append(vars, v)
	}
	return vars
}

// quoted returns what is between the quote that value begins with and the next one, which may be lines further on, and the text
// after that line. Without a next quote the value is the line, and open is true; with open the value can't go on in the next line.
func quoted(value, rest string, open bool) (inner, after string, stillOpen bool) {
	quote, value := value[0], value[1:]
	if end := closing(value, quote); end >= 0 {
		return value[:end], rest, open
	}
	if !open {
		if end := closing(rest, quote); end >= 0 {
			_, after, _ = strings.Cut(rest[end:], "\n")
			return value + "\n" + rest[:end], after, false
		}
	}
	return value, rest, true
}

// closing returns where a quote that is not escaped stands in text, -1 for nowhere.
func closing(text string, quote byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case quote:
			return i
		}
	}
	return -1
}
