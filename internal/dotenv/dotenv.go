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
			v.Raw, text = quoted(value, text)
		} else if i := strings.Index(value, " #"); i >= 0 {
			v.Raw = strings.TrimSpace(value[:i])
		}
		vars = append(vars, v)
	}
	return vars
}

// quoted returns what is between the quote that value begins with and the next one, which may be lines further on, and the text
// after that line. Without a next quote the value is the line.
func quoted(value, rest string) (inner, after string) {
	all := value[1:] + "\n" + rest
	for i := 0; i < len(all); i++ {
		switch all[i] {
		case '\\':
			i++
		case value[0]:
			_, after, _ = strings.Cut(all[i:], "\n")
			return all[:i], after
		}
	}
	return value[1:], rest
}
