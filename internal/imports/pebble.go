package imports

import (
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// plan is the combination of pebble's layers: the keys of each service and check.
type plan struct {
	*importer
	services, checks []*layered
}

// layered is a service or a check with the keys of all its layers.
type layered struct {
	name string
	place
	keys  []entry
	files map[string]string // file of each key
}

// at returns the place of a key.
func (l *layered) at(e entry, where string) from { return from{place{l.files[e.name], e.line}, where} }

// get returns a key, or an entry without a node.
func (l *layered) get(name string) entry {
	for _, e := range l.keys {
		if e.name == name {
			return e
		}
	}
	return entry{}
}

var layerName = regexp.MustCompile(`^\d{3}-.*\.yaml$`)

// pebble reads a layer, or a directory of layers.
func (im *importer) pebble(path string) error {
	files := []string{path}
	if found, _ := filepath.Glob(filepath.Join(path, "*.yaml")); len(found) > 0 {
		files = slices.DeleteFunc(found, func(name string) bool { return !layerName.MatchString(filepath.Base(name)) })
		slices.Sort(files)
	}
	p := &plan{importer: im}
	for _, file := range files {
		if err := p.layer(file); err != nil {
			return err
		}
	}
	im.defaults.values = values{"stop.grace": "5s", "restart.initial": "500ms", "restart.factor": "2", "restart.max": "30s"}
	for _, l := range p.services {
		p.service(l)
	}
	for _, l := range p.services {
		p.order(l)
	}
	used := p.checksOfServices()
	for _, c := range p.checks {
		if !used[c.name] && !p.inContext(c) {
			im.note(from{c.place, "checks." + c.name}, "belongs to no service (no on-check-failure names it); add it to the checks of the service it looks at")
		}
	}
	return nil
}

// layer combines one layer with the layers before it.
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
				p.note(from{place{file, t.line}, "log-targets." + t.name}, "hinit forward sends logs to Loki, OpenTelemetry and syslog; make it a service: hinit forward --to URL (%s)", t.name)
			}
		default:
			p.apply(nil, e.name, from{place{file, e.line}, e.name}, nil, "")
		}
	}
	return nil
}

// combine merges the services or checks of a layer into list, or replaces them.
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
			list = append(list, &layered{name: e.name, files: make(map[string]string)})
			i = len(list) - 1
		}
		l := list[i]
		if override != "merge" {
			l.keys = nil
		}
		l.place = place{file, e.line}
		for _, k := range keys {
			p.put(l, k, file)
		}
	}
	return list
}

// put merges one key: lists and mappings grow, other values are replaced.
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

// pebbleRules are for settings of a service with a single value.
var pebbleRules = rules{
	{name: "backoff-delay", key: "restart.initial"},
	{name: "backoff-factor", key: "restart.factor"},
	{name: "backoff-limit", key: "restart.max"},
	{name: "kill-delay", key: "stop.grace"},
}

func (p *plan) service(l *layered) {
	s := p.add(l.place, l.name)
	s.set("enabled", "false")
	does := map[string]string{"on-success": "restart", "on-failure": "restart"}
	var user, group string
	for _, e := range l.keys {
		at := l.at(e, l.name+"."+e.name)
		switch e.name {
		case "command":
			words, err := split(e.text(), shellEscape)
			if err != nil {
				p.note(at, "cannot be taken apart: %v", err)
			}
			words = slices.DeleteFunc(words, func(w string) bool { return w == "[" || w == "]" }) // they mark default arguments
			s.take("command", at.place, words)
		case "startup":
			s.set("enabled", disabled(e.text() != "enabled"))
		case "environment":
			s.take("env", at.place, variables(e.node))
		case "user", "user-id":
			user = cmp.Or(user, e.text())
			s.came("user", at.place)
		case "group", "group-id":
			group = cmp.Or(group, e.text())
		case "working-dir":
			s.take("cwd", at.place, absolute(at.file, e.text()))
		case "on-success", "on-failure":
			does[e.name] = e.text()
			s.came("restart", at.place)
			if e.text() != "restart" && e.text() != "ignore" {
				p.note(at, "hinit doesn't end when a service does (%s); make it the container's CMD for that", e.text())
			}
		case "summary", "description":
			s.about = comment(l.get("summary").words(), l.get("description").words())
		case "after", "before", "requires", "on-check-failure": // imported later
			s.came("needs", at.place)
		default:
			p.apply(pebbleRules, e.name, at, s, e.text())
		}
	}
	switch {
	case group != "" && user != "":
		user += ":" + group
	case group != "":
		p.note(from{l.place, l.name + ".group"}, "is left out without a user; write user: NAME:%s", group)
	}
	s.set("user", user)
	s.set("restart.policy", map[[2]bool]string{{false, true}: "on-failure", {true, false}: "on-success", {false, false}: "never"}[[2]bool{
		does["on-success"] == "restart", does["on-failure"] == "restart",
	}])
	p.needCommand(s, from{l.place, l.name})
}

// order imports the order of starts. In pebble, a requirement only starts the other service, for which hinit has the key enabled.
// The result also waits for the required service, unless the file states the opposite order.
func (p *plan) order(l *layered) {
	for _, from := range p.find(l.name) {
		for _, key := range []string{"after", "requires", "before"} {
			e := l.get(key)
			for _, name := range items(e.node) {
				others := p.find(name)
				if len(others) == 0 {
					p.note(l.at(e, l.name+"."+key), "there is no service %q", name)
				}
				at := l.at(e, l.name+"."+key)
				for _, other := range others {
					switch key {
					case "before":
						other.wait(need{name: from.name, until: "started", optional: true, place: at.place})
					case "after":
						from.wait(need{name: other.name, until: "started", optional: !p.says(l, "requires", name), place: at.place})
					default:
						if from.text("enabled") == "" {
							other.set("enabled", "")
						}
						if p.says(l, "before", name) || p.saysAt(name, "after", l.name) {
							p.note(at, "%s begins after it, so that it is enabled and not waited for", name)
							break
						}
						from.wait(need{name: other.name, until: "started", place: at.place})
					}
				}
			}
		}
	}
}

// says reports whether a key of a service names another service.
func (p *plan) says(l *layered, key, name string) bool {
	return slices.Contains(items(l.get(key).node), name)
}

func (p *plan) saysAt(service, key, name string) bool {
	return slices.ContainsFunc(p.services, func(l *layered) bool { return l.name == service && p.says(l, key, name) })
}

// inContext adds a check that no service acts on to the service in whose context the check runs.
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

// checksOfServices adds checks to the services that act when they fail. used has the names of these checks.
func (p *plan) checksOfServices() (used map[string]bool) {
	used = make(map[string]bool)
	for _, l := range p.services {
		e := l.get("on-check-failure")
		for _, action := range variables(e.node) {
			i := slices.IndexFunc(p.checks, func(c *layered) bool { return c.name == action.name })
			if i < 0 {
				p.note(l.at(e, l.name+".on-check-failure"), "there is no check %q", action.name)
				continue
			}
			used[action.name] = true
			does, known := map[string]string{"restart": "restart", "ignore": "report", "shutdown": "shutdown", "success-shutdown": "shutdown", "failure-shutdown": "shutdown"}[action.value]
			if !known {
				p.note(l.at(e, l.name+".on-check-failure."+action.name), "%q is not known; it is only reported", action.value)
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
	k := check{values{"kind": "alive", "period": "10s", "timeout": "3s", "failure_threshold": "3", "on_failure": does}, l.place}
	if does == "report" && l.get("level").words() == "ready" {
		k.values = values{"kind": "ready", "period": "10s", "timeout": "3s", "failure_threshold": "3"}
	}
	if name := serviceName(l.name); strings.Trim(name, "-") != "" {
		k.set("name", name)
	}
	found := false
	for _, e := range l.keys {
		at := l.at(e, "checks."+l.name+"."+e.name)
		switch e.name {
		case "period", "timeout":
			k.set(e.name, e.text())
		case "threshold":
			k.set("failure_threshold", e.text())
		case "level":
			if e.text() == "ready" && k.text("kind") != "ready" {
				p.note(at, "a check that does something when it fails is of kind alive; add one of kind ready if starts should wait for it")
			}
		case "startup":
			if e.text() == "disabled" {
				p.note(at, "checks of hinit run while the service does")
			}
		case "http", "tcp":
			found = true
			for _, part := range entries(e.node) {
				if part.name == "headers" {
					k.set("http.headers", variables(part.node))
				} else {
					k.set(e.name+"."+part.name, part.text())
				}
			}
		case "exec":
			for _, x := range entries(e.node) {
				switch {
				case x.name == "command":
					found = true
					words, _ := split(x.text(), shellEscape)
					k.set("exec.command", words)
				case x.name == "service-context" && x.text() == s.was: // the check runs in the context of its own service
				default:
					p.note(from{place{at.file, x.line}, at.where + "." + x.name}, "a check runs as its service and in its environment; sh -c sets another directory or variable")
				}
			}
		default:
			p.apply(nil, e.name, at, s, "")
		}
	}
	if !found {
		p.note(from{l.place, "checks." + l.name}, "says nothing to look at and is left out")
		return
	}
	if n, err := strconv.Atoi(k.text("failure_threshold")); err != nil || n < 1 {
		p.note(l.at(l.get("threshold"), "checks."+l.name+".threshold"), "%q is no number from 1 on; 3 is taken", k.text("failure_threshold"))
		k.set("failure_threshold", "3")
	}
	s.checks = append(s.checks, k)
}
