package imports

import (
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// plan is what the layers of pebble come to: keys by service, as far as they were said.
type plan struct {
	*importer
	services, checks []*layered
}

// layered is a service or a check with the keys of all its layers.
type layered struct {
	name, file string
	line       int
	keys       []entry
	files      map[string]string // of each key
}

// get returns a key, or one without a node.
func (l *layered) get(name string) entry {
	for _, e := range l.keys {
		if e.name == name {
			return e
		}
	}
	return entry{}
}

var layerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\d{3}-.*\.yaml$`) })

// pebble reads a layer, or a directory of layers.
func (im *importer) pebble(path string) error {
	files := []string{path}
	if found, _ := filepath.Glob(filepath.Join(path, "*.yaml")); len(found) > 0 {
		files = slices.DeleteFunc(found, func(name string) bool { return !layerName().MatchString(filepath.Base(name)) })
		slices.Sort(files)
	}
	p := &plan{importer: im}
	for _, file := range files {
		if err := p.layer(file); err != nil {
			return err
		}
	}
	im.defaults.grace, im.defaults.restart = "5s", restart{initial: "500ms", factor: "2", max: "30s"}
	for _, l := range p.services {
		p.service(l)
	}
	for _, l := range p.services {
		p.order(l)
	}
	used := p.checksOfServices()
	for _, c := range p.checks {
		if !used[c.name] && !p.inContext(c) {
			im.note(c.file, c.line, "checks."+c.name, "belongs to no service (no on-check-failure names it); add it to the checks of the service it looks at")
		}
	}
	return nil
}

// layer puts one layer on those before it.
func (p *plan) layer(file string) error {
	root, err := readYAML(file)
	if err != nil {
		return err
	}
	for _, e := range entries(root) {
		switch e.name {
		case "summary", "description":
		case "services":
			p.services = p.combine(p.services, file, e)
		case "checks":
			p.checks = p.combine(p.checks, file, e)
		case "log-targets":
			for _, t := range entries(e.node) {
				p.note(file, t.line, "log-targets."+t.name, "hinit forward sends logs to Loki, OpenTelemetry and syslog; make it a service: hinit forward --to URL (%s)", t.name)
			}
		default:
			p.note(file, e.line, e.name, "%s", otherWay(e.name))
		}
	}
	return nil
}

// combine merges what a layer says into what is there, or replaces it.
func (p *plan) combine(list []*layered, file string, at entry) []*layered {
	for _, e := range entries(at.node) {
		i := slices.IndexFunc(list, func(l *layered) bool { return l.name == e.name })
		override := ""
		keys := slices.DeleteFunc(entries(e.node), func(k entry) bool {
			if k.name == "override" {
				override = k.text()
			}
			return k.name == "override"
		})
		if i < 0 {
			list = append(list, &layered{name: e.name, file: file, line: e.line, files: make(map[string]string)})
			i = len(list) - 1
		}
		l := list[i]
		if override != "merge" {
			l.keys = nil
		}
		l.file, l.line = file, e.line
		for _, k := range keys {
			p.put(l, k, file)
		}
	}
	return list
}

// put merges one key: lists and mappings grow, all else is replaced.
func (p *plan) put(l *layered, k entry, file string) {
	l.files[k.name] = file
	for i := range l.keys {
		if l.keys[i].name != k.name {
			continue
		}
		old := l.keys[i].node
		if old.Kind == k.node.Kind && len(k.node.Content) > 0 {
			merged := *old
			merged.Content = append(slices.Clone(old.Content), k.node.Content...)
			k.node = &merged
		}
		l.keys[i] = k
		return
	}
	l.keys = append(l.keys, k)
}

func (p *plan) service(l *layered) {
	s := p.add(l.file, l.line, l.name)
	s.disabled = true
	onSuccess, onFailure, group := "restart", "restart", ""
	for _, e := range l.keys {
		note := func(format string, args ...any) { p.note(l.files[e.name], e.line, l.name+"."+e.name, format, args...) }
		s.came(e.name, l.files[e.name], e.line)
		switch e.name {
		case "command":
			words, err := split(e.text())
			if err != nil {
				note("cannot be taken apart: %v", err)
			}
			s.command = withoutBrackets(words)
		case "startup":
			s.disabled = e.text() != "enabled"
		case "environment":
			s.env = variables(e.node)
		case "user", "user-id":
			s.user = cmp.Or(s.user, e.text())
		case "group", "group-id":
			group = cmp.Or(group, e.text())
		case "working-dir":
			s.cwd = absolute(l.files[e.name], e.text())
		case "on-success":
			onSuccess = e.text()
		case "on-failure":
			onFailure = e.text()
		case "backoff-delay":
			s.restart.initial = e.text()
		case "backoff-factor":
			s.restart.factor = e.text()
		case "backoff-limit":
			s.restart.max = e.text()
		case "kill-delay":
			s.stop.grace = e.text()
		case "summary", "description":
			s.people.about = comment(l.get("summary").words(), l.get("description").words())
		case "after", "before", "requires", "on-check-failure": // later
		default:
			note("%s", otherWay(e.name))
		}
	}
	if group != "" {
		if s.user != "" {
			s.user += ":" + group
		} else {
			p.note(l.file, l.line, l.name+".group", "is left out without a user; write user: NAME:%s", group)
		}
	}
	for _, action := range []struct{ key, does string }{{"on-success", onSuccess}, {"on-failure", onFailure}} {
		if action.does != "restart" && action.does != "ignore" {
			e := l.get(action.key)
			p.note(l.files[action.key], e.line, l.name+"."+action.key, "hinit doesn't end when a service does (%s); make it the container's CMD for that", action.does)
		}
	}
	again := map[bool]string{true: "restart"}
	s.restart.policy = map[[2]string]string{
		{"restart", "restart"}: "", {"", "restart"}: "on-failure", {"restart", ""}: "on-success", {"", ""}: "never",
	}[[2]string{again[onSuccess == "restart"], again[onFailure == "restart"]}]
	if s.command == nil {
		p.note(l.file, l.line, l.name, "has no command and is left out")
		p.importer.services = p.importer.services[:len(p.importer.services)-1]
	}
}

// withoutBrackets takes the marks of the default arguments out of a command: cmd [ --debug ].
func withoutBrackets(words []string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "[" || w == "]" })
}

// order takes over the order of starts. In pebble a requirement only pulls the other service up, which enabled does in hinit.
// hinit also waits for the required service, unless the file states the opposite order.
func (p *plan) order(l *layered) {
	for _, from := range p.find(l.name) {
		for _, key := range []string{"after", "requires", "before"} {
			e := l.get(key)
			for _, name := range items(e.node) {
				others := p.find(name)
				if len(others) == 0 {
					p.note(l.files[key], e.line, l.name+"."+key, "there is no service %q", name)
				}
				at := place{l.files[key], e.line}
				for _, other := range others {
					switch key {
					case "before":
						other.wait(need{name: from.name, until: "started", optional: true, place: at})
					case "after":
						from.wait(need{name: other.name, until: "started", optional: !p.says(l, "requires", name), place: at})
					default:
						if other.disabled && !from.disabled {
							other.disabled = false
						}
						if p.says(l, "before", name) || p.saysAt(name, "after", l.name) {
							p.note(at.file, at.line, l.name+"."+key, "%s begins after it, so that it is enabled and not waited for", name)
							break
						}
						from.wait(need{name: other.name, until: "started", place: at})
					}
				}
			}
		}
	}
}

// says reports whether a key of a service names another one.
func (p *plan) says(l *layered, key, name string) bool {
	return slices.Contains(items(l.get(key).node), name)
}

func (p *plan) saysAt(service, key, name string) bool {
	return slices.ContainsFunc(p.services, func(l *layered) bool { return l.name == service && p.says(l, key, name) })
}

// inContext gives a check that no service acts on to the service in whose context it runs.
func (p *plan) inContext(c *layered) bool {
	for _, e := range entries(c.get("exec").node) {
		if e.name != "service-context" {
			continue
		}
		for _, s := range p.find(e.text()) {
			p.check(c, s, "report")
			return true
		}
	}
	return false
}

// checksOfServices gives checks to the services that do something when they fail.
func (p *plan) checksOfServices() (used map[string]bool) {
	used = make(map[string]bool)
	for _, l := range p.services {
		e := l.get("on-check-failure")
		for _, action := range variables(e.node) {
			i := slices.IndexFunc(p.checks, func(c *layered) bool { return c.name == action.name })
			if i < 0 {
				p.note(l.files["on-check-failure"], e.line, l.name+".on-check-failure", "there is no check %q", action.name)
				continue
			}
			used[action.name] = true
			does, known := map[string]string{"restart": "restart", "ignore": "report", "shutdown": "shutdown", "success-shutdown": "shutdown", "failure-shutdown": "shutdown"}[action.value]
			if !known {
				p.note(l.files["on-check-failure"], e.line, l.name+".on-check-failure."+action.name, "%q is not known; it is only reported", action.value)
				does = "report"
			}
			for _, s := range p.find(l.name) {
				p.check(p.checks[i], s, does)
			}
		}
	}
	return used
}

func (p *plan) check(l *layered, s *service, does string) {
	k := check{kind: "alive", name: serviceName(l.name), period: "10s", timeout: "3s", failure: "3", onFailure: does, place: place{l.file, l.line}}
	if does == "report" && l.get("level").words() == "ready" {
		k.kind, k.onFailure = "ready", ""
	}
	found := false
	for _, e := range l.keys {
		note := func(format string, args ...any) {
			p.note(l.files[e.name], e.line, "checks."+l.name+"."+e.name, format, args...)
		}
		switch e.name {
		case "period":
			k.period = e.text()
		case "timeout":
			k.timeout = e.text()
		case "threshold":
			k.failure = e.text()
		case "level":
			if e.text() == "ready" && k.kind != "ready" {
				note("a check that does something when it fails is of kind alive; add one of kind ready if starts should wait for it")
			}
		case "startup":
			if e.text() == "disabled" {
				note("checks of hinit run while the service does")
			}
		case "http":
			found = true
			for _, h := range entries(e.node) {
				if h.name == "headers" {
					k.headers = variables(h.node)
				} else {
					k.http = append(k.http, pair{h.name, h.text()})
				}
			}
		case "tcp":
			found = true
			for _, t := range entries(e.node) {
				if t.name == "host" && t.text() == "" {
					continue
				}
				k.tcp = append(k.tcp, pair{t.name, t.text()})
			}
		case "exec":
			for _, x := range entries(e.node) {
				switch {
				case x.name == "command":
					found = true
					k.command, _ = split(x.text())
				case x.name == "service-context" && x.text() == s.was: // which it has
				default:
					p.note(l.files[e.name], x.line, "checks."+l.name+".exec."+x.name, "a check runs as its service and in its environment; sh -c sets another directory or variable")
				}
			}
		default:
			note("%s", otherWay(e.name))
		}
	}
	if !found {
		p.note(l.file, l.line, "checks."+l.name, "says nothing to look at and is left out")
		return
	}
	if n, err := strconv.Atoi(k.failure); err != nil || n < 1 {
		e := l.get("threshold")
		p.note(l.files["threshold"], e.line, "checks."+l.name+".threshold", "%q is no number from 1 on; 3 is taken", k.failure)
		k.failure = "3"
	}
	if strings.Count(k.name, "-") == len(k.name) {
		k.name = ""
	}
	s.checks = append(s.checks, k)
}
