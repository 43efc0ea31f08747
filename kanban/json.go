package kanban

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A null in the file is null in JSON: readers in other languages need that.

// MarshalJSON implements [json.Marshaler].
func (t Task) MarshalJSON() ([]byte, error) { return wire(tasksTable, t), nil }

// MarshalJSON implements [json.Marshaler].
func (r Run) MarshalJSON() ([]byte, error) { return wire(runsTable, r), nil }

// MarshalJSON implements [json.Marshaler].
func (e Event) MarshalJSON() ([]byte, error) { return wire(eventsTable, e), nil }

// wire is a row of a table in JSON, under the names of the columns.
func wire(t table, row any) []byte {
	var o object
	for i, c := range t.columns {
		field := reflect.ValueOf(row).Field(i)
		value := field.Interface()
		switch column := field.String(); {
		case field.Kind() == reflect.Slice:
			value = append([]string{}, value.([]string)...)
		case field.IsZero() && (c.def == text || c.def == integer):
			value = nil
		case (c.name == "payload" || c.name == "metadata") && json.Valid([]byte(column)):
			value = json.RawMessage(column)
		}
		o = append(o, pair{c.name, value})
	}
	return []byte(encode(o))
}

// pair is a member of a JSON object whose order is kept, as the other writers of the board keep theirs.
type pair struct {
	key   string
	value any
}

// object is a JSON object in order.
type object []pair

// with returns the object with more members.
func (o object) with(more ...pair) object { return append(slices.Clip(o), more...) }

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	b := bytes.NewBufferString("{")
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(encode(p.key) + ":" + encode(p.value))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encode writes a value as Python's json.dumps does: a space after each comma and colon, ASCII only.
func encode(v any) string {
	var compact bytes.Buffer
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("kanban: no JSON for this type: " + err.Error())
	}
	var b strings.Builder
	quoted, escaped := false, false
	for _, r := range strings.TrimSuffix(compact.String(), "\n") {
		if r >= 0x7f {
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, "\\u%04x", unit)
			}
			continue
		}
		if b.WriteRune(r); !quoted && (r == ',' || r == ':') {
			b.WriteByte(' ')
		}
		quoted = quoted != (r == '"' && !escaped)
		escaped = r == '\\' && !escaped
	}
	return b.String()
}

// orNull makes a null of an empty string, or of the number zero.
func orNull[T comparable](v T) any {
	if v == *new(T) {
		return nil
	}
	return v
}

// clip is a string cut to its first n characters.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}
