package imports

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hinit/internal/config"
)

// absolute makes a path absolute that the other supervisor takes from its working directory, usually the directory of its file.
func absolute(file, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	dir, _ := filepath.Abs(filepath.Dir(file)) // "" without a working directory
	return filepath.Join(dir, path)
}

// tryChecks leaves out the checks that hinit.yaml can't have, such as checks of other hosts.
func (im *importer) tryChecks(path string) {
	for _, s := range im.services {
		s.checks = slices.DeleteFunc(s.checks, func(c check) bool {
			alone := &importer{services: []*service{{name: "service", values: values{"command": []string{"true"}}, checks: []check{c}}}}
			text, err := alone.yaml(path, "")
			if err == nil {
				err = valid(text)
			}
			if err != nil {
				why := strings.ReplaceAll(reason(err.Error()), "services.service.checks.0.", "")
				im.note(from{place{cmp.Or(c.place.file, path), c.place.line}, s.was}, "its check %s is left out: %s", cmp.Or(c.text("name"), c.text("kind")), why)
			}
			return err != nil
		})
	}
}

// reason is an error of package config without its place.
func reason(text string) string {
	if _, after, cut := strings.Cut(text, ": "); cut {
		return after
	}
	return text
}

// valid reports what package config says of a configuration for hinit run.
func valid(text []byte) error {
	none := func(string) (string, bool) { return "", false }
	_, err := config.Load(config.Options{Path: "hinit.yaml", Text: text, Plain: true, Env: none})
	return err
}

// settle writes the configuration. A key that package config refuses is left out, with a note that says why.
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
		if !im.leaveOut(text, wrong) {
			return nil, fmt.Errorf("the result is no valid configuration: %w", wrong)
		}
	}
}

// leaveOut takes out of the services what the problems are about, and reports whether there is less now.
func (im *importer) leaveOut(text []byte, wrong error) (less bool) {
	list := []error{wrong}
	if joined, is := wrong.(interface{ Unwrap() []error }); is {
		list = joined.Unwrap()
	}
	for _, err := range list {
		p, is := errors.AsType[*config.Problem](err)
		if !is {
			continue
		}
		name, key := keyAt(text, p.Line)
		i := slices.IndexFunc(im.services, func(s *service) bool { return s.name == name })
		if i < 0 {
			continue
		}
		s := im.services[i]
		at, known := s.from[key]
		if !known {
			at = s.place
		}
		why := p.Msg
		if before, after, cut := strings.Cut(why, ": "); cut && strings.HasPrefix(before, "cannot ") {
			why = after
		}
		less = true
		switch {
		case key == "needs" && len(s.needs) > 0:
			n := len(s.needs) - 1
			for i, need := range s.needs {
				if slices.Contains(strings.Fields(why), need.name) {
					n = i
				}
			}
			if s.needs[n].place.line > 0 {
				at = s.needs[n].place
			}
			im.note(from{at, s.was}, "its need of %s is left out: %s", s.needs[n].name, why)
			s.needs = slices.Delete(s.needs, n, n+1)
		case key != "" && key != "command" && s.drop(key):
			im.note(from{at, s.was + "." + key}, "is left out: %s", why)
		default:
			im.note(from{at, s.was}, "is left out: %s", why)
			im.services = slices.Delete(im.services, i, i+1)
		}
		if len(im.services) == 0 {
			return true
		}
	}
	return less
}

// keyAt finds the service and its key at a line of a configuration.
func keyAt(text []byte, line int) (service, key string) {
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil || len(doc.Content) == 0 {
		return "", ""
	}
	for _, top := range entries(doc.Content[0]) {
		if top.name != "services" {
			continue
		}
		for _, s := range entries(top.node) {
			if s.line > line {
				break
			}
			service, key = s.name, ""
			for _, k := range entries(s.node) {
				if k.line <= line {
					key = k.name
				}
			}
		}
	}
	return service, key
}
