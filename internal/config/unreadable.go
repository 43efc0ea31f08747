package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// unreadable describes the first byte that a YAML file can't have; "" when there is none. The library
// knows neither the line nor the column of such a byte. The library reports a file in UTF-16.
func unreadable(data []byte) (line int, what string) {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return 0, ""
	}
	line, column := 1, 1
	for rest := data; len(rest) > 0; column++ {
		r, n := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && n == 1:
			return line, fmt.Sprintf("the byte 0x%02x in column %d is no UTF-8; save the file as UTF-8", rest[0], column)
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85:
			return line, fmt.Sprintf("the character %U in column %d is a control character, which YAML doesn't allow", r, column)
		}
		rest = rest[n:]
	}
	return 0, ""
}

// mostLines and mostBytes bound the files in which hinit searches a mistake line by line: that parses the file once for each line.
const (
	mostLines = 500
	mostBytes = 64 << 10
)

// brokenLine returns the line from which on a text can't be parsed however it goes on: the one after the longest beginning that
// is YAML by itself. The library reports the beginning of the mapping for some mistakes. 0 means that the text is too long for that.
func brokenLine(data []byte) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines) > mostLines || len(data) > mostBytes {
		return 0
	}
	end := len(data)
	for n := len(lines); n > 0; n-- {
		end -= len(lines[n-1])
		if parses(data[:end]) {
			return n
		}
	}
	return 1
}

func parses(data []byte) bool {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// mostValues is how many values a configuration may have. Every alias counts with all its values, because reading costs that
// much. A file of a megabyte can stand for more than any machine holds. A service takes about ten values.
const mostValues = 100_000

// longText is how many bytes of a text count as one more value.
const longText = 16

// crowded returns the line with which a text gets more values than mostValues, 0 for none. It counts what separates values, so it
// comes before the parser, which takes about 200 bytes for each of them.
func crowded(data []byte) (line int) {
	line = 1
	for n, c := 0, data; len(c) > 0; {
		i := bytes.IndexAny(c, ",:\n[{")
		if i < 0 {
			return 0
		}
		if n++; n > 4*mostValues { // a value has up to four of them
			return line
		}
		if c[i] == '\n' {
			line++
		}
		c = c[i+1:]
	}
	return 0
}

// weight counts values with aliases expanded. A count beyond mostValues is not exact, and heaviest is then the line of the alias that
// stands for most.
type weight struct {
	known    map[*yaml.Node]int
	most     int
	heaviest int
}

func (w *weight) of(n *yaml.Node) int {
	if total, known := w.known[n]; known {
		return total
	}
	w.known[n] = mostValues + 1 // of an alias to something that contains it
	total := 1 + len(n.Value)/longText
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		total = w.of(n.Alias)
		if total > w.most {
			w.most, w.heaviest = total, n.Line
		}
	}
	for _, child := range n.Content {
		total = min(total+w.of(child), mostValues+1)
	}
	w.known[n] = total
	return total
}

// heavy returns the line at which a document stands for more values than mostValues, 0 for none.
func heavy(doc *yaml.Node) (line int) {
	w := weight{known: make(map[*yaml.Node]int)}
	if w.of(doc) <= mostValues {
		return 0
	}
	return max(w.heaviest, 1)
}
