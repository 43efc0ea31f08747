// Package dotenv parses files that set environment variables, such as the .env of a profile and the env_file of a service. Such a
// file consists of lines NAME=VALUE, with or without "export". A quoted value may span several lines. After an unquoted value, "
// #" begins a comment.
//
// The functions never fail: they ignore lines that set no variable. The package owns no goroutine and opens no file.
package dotenv

import "strings"

// Var is one variable as the file sets it.
type Var struct {
	Name     string
	RawValue string // the value without its quotes, if it has any
	Quote    byte   // '"' or '\'', or 0 for a value without quotes
	// StartOffset and End are the positions in the file of the beginning and the end of the lines that set the variable.
	StartOffset, EndOffset int
}

// Value returns the value of the variable. It replaces escapes only in a value that was in double quotes.
func (v Var) Value() string {
	if v.Quote == '"' {
		return Unescape(v.RawValue)
	}
	return v.RawValue
}

// Unescape replaces the escapes in raw, the text of a value in double quotes. It drops the escape \r, so that the value contains
// no carriage return.
func Unescape(raw string) string { return unescaper.Replace(raw) }

var unescaper = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "", `\"`, `"`, `\'`, `'`)

// Parse returns the variables that text sets, in the order of the text.
func Parse(text string) []Var {
	var vars []Var
	// For each quote character, open says that the rest of the text has no closing quote, so later values need not search for
	// one.
	var open [256]bool
	whole := text
	for text != "" {
		v := Var{StartOffset: len(whole) - len(text)}
		var line string
		line, text, _ = strings.Cut(text, "\n")
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		v.Name, v.RawValue = strings.TrimSpace(name), value
		if value != "" && strings.IndexByte(`"'`, value[0]) >= 0 {
			v.Quote = value[0]
			v.RawValue, text, open[v.Quote] = parseQuoted(value, text, open[v.Quote])
		} else if i := strings.Index(value, " #"); i >= 0 {
			v.RawValue = strings.TrimSpace(value[:i])
		}
		v.EndOffset = len(whole) - len(text)
		vars = append(vars, v)
	}
	return vars
}

// parseQuoted parses a value that begins with a quote. value is the rest of its line from the quote on, and rest is the text after
// this line. inner is the text between the quotes, which may end several lines into rest. after is the text after the line with
// the closing quote.
//
// If no quote closes the value, inner is the rest of its line, and stillOpen is true. The caller then passes open = true for the
// next value with the same quote, so that it need not search through rest again.
func parseQuoted(value, rest string, open bool) (inner, after string, stillOpen bool) {
	quote, value := value[0], value[1:]
	if end := closingQuote(value, quote); end >= 0 {
		return value[:end], rest, open
	}
	if !open {
		if end := closingQuote(rest, quote); end >= 0 {
			_, after, _ = strings.Cut(rest[end:], "\n")
			return value + "\n" + rest[:end], after, false
		}
	}
	return value, rest, true
}

// closingQuote returns the index of the first quote in text that isn't escaped by a backslash, or -1 if there is none.
func closingQuote(text string, quote byte) int {
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
