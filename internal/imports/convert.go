package imports

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hinit/internal/wholefile"
)

// The formats.
const (
	Supervisord    = "supervisord"
	ProcessCompose = "process-compose"
	Pebble         = "pebble"
	Compose        = "compose"
	S6             = "s6"
	Systemd        = "systemd"
)

// Formats are the formats that [Convert] reads.
var Formats = []string{Supervisord, ProcessCompose, Pebble, Compose, S6, Systemd}

// Note says which setting was not imported, or not as it was, and why.
type Note struct {
	File  string
	Line  int    // 0 for a note on the whole file
	Where string // the key, the section or the file in the directory
	Text  string
}

// String returns the note on one line.
func (n Note) String() string {
	at := n.File
	if n.Line > 0 {
		at += fmt.Sprintf(":%d", n.Line)
	}
	if n.Where != "" {
		at += ": " + n.Where
	}
	return at + ": " + n.Text
}

// Result is a configuration for hinit.
type Result struct {
	Format string
	YAML   []byte
	Notes  []Note
}

// maxFile limits how much of one file is read.
const maxFile = 4 << 20

// Convert reads a file or a directory. format is one of [Formats], or "" to detect it. Convert may block on the disk. The result has
// notes even if nothing could be imported.
func Convert(path, format string) (Result, error) {
	if format == "" {
		var err error
		if format, err = detect(path); err != nil {
			return Result{}, err
		}
	}
	im := &importer{names: make(map[string]bool)}
	im.defaults.values = make(values)
	read, known := map[string]func(string) error{
		Supervisord: im.supervisord, ProcessCompose: im.processCompose, Compose: im.processCompose,
		Pebble: im.pebble, S6: im.s6, Systemd: im.systemd,
	}[format]
	if !known {
		return Result{}, fmt.Errorf("there is no format %q; expected %s", format, strings.Join(Formats, ", "))
	}
	if err := read(path); err != nil {
		return Result{}, err
	}
	text, err := im.settle(path, format)
	return Result{Format: format, YAML: text, Notes: im.notes}, err
}

// detect returns the format of a file or a directory.
func detect(path string) (string, error) {
	if slices.Contains(unitKinds, filepath.Ext(path)) {
		return Systemd, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		for _, kind := range []struct{ pattern, format string }{
			{"[0-9][0-9][0-9]-*.yaml", Pebble}, {"*.service", Systemd}, {"run", S6}, {"*/run", S6}, {"*/type", S6},
		} {
			if found, _ := filepath.Glob(filepath.Join(path, kind.pattern)); len(found) > 0 {
				return kind.format, nil
			}
		}
		return "", fmt.Errorf("%s has neither layers of pebble, units of systemd nor service directories of s6; name the format with --from", path)
	}
	text, err := readFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != ';' {
			if slices.Contains([]string{"[Unit]", "[Service]", "[Timer]"}, line) {
				return Systemd, nil
			}
			if line[0] == '[' {
				return Supervisord, nil
			}
			break
		}
	}
	var top map[string]any
	if err := yaml.Unmarshal(text, &top); err != nil {
		return "", fmt.Errorf("%s is neither INI nor YAML: %w", path, err)
	}
	if _, is := top["processes"]; is {
		return ProcessCompose, nil
	}
	services, _ := top["services"].(map[string]any)
	for _, s := range services {
		if keys, is := s.(map[string]any); is && keys["override"] == nil { // every layer has this key
			return Compose, nil
		}
	}
	if top["services"] != nil || top["checks"] != nil || top["log-targets"] != nil {
		return Pebble, nil
	}
	return "", fmt.Errorf("%s has no key that would tell its format; name it with --from", path)
}

// readFile reads a regular file of limited size.
func readFile(path string) ([]byte, error) { return wholefile.Read(path, maxFile) }

// importer collects services and notes.
type importer struct {
	services []*service
	notes    []Note
	names    map[string]bool
	defaults struct { // defaults of the other supervisor that differ from hinit's
		values
		environment []pair
	}
}

// note adds a note on a setting. Notes on one file with the same text become one note, which lists the settings.
func (im *importer) note(at from, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	same := slices.IndexFunc(im.notes, func(n Note) bool { return n.File == at.file && n.Text == text && n.Where != "" })
	if same < 0 || at.where == "" {
		im.notes = append(im.notes, Note{at.file, at.line, at.where, text})
		return
	}
	im.notes[same].Where += ", " + at.where
	if at.line > im.notes[same].Line {
		im.notes[same].Where += fmt.Sprintf(" (line %d)", at.line)
	}
}

// add makes a service with a valid name, and notes a changed name.
func (im *importer) add(at place, name string) *service {
	valid := serviceName(name)
	for n := 2; im.names[valid]; n++ {
		valid = fmt.Sprintf("%s-%d", serviceName(name), n)
	}
	im.names[valid] = true
	if valid != name {
		im.note(from{at, name}, "is called %s here: names are made of a to z, 0 to 9, _ and -", valid)
	}
	s := &service{name: valid, was: name, values: make(values), place: at, from: make(map[string]place)}
	im.services = append(im.services, s)
	return s
}

// needCommand leaves out a service that has no command.
func (im *importer) needCommand(s *service, at from) {
	if len(s.list("command")) == 0 {
		im.note(at, "has no command and is left out")
		im.services = slices.DeleteFunc(im.services, func(other *service) bool { return other == s })
	}
}

// mostReplicas limits the services that a single setting makes.
const mostReplicas = 200

// replicas makes the services of one program. It keeps the notes on the first one only, because the others have the same.
func (im *importer) replicas(count int, make func(n int)) {
	for n := range count {
		before := slices.Clone(im.notes)
		make(n)
		if n > 0 {
			im.notes = before
		}
	}
}

// serviceName makes a valid service name from another name.
func serviceName(name string) string {
	valid := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	valid = strings.Trim(valid, "-_")
	switch {
	case valid == "":
		return "service"
	case strings.HasPrefix(valid, "gateway-"), valid == "cmd", valid == "main-hermes":
		return "svc-" + valid
	}
	return valid[:min(len(valid), 64)]
}

// find returns the services with this name in the other supervisor's configuration.
func (im *importer) find(name string) []*service {
	return slices.DeleteFunc(slices.Clone(im.services), func(s *service) bool { return s.was != name && (s.group != name || name == "") })
}
