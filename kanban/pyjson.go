package kanban

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// pair is a member of a JSON object whose order is kept, as the other writers of the board keep theirs.
type pair struct {
	key   string
	value any
}

// object is a JSON object in order.
type object []pair

// with returns the object with more members.
func (o object) with(more ...pair) object { return append(slices.Clip(o), more...) }

// encode writes a value as Python's json.dumps does: a space after each comma and colon, ASCII only.
func encode(v any) string {
	var b strings.Builder
	write(&b, v)
	return b.String()
}

func write(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case string:
		quote(b, v)
	case verbatim:
		b.WriteString(string(v))
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int:
		b.WriteString(strconv.Itoa(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *int64:
		if v == nil {
			b.WriteString("null")
			return
		}
		b.WriteString(strconv.FormatInt(*v, 10))
	case []string:
		b.WriteByte('[')
		for i, s := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			quote(b, s)
		}
		b.WriteByte(']')
	case object:
		b.WriteByte('{')
		for i, p := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			quote(b, p.key)
			b.WriteString(": ")
			write(b, p.value)
		}
		b.WriteByte('}')
	default:
		panic("kanban: no JSON for this type")
	}
}

func quote(b *strings.Builder, s string) {
	const hex = "0123456789abcdef"
	unit := func(u uint16) {
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte(hex[u>>shift&15])
		}
	}
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"', r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r >= 0x20 && r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			unit(uint16(hi))
			unit(uint16(lo))
		default:
			unit(uint16(r))
		}
	}
	b.WriteByte('"')
}

// orNull makes a null of an empty string.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// timeOrNull makes a null of a zero number.
func timeOrNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// clip is a string cut to its first n characters.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}

// stringList reads a JSON array of strings; anything else is an empty list.
func stringList(text string) []string {
	var list []string
	if text == "" || json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	return list
}
