package imports

import (
	"slices"
	"strings"
)

// section is one section of an INI file as supervisord reads it.
type section struct {
	name string // what is between the brackets
	file string
	line int
	keys []setting
}

type setting struct {
	name, value string
	line        int
	used        bool
}

// take returns a value, once: a value that is not taken is unknown.
func (s *section) take(name string) (value string, line int, ok bool) {
	for i := range slices.Backward(s.keys) { // the last one wins
		if s.keys[i].name == name {
			for j := range s.keys {
				s.keys[j].used = s.keys[j].used || s.keys[j].name == name
			}
			return s.keys[i].value, s.keys[i].line, true
		}
	}
	return "", 0, false
}

// lineOf is the line of a key, or the line of its section where the key is not set.
func (s *section) lineOf(name string) int {
	for i := range slices.Backward(s.keys) {
		if s.keys[i].name == name {
			return s.keys[i].line
		}
	}
	return s.line
}

// parseINI reads sections with "key = value" or "key: value". A comment begins with ; or # at the beginning of a line or after a blank. A line that is indented goes on with the value before.
func parseINI(file, text string) (sections []*section, bad []int) {
	var at *section
	number := 0
	for raw := range strings.SplitSeq(text, "\n") {
		number++
		line := strings.TrimRight(raw, "\r \t")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == ';' || trimmed[0] == '#' {
			continue
		}
		line = withoutComment(line)
		switch {
		case (line[0] == ' ' || line[0] == '\t') && at != nil && len(at.keys) > 0:
			last := &at.keys[len(at.keys)-1]
			last.value = strings.TrimSpace(last.value + "\n" + strings.TrimSpace(line))
		case line[0] == '[' && strings.Contains(line, "]"):
			at = &section{name: strings.TrimSpace(line[1:strings.Index(line, "]")]), file: file, line: number}
			sections = append(sections, at)
		default:
			end := strings.IndexAny(line, "=:")
			if end <= 0 || at == nil {
				bad = append(bad, number)
				continue
			}
			at.keys = append(at.keys, setting{name: strings.ToLower(strings.TrimSpace(line[:end])), value: strings.TrimSpace(line[end+1:]), line: number})
		}
	}
	return sections, bad
}

// withoutComment cuts a comment off a line.
func withoutComment(line string) string {
	for i := 1; i < len(line); i++ {
		if (line[i] == ';' || line[i] == '#') && (line[i-1] == ' ' || line[i-1] == '\t') {
			return strings.TrimRight(line[:i], " \t")
		}
	}
	return line
}
