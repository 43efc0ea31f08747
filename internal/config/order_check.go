package config

import (
	"strings"
)

// owner is a service or a gateway whose references to other services are checked.
type owner struct {
	name, prefix string // name of the service, and the prefix of its keys
	needs        *[]Need
	restartOn    *[]string
}

// checkOrder checks the needs of all services, and sets the default state that each need waits for. Call it when all services are
// known.
func (l *loader) checkOrder() {
	c := l.cfg
	var owners []owner
	needs, follows := edges{}, edges{}
	add := func(o owner) {
		owners = append(owners, o)
		kept := make([]Need, 0, len(*o.needs))
		for _, n := range *o.needs {
			if l.checkNeed(o, &n) {
				kept = append(kept, n)
				needs[o.name] = append(needs[o.name], edge{n.Name, n.line})
			}
		}
		*o.needs = kept
		key := o.prefix + "restart_on"
		for _, name := range *o.restartOn {
			line := c.origins[key].line
			l.checkExists(key, line, name)
			follows[o.name] = append(follows[o.name], edge{name, line})
		}
	}
	for _, name := range sortedKeys(c.Services) {
		s := c.Services[name]
		add(owner{name, "services." + name + ".", &s.Needs, &s.RestartOn})
		c.Services[name] = s
	}
	for _, name := range sortedKeys(c.Profiles.Own) {
		p := c.Profiles.Own[name]
		add(owner{gatewayPrefix + name, "profiles." + name + ".", &p.Needs, &p.RestartOn})
		c.Profiles.Own[name] = p
	}
	for _, o := range owners {
		l.reportCycle(o, needs, "needs", "nothing of it could ever start; remove one of these needs")
		l.reportCycle(o, follows, "restart_on", "they would restart each other for ever; remove one of these names")
	}
}

// checkNeed sets the state that a need waits for, unless hinit.yaml sets the state. It returns false if the need is ignored or
// invalid.
func (l *loader) checkNeed(o owner, n *Need) bool {
	key := o.prefix + "needs"
	s, isService := l.cfg.Services[n.Name]
	profile, isGateway := strings.CutPrefix(n.Name, gatewayPrefix)
	left := n.Optional && (!isService && !isGateway || isService && !s.Enabled)
	if left || !l.checkExists(key, n.line, n.Name) {
		return false
	}
	task, policy := isService && s.IsTask(), s.Restart.Policy
	if isGateway {
		policy = l.cfg.ProfileOf(profile).Restart.Policy
	}
	switch {
	case n.Until == "" && task:
		n.Until = UntilDone
	case n.Until == "":
		n.Until = UntilReady
	case n.Until == UntilReady && task:
		l.problems.reportAtLine(n.line, "cannot set %s: %s is a task, which is never ready; write until: done", key, n.Name)
		return false
	case n.Until == UntilDone && !task && (policy == RestartAlways || policy == RestartOnSuccess):
		l.problems.reportAtLine(n.line, "cannot set %s: %s is never done, for it is restarted when it ends; write until: ready, or make it a task with once: boot", key, n.Name)
		return false
	}
	if owner, is := l.cfg.Services[o.name]; isService && !s.Enabled && (!is || owner.Enabled) {
		l.warn("%s waits for %s, which is not enabled; enable it, or make the need optional: {name: %s, optional: true}", o.name, n.Name, n.Name)
	}
	return true
}

// checkExists reports whether a service with the given name exists, or may exist later. If not, it reports a problem.
func (l *loader) checkExists(key string, line int, name string) bool {
	profile, isGateway := strings.CutPrefix(name, gatewayPrefix)
	_, isService := l.cfg.Services[name]
	switch {
	case isService, isGateway && IsName(profile) && !l.plain:
		return true
	case isGateway && l.plain:
		l.problems.reportAtLine(line, "cannot set %s: hinit run has no gateways; remove %q", key, name)
	case isGateway:
		l.problems.reportAtLine(line, "cannot set %s: %q cannot be the name of a profile", key, profile)
	case Nearest(name, sortedKeys(l.cfg.Services)) != "":
		l.problems.reportAtLine(line, "cannot set %s: there is no service %q; did you mean %q?", key, name, Nearest(name, sortedKeys(l.cfg.Services)))
	default:
		way := "; a gateway is called gateway-NAME"
		if l.plain {
			way = "; add it below services"
		}
		l.problems.reportAtLine(line, "cannot set %s: there is no service %q%s%s", key, name, listKeys("; there are: ", sortedKeys(l.cfg.Services)), way)
	}
	return false
}

// edge is a reference from an owner to another service, in needs or restart_on.
type edge struct {
	to   string
	line int
}

type edges map[string][]edge

// reportCycle reports a cycle of references through o. Each cycle is reported once, for its first member in the order of names.
func (l *loader) reportCycle(o owner, from edges, key, why string) {
	seen := map[string]bool{}
	var way func(name string) []edge // the references that lead from name to o, or nil
	way = func(name string) []edge {
		seen[name] = true
		for _, e := range from[name] {
			if e.to == o.name {
				return []edge{e}
			}
			if !seen[e.to] {
				if rest := way(e.to); rest != nil {
					return append([]edge{e}, rest...)
				}
			}
		}
		return nil
	}
	cycle, text := way(o.name), o.name
	for _, e := range cycle {
		if e.to < o.name {
			return // the cycle is reported for another member
		}
		text += " → " + e.to
	}
	if cycle != nil {
		l.problems.reportAtLine(cycle[0].line, "cannot set %s%s: %s is a cycle; %s", o.prefix, key, text, why)
	}
}
