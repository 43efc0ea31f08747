package imports

import "strings"

// section is one section of an INI file.
type section struct {
	name string // text between the brackets
	place
	keys []setting
}

// take returns a setting and marks it as used. Without one, the result is not marked and has the place of the section.
func (s *section) take(name string) (found setting) {
	found.place = s.place
	for i := range s.keys { // the last one wins
		if k := &s.keys[i]; k.name == name {
			k.used = true
			found = *k
		}
	}
	return found
}

// dialect describes a kind of INI file.
type dialect struct {
	separators string // between a key and its value
	unit       bool   // the form of systemd.syntax(7): a comment is a whole line, and a backslash continues a line
}

// parseINI reads sections of keys and values. For supervisord it also accepts "key: value", comments after a blank, and keys in any
// case. There, an indented line continues the value before. The parser of go-systemd is not used, because it forgets lines, and each
// note names a line.
func parseINI(file, text string, d dialect) (sections []*section, bad []place) {
	var last *setting // setting whose value the next line continues
	number := 0
	for raw := range strings.SplitSeq(text, "\n") {
		number++
		at := place{file, number}
		line := strings.TrimRight(raw, "\r \t")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == ';' || trimmed[0] == '#' {
			continue
		}
		more := d.unit && strings.HasSuffix(line, `\`)
		if d.unit {
			line = strings.TrimSuffix(trimmed, `\`)
		} else {
			line = withoutComment(line)
		}
		switch {
		case last != nil && d.unit:
			last.value += " " + line
		case last != nil && (line[0] == ' ' || line[0] == '\t'):
			last.value = strings.TrimSpace(last.value + "\n" + strings.TrimSpace(line))
			more = true
		case line[0] == '[' && strings.Contains(line, "]"):
			sections = append(sections, &section{name: strings.TrimSpace(line[1:strings.Index(line, "]")]), place: at})
		default:
			end := strings.IndexAny(line, d.separators)
			if end <= 0 || len(sections) == 0 {
				bad = append(bad, at)
				continue
			}
			in := sections[len(sections)-1]
			name := strings.TrimSpace(line[:end])
			where := name
			if !d.unit {
				name, more = strings.ToLower(name), true
				where = "[" + in.name + "] " + name
			}
			in.keys = append(in.keys, setting{from: from{at, where}, name: name, value: strings.TrimSpace(line[end+1:])})
			last = &in.keys[len(in.keys)-1]
		}
		if !more {
			last = nil
		}
	}
	return sections, bad
}

// readINI reads a file. It notes lines that can't be read.
func (im *importer) readINI(path string, d dialect) ([]*section, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	sections, bad := parseINI(path, string(text), d)
	for _, at := range bad {
		im.note(from{place: at}, "the line is no section, key or comment, and is left out")
	}
	return sections, nil
}

// withoutComment removes a comment from the end of a line.
func withoutComment(line string) string {
	for i := 1; i < len(line); i++ {
		if (line[i] == ';' || line[i] == '#') && (line[i-1] == ' ' || line[i-1] == '\t') {
			return strings.TrimRight(line[:i], " \t")
		}
	}
	return line
}
