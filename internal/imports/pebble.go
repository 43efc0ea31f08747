package imports

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/samber/lo"
)

// pebblePlan is the combination of pebble's layers: each service and each check, with its settings from all layers.
type pebblePlan struct {
	*importer
	services, checks []*mergedItem
}

// mergedItem is a service or a check, with its settings from all layers.
type mergedItem struct {
	setting  // mapping in the last layer with the item
	settings []setting
}

// get returns the first non-empty setting with one of the names, or a setting with a nil node.
func (l *mergedItem) get(names ...string) setting {
	e, _ := lo.Find(l.settings, func(e setting) bool { return slices.Contains(names, e.name) && !isNull(e.node) })
	return e
}

// importPebble imports a layer of pebble, or a directory of layers.
func (im *importer) importPebble(path string) error {
	files, _ := filepath.Glob(filepath.Join(path, "[0-9][0-9][0-9]-*.yaml"))
	if len(files) == 0 {
		files = []string{path}
	}
	p := &pebblePlan{importer: im}
	for _, file := range files {
		if err := p.addLayer(file); err != nil {
			return err
		}
	}
	im.defaults.values = values{"stop.grace": "5s", "restart.initial": "500ms", "restart.factor": "2", "restart.max": "30s"}
	for _, l := range p.services {
		p.importService(l)
	}
	requires := lo.SliceToMap(p.services, func(l *mergedItem) (string, []string) { return l.name, l.get("requires").scalars() })
	var started []string // services with "startup: enabled", and the services that they require
	for _, l := range p.services {
		if p.importOrder(l); l.get("startup").value == "enabled" {
			started = appendReachable(started, l.name, func(name string) []string { return requires[name] })
		}
	}
	for _, s := range p.importer.services {
		s.set("enabled", enabledValue(!slices.Contains(started, s.oldName)))
	}
	used := p.addChecksToServices()
	for _, c := range p.checks {
		if !used[c.name] && !p.addToServiceContext(c) {
			im.addNote(c.sourceRef, "belongs to no service (no on-check-failure names it); add it to the checks of the service it looks at")
		}
	}
	return nil
}

// addLayer reads one layer and adds it to the plan.
func (p *pebblePlan) addLayer(file string) error {
	keys, err := readYAML(file)
	if err != nil {
		return err
	}
	for _, e := range keys {
		switch e.name {
		case "summary", "description":
		case "services":
			e.where = ""
			p.services = mergeLayer(p.services, e)
		case "checks":
			p.checks = mergeLayer(p.checks, e)
		case "log-targets":
			for _, t := range e.keys() {
				p.addNote(t.sourceRef, "hinit forward sends logs to Loki, OpenTelemetry and syslog; make it a service: hinit forward --to URL (%s)", t.name)
			}
		default:
			e.value = ""
			p.apply(nil, nil, e)
		}
	}
	return nil
}

// mergeLayer adds the services or checks of one layer to list. For an item that list already has, the key override decides
// whether it is merged with the old item or replaces it.
func mergeLayer(list []*mergedItem, at setting) []*mergedItem {
	for _, e := range at.keys() {
		i := slices.IndexFunc(list, func(l *mergedItem) bool { return l.name == e.name })
		if i < 0 {
			list, i = append(list, &mergedItem{}), len(list)
		}
		l := list[i]
		l.setting = e
		keys := e.keys()
		if !slices.ContainsFunc(keys, func(k setting) bool { return k.name == "override" && k.value == "merge" }) {
			l.settings = nil
		}
		for _, k := range keys {
			if k.name != "override" {
				l.merge(k)
			}
		}
	}
	return list
}

// merge merges a setting of a later layer into l. Lists and mappings are joined; any other value replaces the old one.
func (l *mergedItem) merge(k setting) {
	i := slices.IndexFunc(l.settings, func(e setting) bool { return e.name == k.name })
	if i < 0 {
		l.settings = append(l.settings, k)
		return
	}
	if old := l.settings[i].node; old.Kind == k.node.Kind && len(k.node.Content) > 0 {
		merged := *old
		merged.Content = append(slices.Clone(old.Content), k.node.Content...)
		k.node = &merged
	}
	l.settings[i] = k
}

// pebbleRules are the rules for settings of a service that can be imported one by one.
var pebbleRules = slices.Concat(rules{
	{name: "environment", key: "env", convertNode: variables},
	{name: "working-dir", key: "cwd", convertNode: func(e setting) any { return absolutePath(e.file, e.value) }},
	// The methods pebble, order and addChecksToServices import these settings.
	{name: "startup|after|before|requires|on-check-failure", key: "needs", convert: func(*importer, *service, setting) {}},
	{name: "command", convert: func(im *importer, s *service, e setting) {
		words := slices.DeleteFunc(im.splitSetting(e), func(w string) bool { return w == "[" || w == "]" }) // brackets enclose arguments that a caller can replace
		s.setFrom("command", e.place, words)
	}},
}, parseRules("pebble service"))

func (p *pebblePlan) importService(l *mergedItem) {
	s := p.addService(l.place, l.name)
	p.apply(pebbleRules, s, l.settings...)
	s.comment = commentLine(l.get("summary").value, l.get("description").value)
	user, group := l.get("user", "user-id"), l.get("group", "group-id").value
	switch {
	case group != "" && user.value != "":
		user.value += ":" + group
	case group != "":
		p.addNote(sourceRef{l.place, l.name + ".group"}, "is left out without a user; write user: NAME:%s", group)
	}
	s.setFrom("user", cmp.Or(user.place, l.place), user.value)
	restarts := func(on string) bool { return l.get(on).node == nil || l.get(on).value == "restart" }
	s.set("restart.policy", map[[2]bool]string{{false, true}: "on-failure", {true, false}: "on-success", {false, false}: "never"}[[2]bool{
		restarts("on-success"), restarts("on-failure"),
	}])
	p.dropWithoutCommand(s, sourceRef{l.place, l.name})
}

// importOrder imports the order in which services start. In pebble, a requirement also starts the required service; in hinit,
// its key enabled does. The service also waits for the required service, unless the file gives the opposite order.
func (p *pebblePlan) importOrder(l *mergedItem) {
	for _, s := range p.findServices(l.name) {
		for _, key := range []string{"after", "requires", "before"} {
			e := l.get(key)
			for _, name := range e.scalars() {
				others := p.findServices(name)
				if len(others) == 0 {
					p.addNote(e.sourceRef, "there is no service %q", name)
				}
				for _, other := range others {
					switch key {
					case "before":
						other.addNeed(need{name: s.name, until: "started", optional: true, place: e.place})
					case "after":
						s.addNeed(need{name: other.name, until: "started", optional: !l.lists("requires", name), place: e.place})
					default:
						if l.lists("before", name) || slices.ContainsFunc(p.services, func(o *mergedItem) bool { return o.name == name && o.lists("after", l.name) }) {
							p.addNote(e.sourceRef, "%s begins after %s, so it is enabled and not waited for", name, s.name)
							break
						}
						s.addNeed(need{name: other.name, until: "started", place: e.place})
					}
				}
			}
		}
	}
}

// lists reports whether a key of the item, such as "after", contains the service name.
func (l *mergedItem) lists(key, name string) bool { return slices.Contains(l.get(key).scalars(), name) }

// addToServiceContext adds a check to the service in its service-context, if no service lists it under on-check-failure. It
// returns false if the service does not exist.
func (p *pebblePlan) addToServiceContext(c *mergedItem) bool {
	for _, e := range c.get("exec").keys() {
		if of := p.findServices(e.value); e.name == "service-context" && len(of) > 0 {
			p.importCheck(c, of[0], "report")
			return true
		}
	}
	return false
}

// addChecksToServices adds each check to the services that list it under on-check-failure. used has the names of the added
// checks.
func (p *pebblePlan) addChecksToServices() (used map[string]bool) {
	used = make(map[string]bool)
	for _, l := range p.services {
		e := l.get("on-check-failure")
		for _, action := range e.variables() {
			i := slices.IndexFunc(p.checks, func(c *mergedItem) bool { return c.name == action.name })
			if i < 0 {
				p.addNote(e.sourceRef, "there is no check %q", action.name)
				continue
			}
			used[action.name] = true
			does, known := map[string]string{"restart": "restart", "ignore": "report", "shutdown": "shutdown", "success-shutdown": "shutdown", "failure-shutdown": "shutdown"}[action.value]
			if !known {
				p.addNote(sourceRef{e.place, e.where + "." + action.name}, "%q is not known; it is only reported", action.value)
				does = "report"
			}
			for _, s := range p.findServices(l.name) {
				p.importCheck(p.checks[i], s, does)
			}
		}
	}
	return used
}

func (p *pebblePlan) importCheck(l *mergedItem, s *service, does string) {
	k := newCheck(l.place, values{"kind": "alive", "period": "10s", "timeout": "3s", "failure_threshold": "3", "on_failure": does})
	level := l.get("level")
	if does == "report" && level.value == "ready" {
		k.values = values{"kind": "ready", "period": "10s", "timeout": "3s", "failure_threshold": "3"}
	}
	if name := serviceName(l.name); strings.Trim(name, "-") != "" {
		k.set("name", name)
	}
	const elsewhere = "a check runs as its service and in its environment; sh -c sets another directory or variable"
	p.apply(rules{
		{name: "period", key: "period"},
		{name: "timeout", key: "timeout"},
		{name: "threshold", key: "failure_threshold", matches: noneOf("0")}, // "0" is pebble's word for the default
		{
			name: "level", matches: func(value string) bool { return value == "ready" && k.text("kind") != "ready" },
			note: "a check that does something when it fails is of kind alive; add one of kind ready if starts should wait for it",
		},
		{name: "startup", matches: oneOf("disabled"), note: "checks of hinit run while the service does"},
		{name: "http", nested: rules{{name: "url", key: "http.url"}, {name: "headers", key: "http.headers", convertNode: variables}}},
		{name: "tcp", nested: rules{{name: "port", key: "tcp.port"}, {name: "host", key: "tcp.host"}}},
		{name: "exec", nested: rules{
			{name: "command", key: "exec.command", convertNode: func(e setting) any { return p.splitSetting(e) }},
			{name: "service-context", matches: noneOf(s.oldName), note: elsewhere}, // a check runs in the context of its own service
			{name: ".*", note: elsewhere},
		}},
	}, k, l.settings...)
	p.addCheck(s, k, l.sourceRef)
}
