// Package imports converts the configuration of another supervisor to hinit.yaml, for people who move to hinit.
//
// It reads supervisord.conf, process-compose.yaml, compose files, layers of pebble, units of systemd, and the service
// directories and source directories of s6. Each importer sets keys of hinit.yaml by their paths. The result has the keys in
// the order of package config. [Convert] returns a configuration for `hinit run` that package config has checked. The package
// owns no goroutine.
package imports

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"

	"hinit/internal/config"
)

// The names of the formats that [Convert] reads.
const (
	Supervisord    = "supervisord"
	ProcessCompose = "process-compose"
	Pebble         = "pebble"
	Compose        = "compose"
	S6             = "s6"
	Systemd        = "systemd"
)

// Formats lists the formats that [Convert] reads.
var Formats = []string{Supervisord, ProcessCompose, Pebble, Compose, S6, Systemd}

// Note tells the user why a setting was changed or not imported.
type Note struct {
	sourceRef
	Text string
}

// String returns the note on one line.
func (n Note) String() string {
	at := n.file
	if n.line > 0 {
		at += fmt.Sprintf(":%d", n.line)
	}
	if n.where != "" {
		at += ": " + n.where
	}
	return at + ": " + n.Text
}

// Result is the configuration from [Convert], with notes about settings that it could not import.
type Result struct {
	Format string
	YAML   []byte
	Notes  []Note
}

// Convert converts the configuration at path, a file or a directory. format is one of [Formats]; "" means that Convert detects
// the format. The result has notes even if nothing could be imported. Convert may block on the disk.
func Convert(path, format string) (Result, error) {
	if format == "" {
		var err error
		if format, err = detect(path); err != nil {
			return Result{}, err
		}
	}
	im := &importer{}
	im.defaults.values = make(values)
	read := map[string]func(string) error{
		Supervisord: im.importSupervisord, ProcessCompose: im.importCompose, Compose: im.importCompose,
		Pebble: im.importPebble, S6: im.importS6, Systemd: im.importSystemd,
	}[format]
	if err := read(path); err != nil {
		return Result{}, err
	}
	text, err := im.makeText(path, format)
	return Result{Format: format, YAML: text, Notes: im.notes}, err
}

// firstSection matches the beginning of an INI file: comments, and the heading of the first section.
var firstSection = regexp.MustCompile(`^(?:\s*(?:[#;].*)?\n)*\s*\[(\w*)`)

// detect returns the format of a file or a directory. It examines the names in the directory, or the beginning and the top-level
// keys of the file.
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
	if first := firstSection.FindSubmatch(text); first != nil {
		if slices.Contains([]string{"Unit", "Service", "Timer"}, string(first[1])) {
			return Systemd, nil
		}
		return Supervisord, nil
	}
	all, err := readYAML(path)
	if err != nil {
		return "", err
	}
	top := lo.KeyBy(all, func(e setting) string { return e.name })
	keys := lo.FlatMap(top["services"].keys(), func(s setting, _ int) []string { return lo.Keys(s.scalarsByName()) }) // keys of all services
	switch {
	case lo.HasKey(top, "processes"):
		return ProcessCompose, nil
	case lo.Some(keys, []string{"image", "build", "extends"}): // each service of a compose file has one of these keys
		return Compose, nil
	case len(keys) > 0 && !slices.Contains(keys, "override"): // each service of a pebble layer has the key override
		return "", fmt.Errorf("%s seems to be a configuration of hinit: its services have no image, build, extends (compose) or override (pebble); name another format with --from", path)
	case lo.HasKey(top, "services"), lo.HasKey(top, "checks"), lo.HasKey(top, "log-targets"):
		return Pebble, nil
	}
	return "", fmt.Errorf("%s has no key that would tell its format; name it with --from", path)
}

// readFile reads a regular file of limited size. If root runs the program, a link of another user is an error. The link could
// bring the content of root's files into the new configuration.
func readFile(path string) ([]byte, error) {
	text, _, err := config.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}

// importer collects the services of the new configuration, and the notes about settings that were not imported.
type importer struct {
	services      []*service
	limitExceeded bool // more services than maxServices, or more notes than maxNotes
	notes         []Note
	noteCount     int
	defaults      struct { // the other supervisor's defaults that differ from hinit's
		values
		environment []envVar
	}
}

// addNote adds a note about the setting at. Notes of one file with the same text become one note that lists the settings.
func (im *importer) addNote(at sourceRef, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if im.noteCount++; im.noteCount > maxNotes {
		im.limitExceeded = true
		return
	}
	same := slices.IndexFunc(im.notes, func(n Note) bool { return n.file == at.file && n.Text == text && n.where != "" })
	if same < 0 || at.where == "" {
		im.notes = append(im.notes, Note{at, text})
		return
	}
	im.notes[same].where += ", " + at.where
	if at.line > im.notes[same].line {
		im.notes[same].where += fmt.Sprintf(" (line %d)", at.line)
	}
}

// addService adds a service to the new configuration. It changes a name that is invalid in hinit.yaml or already in use, and
// adds a note.
func (im *importer) addService(at place, name string) *service {
	if len(im.services) >= maxServices {
		im.limitExceeded = true
		return &service{values: make(values), places: make(map[string]place)}
	}
	valid := serviceName(name)
	for n := 2; slices.ContainsFunc(im.services, func(s *service) bool { return s.name == valid }); n++ {
		valid = fmt.Sprintf("%s-%d", serviceName(name), n)
	}
	if valid != name {
		im.addNote(sourceRef{at, name}, "is called %s here: names are made of a to z, 0 to 9, _ and -, and each is there once", valid)
	}
	s := &service{name: valid, oldName: name, values: make(values), place: at, places: make(map[string]place)}
	im.services = append(im.services, s)
	return s
}

func (im *importer) dropWithoutCommand(s *service, at sourceRef) {
	if len(s.list("command")) == 0 {
		im.addNote(at, "has no command and is left out")
		im.services = slices.DeleteFunc(im.services, func(other *service) bool { return other == s })
	}
}

const (
	maxServices = 1000   // maximum number of converted services; each replica counts
	maxNotes    = 10_000 // maximum number of settings with a note; each note is compared with all earlier notes
)

// addReplicas calls make once for each replica of a program; make adds the service of this replica. Only the notes about the
// first replica remain, because all replicas cause the same notes.
func (im *importer) addReplicas(count int, make func(n int)) {
	for n := 0; n < count && !im.limitExceeded; n++ {
		before, noted := slices.Clone(im.notes), im.noteCount
		make(n)
		if n > 0 {
			im.notes, im.noteCount = before, noted
		}
	}
}

var invalidNameCharacter = regexp.MustCompile(`[^a-z0-9_]`)

// serviceName converts a name of the other supervisor to a valid service name.
func serviceName(name string) string {
	valid := strings.Trim(invalidNameCharacter.ReplaceAllString(strings.ToLower(name), "-"), "-_")
	switch {
	case valid == "":
		return "service"
	case strings.HasPrefix(valid, "gateway-"), valid == "cmd", valid == "main-hermes":
		return "svc-" + valid
	}
	return valid[:min(len(valid), 64)]
}

// findServices returns the services with this name, or in a group with this name, in the other supervisor's configuration.
func (im *importer) findServices(name string) []*service {
	return slices.DeleteFunc(slices.Clone(im.services), func(s *service) bool { return s.oldName != name && (s.group != name || name == "") })
}

// absolutePath makes path absolute. The other supervisor resolves a relative path in its working directory, which is usually
// the directory of file, its configuration.
func absolutePath(file, path string) string {
	if path == "" || filepath.IsAbs(path) || strings.ContainsAny(path[:1], "~$") {
		return path
	}
	dir, _ := filepath.Abs(filepath.Dir(file))
	return filepath.Join(dir, path)
}

func validate(text []byte) error {
	none := func(string) (string, bool) { return "", false }
	_, err := config.Load(config.Options{Path: "hinit.yaml", Content: text, ServicesOnly: true, Env: none})
	return err
}

// makeText returns the text of the new configuration. A key that package config refuses is left out with a note.
func (im *importer) makeText(path, format string) ([]byte, error) {
	for !im.limitExceeded {
		if len(im.services) == 0 {
			return nil, fmt.Errorf("%s has no service that hinit could take over", path)
		}
		im.removeNeedsOfManual()
		text, err := im.yaml(path, format)
		if err != nil {
			return nil, err
		}
		wrong := validate(text)
		if wrong == nil {
			return text, nil
		}
		if !im.removeInvalid(wrong) {
			return nil, fmt.Errorf("the result is no valid configuration: %w", wrong)
		}
	}
	return nil, fmt.Errorf("%s has more than %d services, with the replicas of each, or more than %d settings that need a note; import parts of it", path, maxServices, maxNotes)
}

// keyInProblem matches the location in an error of package config: the name of a service, its key, the number of a check, and
// the key inside the check.
var keyInProblem = regexp.MustCompile(`services\.([a-z0-9_-]+)\.([a-z_]+)(?:\.(\d+))?((?:\.[a-z_]+)*)|service "([a-z0-9_-]+)"`)

// removeInvalid removes the causes of problem, an error of package config. Each call removes at most one part of each service.
// less reports whether it has removed anything.
func (im *importer) removeInvalid(wrong error) (less bool) {
	list := []error{wrong}
	if joined, is := wrong.(interface{ Unwrap() []error }); is {
		list = joined.Unwrap()
	}
	seen := make(map[string]bool)
	for _, err := range list {
		p, is := errors.AsType[*config.Problem](err)
		if !is {
			continue
		}
		found := keyInProblem.FindStringSubmatch(p.Msg)
		if found == nil {
			continue
		}
		name, why := found[1]+found[5], p.Msg
		if before, after, cut := strings.Cut(why, ": "); cut && strings.HasPrefix(before, "cannot ") {
			why = after
		}
		i := slices.IndexFunc(im.services, func(s *service) bool { return s.name == name && !seen[name] })
		if i >= 0 {
			seen[name], less = true, true
			im.removeKey(im.services[i], found[2], found[3], found[4], why)
		}
	}
	return less
}

func (im *importer) removeNeedsOfManual() {
	for _, s := range im.services {
		s.needs = slices.DeleteFunc(s.needs, func(n need) bool {
			manual := slices.ContainsFunc(im.services, func(to *service) bool { return to.name == n.name && to.text("once") == "manual" })
			if manual {
				im.addNote(sourceRef{n.place, s.oldName}, "its need of %[1]s is left out, because it could wait for ever: only hinit run-once runs %[1]s", n.name)
			}
			return manual
		})
	}
}

// removeKey removes a key of a service, or only a key below it (inside), such as ".signal" of stop. It adds a note. Of checks
// and needs it removes only the element with the problem. Without its command, the whole service is removed.
func (im *importer) removeKey(s *service, key, number, inside, why string) {
	if key == "restart" && inside == "" {
		inside = ".max" // the problem is that max is shorter than initial
	}
	at, known := s.places[key]
	if !known {
		at = s.place
	}
	n, err := strconv.Atoi(number)
	switch {
	case key == "checks" && err == nil && n < len(s.checks):
		c := s.checks[n]
		im.addNote(sourceRef{c.place, s.oldName}, "its check %s is left out: %s", cmp.Or(c.text("name"), c.text("kind")), why)
		s.checks = slices.Delete(s.checks, n, n+1)
	case key == "needs" && len(s.needs) > 0:
		n := max(0, slices.IndexFunc(s.needs, func(n need) bool { return slices.Contains(strings.Fields(why), n.name) }))
		if s.needs[n].place.line > 0 {
			at = s.needs[n].place
		}
		im.addNote(sourceRef{at, s.oldName}, "its need of %s is left out: %s", s.needs[n].name, why)
		s.needs = slices.Delete(s.needs, n, n+1)
	case inside != "" && key != "schedule" && s.drop(key+inside):
		im.addNote(sourceRef{at, s.oldName + "." + key + inside}, "is left out: %s", why)
	case key != "command" && s.drop(key):
		im.addNote(sourceRef{at, s.oldName + "." + key}, "is left out: %s", why)
		if key == "schedule" && !s.isTask() { // without its schedule, the task would run again and again
			s.set("once", "manual")
		}
	default:
		im.addNote(sourceRef{at, s.oldName}, "is left out: %s", why)
		im.services = slices.DeleteFunc(im.services, func(other *service) bool { return other == s })
	}
}
