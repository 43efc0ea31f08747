// Package yamltext parses the YAML text of a configuration, whose size is limited. It finds the line of a mistake more precisely
// than the YAML library does, and adds the usual cause of the mistake. It owns no goroutine.
package yamltext

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Fault is a mistake in a text.
type Fault struct {
	Line    int    // line of the mistake; 0 if it is unknown
	Message string // description of the mistake, on one line
}

func faultAt(line int, format string, args ...any) []Fault {
	return []Fault{{line, fmt.Sprintf(format, args...)}}
}

// Parse returns the root of the only YAML document in data. If data is invalid or has no document, the root is nil.
func Parse(data []byte) (root *yaml.Node, faults []Fault) {
	if line, what := invalidByte(data); what != "" {
		return nil, faultAt(line, "cannot parse YAML: %s", what)
	}
	if line := LineOfTooManyValues(data); line > 0 {
		return nil, faultAt(line, tooManyValues, maxValues)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntaxFault(data, err)
	}
	if err := dec.Decode(&second); err == nil {
		faults = faultAt(second.Line, "cannot read a second document; one file is one configuration")
	} else if !errors.Is(err, io.EOF) {
		faults = syntaxFault(data, err)
	}
	if tooMany := countValues(&doc); tooMany != nil {
		return nil, append(faults, tooMany...)
	}
	return doc.Content[0], faults
}

// syntaxFault describes err, an error of the YAML library. The text of err is "yaml: line N: reason", or contains no line.
func syntaxFault(data []byte, err error) []Fault {
	msg := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
	line := 0
	if n, _ := fmt.Sscanf(msg, "line %d:", &line); n == 1 {
		_, msg, _ = strings.Cut(msg, ": ")
	}
	line = cmp.Or(findBrokenLine(data), line)
	return faultAt(line, "cannot parse YAML: %s%s", msg, likelyCause(data, line, msg))
}

// likelyCause returns the usual cause of an error, to append to its message, or "". msg is the message of the YAML library about
// the line of data.
func likelyCause(data []byte, line int, msg string) string {
	switch {
	case strings.Contains(msg, "mapping values are not allowed"):
		return "; " + missingColon(data, line)
	case strings.Contains(msg, "did not find expected key"):
		return "; is the line indented like the other lines of its level?"
	case strings.Contains(msg, "cannot start any token"):
		return "; indent with spaces, not with tabs, and quote what begins with @ or `"
	case strings.Contains(msg, "could not find expected ':'"):
		return "; a key is followed by a colon and a space"
	case strings.Contains(msg, "unknown anchor"), strings.Contains(msg, "alphabetic or numeric character"):
		return "; quote a text that begins with *"
	case strings.Contains(msg, "unexpected end of stream"), strings.Contains(msg, "did not find expected ','"):
		return "; is a quote, a bracket or a brace left open?"
	case strings.Contains(msg, "<document start>"):
		return "; the mapping has ended before this line; remove it, or write it as a key below the others"
	case strings.Contains(msg, "incompatible YAML document"):
		return "; remove the line with %YAML"
	}
	return ""
}

// missingColon returns the usual cause of the message "mapping values are not allowed": the line before often lacks a colon, or
// the space after the colon.
func missingColon(data []byte, line int) string {
	glued := regexp.MustCompile(`^\s*(?:- )?[A-Za-z_][A-Za-z0-9_.-]*:[^\s:]`)
	lines := bytes.Split(data, []byte("\n"))
	n, before := min(line-1, len(lines)), ""
	for ; n > 0 && (before == "" || before[0] == '#'); n-- {
		before = strings.TrimSpace(string(lines[n-1]))
	}
	switch {
	case glued.MatchString(before):
		return fmt.Sprintf("line %d needs a space after its colon", n+1)
	case before != "" && before[0] != '#' && !strings.Contains(before, ":"):
		return fmt.Sprintf("line %d needs a colon at its end", n+1)
	case line >= 1 && line <= len(lines) && bytes.Count(lines[line-1], []byte(": ")) > 1 && !bytes.Contains(lines[line-1], []byte("{")):
		return "quote a value that has a colon and a space in it"
	}
	return "is the line indented like the other lines of its level?"
}

// invalidByte describes the first byte in data, a whole file, that is invalid in YAML. If all bytes are valid, what is "". The
// YAML library reports such a byte without its line and column. invalidByte skips files in UTF-16, because the library reports
// their mistakes well.
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

// maxLineSearch limits the work of findBrokenLine, which parses a file once for each line. It is the maximum of the number of
// lines times the number of bytes.
const maxLineSearch = 4 << 20

// findBrokenLine returns the line of a mistake: the line after the longest beginning of data that is valid YAML. For some
// mistakes the YAML library reports the line at which the mapping begins, which is less helpful. If data is too long for the
// search, findBrokenLine returns 0.
func findBrokenLine(data []byte) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines)*len(data) > maxLineSearch {
		return 0
	}
	end := len(data)
	for n := len(lines); n > 0; n-- {
		end -= len(lines[n-1])
		if isValid(data[:end]) {
			return n
		}
	}
	return 1
}

func isValid(data []byte) bool {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// maxValues is the maximum number of values in a configuration; a service needs about ten. An alias counts as all values to which
// it refers, because each of them is decoded. Without the limit, a file of a megabyte with aliases could decode to more values
// than fit into memory.
const maxValues = 100_000

const tooManyValues = "cannot read more than %d values; remove what is not needed here"

// textBytesPerValue is how many bytes of a text count as one more value.
const textBytesPerValue = 16

// separatorWeight is the number of separators for which a byte counts. A value has at most four separators. The text "- - -" is a
// list in a list in a list: each '-' or '?' alone makes a value, so it counts as four.
var separatorWeight = [256]int{',': 1, ':': 1, '\n': 1, '[': 1, '{': 1, '-': 4, '?': 4}

// directiveWeight is the number of separators for which a directive counts. It limits a text to a hundred directives. The
// parser compares each %TAG directive with all others, and each tag with all %TAG directives, so many directives would take too
// long.
const directiveWeight = 4 * maxValues / 100

// LineOfTooManyValues returns the line at which a text exceeds maxValues, or 0. It counts separators before the library parses
// the text, because the library needs about 200 bytes of memory for each value.
func LineOfTooManyValues(data []byte) (line int) {
	separators := 0
	for i, c := range data {
		separators += separatorWeight[c]
		if c == '%' && (i == 0 || data[i-1] < ' ' || data[i-1] > '~') {
			separators += directiveWeight
		}
		if separators > 4*maxValues { // a value has at most four separators
			return 1 + bytes.Count(data[:i], []byte("\n"))
		}
	}
	return 0
}

// countValues returns a fault if a document has more than maxValues values after its aliases are expanded. If the aliases are the
// cause, the fault is at the alias with the most values. A document without a fault is small enough to be decoded.
func countValues(doc *yaml.Node) []Fault {
	counts := make(map[*yaml.Node]int)
	written, lineOfTooMany := 0, 0 // number of values without aliases, and the line of the first value beyond maxValues
	most, lineOfAlias := 0, 0
	var count func(n *yaml.Node) int // above maxValues, a count is not exact
	count = func(n *yaml.Node) int {
		if total, known := counts[n]; known {
			return total
		}
		counts[n] = maxValues + 1 // if an alias in this value refers to the value itself, the value is too large
		total := 1 + len(n.Value)/textBytesPerValue
		if written += total; written > maxValues && lineOfTooMany == 0 {
			lineOfTooMany = n.Line
		}
		if n.Kind == yaml.AliasNode && n.Alias != nil {
			if total = count(n.Alias); total > most {
				most, lineOfAlias = total, n.Line
			}
		}
		for _, child := range n.Content {
			total = min(total+count(child), maxValues+1)
		}
		counts[n] = total
		return total
	}
	switch {
	case count(doc) <= maxValues:
		return nil
	case lineOfTooMany > 0:
		return faultAt(lineOfTooMany, tooManyValues, maxValues)
	}
	return faultAt(lineOfAlias, "cannot read more than %d values, and with its aliases (*name) the file has more; write out what is needed", maxValues)
}
