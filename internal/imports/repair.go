package imports

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hinit/internal/config"
)

// absolute makes a path absolute. The other supervisor resolves it in its working directory, which is usually the directory of its
// file.
func absolute(file, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	dir, _ := filepath.Abs(filepath.Dir(file)) // "" without a working directory
	return filepath.Join(dir, path)
}

// valid returns the error of package config for a configuration for hinit run.
func valid(text []byte) error {
	none := func(string) (string, bool) { return "", false }
	_, err := config.Load(config.Options{Path: "hinit.yaml", Text: text, Plain: true, Env: none})
	return err
}

// settle returns the text of the configuration. It leaves out keys that package config refuses, and notes the reason.
func (im *importer) settle(path, format string) ([]byte, error) {
	for {
		if len(im.services) == 0 {
			return nil, fmt.Errorf("%s has no service that hinit could take over", path)
		}
		text, err := im.yaml(path, format)
		if err != nil {
			return nil, err
		}
		wrong := valid(text)
		if wrong == nil {
			return text, nil
		}
		if !im.leaveOut(wrong) {
			return nil, fmt.Errorf("the result is no valid configuration: %w", wrong)
		}
	}
}

// keyInProblem finds the service, its key, and the number of a check in an error of package config.
var keyInProblem = regexp.MustCompile(`services\.([a-z0-9_-]+)\.([a-z_]+)(?:\.(\d+))?|service "([a-z0-9_-]+)"`)

// leaveOut removes the cause of each problem, at most one part of each service at a time. It reports whether it has removed
// anything.
func (im *importer) leaveOut(wrong error) (less bool) {
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
		name, why := found[1]+found[4], p.Msg
		if before, after, cut := strings.Cut(why, ": "); cut && strings.HasPrefix(before, "cannot ") {
			why = after
		}
		i := slices.IndexFunc(im.services, func(s *service) bool { return s.name == name && !seen[name] })
		if i >= 0 {
			seen[name], less = true, true
			im.leaveOutKey(im.services[i], found[2], found[3], why)
		}
	}
	return less
}

// leaveOutKey removes a key of a service, one check or need, or the whole service.
func (im *importer) leaveOutKey(s *service, key, number, why string) {
	at, known := s.from[key]
	if !known {
		at = s.place
	}
	n, err := strconv.Atoi(number)
	switch {
	case key == "checks" && err == nil && n < len(s.checks):
		c := s.checks[n]
		im.note(from{c.place, s.was}, "its check %s is left out: %s", cmp.Or(c.text("name"), c.text("kind")), why)
		s.checks = slices.Delete(s.checks, n, n+1)
	case key == "needs" && len(s.needs) > 0:
		n := max(0, slices.IndexFunc(s.needs, func(n need) bool { return slices.Contains(strings.Fields(why), n.name) }))
		if s.needs[n].place.line > 0 {
			at = s.needs[n].place
		}
		im.note(from{at, s.was}, "its need of %s is left out: %s", s.needs[n].name, why)
		s.needs = slices.Delete(s.needs, n, n+1)
	case key != "command" && s.drop(key):
		im.note(from{at, s.was + "." + key}, "is left out: %s", why)
		if key == "schedule" && !s.isTask() { // without a schedule it would run all the time
			s.set("once", "manual")
		}
	default:
		im.note(from{at, s.was}, "is left out: %s", why)
		im.services = slices.DeleteFunc(im.services, func(other *service) bool { return other == s })
	}
}
