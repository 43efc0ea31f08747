package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// invalidByte describes the first byte of data that is invalid in a YAML file, or returns "". The YAML library reports such a
// byte without its line and column. A file in UTF-16 is left to the library, which reports it well.
func invalidByte(data []byte) (line int, what string) {
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

// maxSearchLines and maxSearchBytes limit the files in which hinit searches for a mistake line by line. The search parses the
// file once for each line.
const (
	maxSearchLines = 500
	maxSearchBytes = 64 << 10
)

// brokenLine returns the line of a mistake: the line after the longest beginning of data that is valid YAML. For some mistakes,
// the YAML library itself reports the line where the mapping begins, which is less helpful. brokenLine returns 0 if data is too
// long for the search.
func brokenLine(data []byte) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines) > maxSearchLines || len(data) > maxSearchBytes {
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

// maxValues is the maximum number of values in a configuration; a service needs about ten. An alias counts as all values that it
// refers to, because each of them is decoded. Without this limit, a file of a megabyte with aliases could decode to more values
// than fit into memory.
const maxValues = 100_000

// textBytesPerValue is the number of bytes of a text that count as one additional value.
const textBytesPerValue = 16

// lineOfTooManyValues returns the line at which a text exceeds maxValues, or 0. It counts separators before the text is parsed,
// because the parser needs about 200 bytes for each value.
func lineOfTooManyValues(data []byte) (line int) {
	separators := 0
	for i, c := range data {
		if strings.IndexByte(",:\n[{", c) >= 0 {
			separators++
		}
		if separators > 4*maxValues { // each value has at most four separators
			return 1 + bytes.Count(data[:i], []byte("\n"))
		}
	}
	return 0
}

// lineOfTooManyAliases returns the line of the alias with the most values, if a document with its aliases expanded exceeds
// maxValues. Otherwise it returns 0.
func lineOfTooManyAliases(doc *yaml.Node) (line int) {
	counts, most := make(map[*yaml.Node]int), 0
	var count func(n *yaml.Node) int // a count above maxValues is not exact
	count = func(n *yaml.Node) int {
		if total, known := counts[n]; known {
			return total
		}
		counts[n] = maxValues + 1 // a value that contains an alias to itself counts as too large
		total := 1 + len(n.Value)/textBytesPerValue
		if n.Kind == yaml.AliasNode && n.Alias != nil {
			if total = count(n.Alias); total > most {
				most, line = total, n.Line
			}
		}
		for _, child := range n.Content {
			total = min(total+count(child), maxValues+1)
		}
		counts[n] = total
		return total
	}
	if count(doc) <= maxValues {
		return 0
	}
	return max(line, 1)
}
