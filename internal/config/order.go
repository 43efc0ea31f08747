package config

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"hinit/internal/cronspec"
	"hinit/internal/nearest"
)

// Need is a dependency: the service or gateway starts only when another service is in a given state.
type Need struct {
	Name     string `key:"name"`                                // name of a service; gateway-PROFILE for a gateway
	Until    string `key:"until" is:"oneof started ready done"` // state to wait for: one of the Until constants
	Optional bool   `key:"optional"`                            // whether the need is ignored if no enabled service has this name

	untilSet bool // whether hinit.yaml sets Until
	line     int
}

// The values of [Need].Until.
const (
	UntilStarted = "started" // the process of the other service runs
	UntilReady   = "ready"   // the other service is ready, or is up and can't report that it is ready
	UntilDone    = "done"    // the last run of the other service has ended with exit code 0
)

// The values of [Restart].Policy.
const (
	RestartAlways    = "always"
	RestartOnFailure = "on-failure"
	RestartNever     = "never"
	RestartOnSuccess = "on-success"
)

// The values of [Task].Once.
const (
	OnceBoot      = "boot"       // the task runs at each boot of the container
	OnceEachStart = "each-start" // the task runs at each boot, and before each later start of a service that needs it
	OnceManual    = "manual"     // the task runs only when an operator asks for it
)

// The values of [Schedule].OnMissed: what happens after a time of the schedule at which the container was down.
const (
	MissedSkip = "skip"
	MissedRun  = "run"
)

// Task says when a task runs. A task is a service that ends by itself; it sets "once" or "schedule".
type Task struct {
	Once     string   `key:"once" is:"oneof? boot each-start manual"` // when the task runs: one of the Once constants; "": only at the times of the schedule
	Schedule Schedule `key:"schedule."`
}

// Schedule sets the times at which a task runs.
type Schedule struct {
	Cron     string        `key:"cron,short" is:"cron?"`      // times in the syntax of cron; "": no schedule
	Timezone string        `key:"timezone" is:"zone?"`        // time zone of Cron; "": the time zone of the container
	Jitter   time.Duration `key:"jitter" is:"notnegative"`    // longest random delay after a time of the schedule
	OnMissed string        `key:"missed" is:"oneof skip run"` // effect of missed times: one of the Missed constants
}

// IsTask reports whether the service is a task, a service that is expected to end.
func (s *Service) IsTask() bool { return s.Task.Once != "" || s.Task.Schedule.Cron != "" }

// StartsAtBoot reports whether the service is started at the boot.
func (s *Service) StartsAtBoot() bool {
	return s.Enabled && (!s.IsTask() || s.Task.Once == OnceBoot || s.Task.Once == OnceEachStart)
}

// Profile has the settings of one profile, including the inherited ones. The values of Env are templates.
type Profile struct {
	Env             map[string]string `key:"env" fill:"profile"`                                              // variables of this profile, added to [Agent].Env
	Actions         Actions           `key:"on"`                                                              // actions after events of this gateway, see Config.Actions
	Checks          []Check           `key:"checks"`                                                          // health checks of this gateway only
	DeafAction      string            `key:"deaf" is:"oneof report restart off" inherits:"agent.deaf.action"` // action if this gateway is deaf, in place of [DeafDetection].Action
	Needs           []Need            `key:"needs"`
	RestartOn       []string          `key:"restart_on" is:"names"`
	ProcessSettings `key:"" fill:"profile" inherits:"agent."`
	Isolation       Isolation `key:"isolation.,root" fill:"profile" inherits:"isolation."` // isolation of the profile, see [Config.IsolationOf]
	Restart         Restart   `key:"restart." inherits:"restart."`
	Stop            Stop      `key:"stop." inherits:"stop."`
}

// ProfileOf returns the settings of a profile: its own, or the inherited ones.
func (c *Config) ProfileOf(name string) Profile {
	if p, own := c.Profiles.Overrides[name]; own {
		return p
	}
	return NewProfile(c)
}

// gatewayPrefix and the name of a profile make the service name of its gateway.
const gatewayPrefix = "gateway-"

// NewProfile returns the settings of a profile for which hinit.yaml sets nothing. c must be complete except for its profiles and
// services.
func NewProfile(c *Config) Profile {
	return Profile{
		Restart: c.Restart, Stop: c.Stop, Needs: []Need{}, RestartOn: []string{}, ProcessSettings: c.Agent.ProcessSettings,
		DeafAction: c.Agent.DeafDetection.Action, Isolation: c.Isolation,
	}
}

// decodeNeeds decodes a list of needs.
func (d *decoder) decodeNeeds(n *yaml.Node, key string) []Need {
	seen := map[string]bool{}
	return decodeList(d, n, key, "names such as [db] or [{name: db, until: started}]", func(item *yaml.Node, one string) (Need, bool) {
		need, before := Need{line: item.Line}, len(d.problems.list)
		if item.Kind != yaml.MappingNode {
			need.Name, _ = d.decodeText(item, key, "names")
		} else {
			d.decodeMapping(item, one+".", "", Keys[Need](), &need, nil)
			if need.Name == "" && len(d.problems.list) == before {
				d.problems.reportAtLine(item.Line, "cannot set %s: its name is missing; write {name: db}", one)
			}
		}
		need.untilSet = need.Until != ""
		if seen[need.Name] {
			d.problems.reportAtLine(item.Line, "cannot set %s: %q is in the list twice; one need has one condition", key, need.Name)
		}
		ok := len(d.problems.list) == before
		seen[need.Name] = seen[need.Name] || ok
		return need, ok
	})
}

// jsonNeeds is [JSONValue] for a list of needs.
func jsonNeeds(needs []Need) []any {
	out := make([]any, 0, len(needs))
	for _, n := range needs {
		if !n.untilSet && !n.Optional {
			out = append(out, n.Name)
			continue
		}
		one := map[string]any{"name": n.Name}
		if n.untilSet {
			one["until"] = n.Until
		}
		if n.Optional {
			one["optional"] = true
		}
		out = append(out, one)
	}
	return out
}

// completeTask sets the default restart policy of a task, and reports keys that contradict each other.
func (l *loader) completeTask(s *Service, prefix string) {
	t := &s.Task.Schedule
	if _, err := cronspec.Parse(t.Cron, t.Timezone); t.Cron != "" && err != nil {
		l.problems.reportAtOrigin(l.cfg.origins[prefix+"schedule.timezone"], "cannot use %sschedule: %v", prefix, err)
	}
	for _, key := range []string{"timezone", "jitter"} {
		if o, set := l.cfg.origins[prefix+"schedule."+key]; set && t.Cron == "" && (t.Timezone != "" || t.Jitter != 0) {
			l.problems.reportAtOrigin(o, "cannot use %sschedule: it has no times; add cron, as in {cron: \"0 3 * * *\", %s: …}", prefix, key)
			break
		}
	}
	if !s.IsTask() {
		return
	}
	policy := prefix + "restart.policy"
	o, own := l.cfg.origins[policy]
	switch {
	case !own:
		s.Restart.Policy = RestartNever
	case s.Restart.Policy == RestartAlways || s.Restart.Policy == RestartOnSuccess:
		l.problems.reportAtOrigin(o, "cannot use %s: a task that has ended well is done, and not restarted; write never or on-failure, or remove once and schedule", policy)
	}
}

// decodeProfiles decodes the fixed keys of the mapping "profiles". It returns the entries of single profiles, for
// decodeProfileSettings.
func (l *loader) decodeProfiles(d *decoder, n *yaml.Node, fields []Key) (own []keyEntry) {
	const within = "profiles."
	names := keyNames(fields, within, nil)
	for _, e := range d.entries(n, within, append(slices.Clone(names), "names of profiles")) {
		if i := slices.IndexFunc(fields, func(k Key) bool { return k.Path == within+e.key }); i >= 0 {
			d.decodeKey(e, "", &fields[i], l.cfg)
			continue
		}
		switch {
		case e.value.Kind != yaml.MappingNode && e.value.ShortTag() != "!!null":
			d.reportUnknownKey(e.line, within, e.key, append(slices.Clone(names), "names of profiles, as in {"+e.key+": {restart: never}}"), nil)
		case !IsValidName(e.key):
			d.problems.reportAtLine(e.line, "cannot set profiles: %q cannot be the name of a profile", e.key)
		default:
			own = append(own, e)
		}
	}
	return own
}

// decodeProfileSettings decodes the settings of single profiles. The inherited values must be final.
func (l *loader) decodeProfileSettings(d *decoder, own []keyEntry) {
	for _, e := range own {
		p, prefix := NewProfile(l.cfg), "profiles."+e.key+"."
		p.Env = map[string]string{}
		before := len(d.problems.list)
		d.decodeMapping(e.value, prefix, "", Keys[Profile](), &p, nil)
		if len(d.problems.list) == before {
			l.validateRestart(&p.Restart, prefix)
			l.validateProcessSettings(&p.ProcessSettings, prefix)
		}
		l.cfg.Profiles.Overrides[e.key] = p
		if n := len(l.cfg.ChecksOf(e.key)); n > maxChecks {
			l.problems.reportAtOrigin(l.cfg.origins[prefix+"checks"], "cannot set %schecks: a gateway can have %d checks, and this one has %d, including agent.checks; remove some, or give one the name of "+
				"another, which it replaces", prefix, maxChecks, n)
		}
	}
}

// validateRestart reports contradictory values of a restart policy, at the first of their lines. A policy without these keys is
// inherited, so it causes no second report.
func (l *loader) validateRestart(r *Restart, prefix string) {
	var at origin
	for _, name := range []string{"initial", "max", "park_on", "immediate_on"} { // the keys that checkRestart compares
		if o, own := l.cfg.origins[prefix+"restart."+name]; own && (at == origin{} || o.line < at.line) {
			at = o
		}
	}
	if reason := checkRestart(r); reason != "" && (at != origin{} || prefix == "") {
		l.problems.reportAtOrigin(at, "cannot use %srestart: %s", prefix, reason)
	}
}

// reference is a line of hinit.yaml in which one service or gateway refers to another, in needs or restart_on.
type reference struct {
	target string
	line   int
}

// references maps the name of each service and gateway to its references to others.
type references map[string][]reference

// checkReferences checks that all needs and restart_on refer to existing services, without cycles. It also sets the default
// states of needs. Call it when all services are known.
func (l *loader) checkReferences() {
	c := l.cfg
	l.serviceNames = sortedKeys(c.Services)
	prefixes := map[string]string{}
	needs, follows := references{}, references{}
	add := func(name, prefix string, owned *[]Need, restartOn []string) {
		prefixes[name] = prefix
		kept := make([]Need, 0, len(*owned))
		for _, n := range *owned {
			if l.checkNeed(name, prefix+"needs", &n) {
				kept = append(kept, n)
				needs[name] = append(needs[name], reference{n.Name, n.line})
			}
		}
		*owned = kept
		key := prefix + "restart_on"
		for _, other := range restartOn {
			line := c.origins[key].line
			l.checkExists(key, line, other)
			follows[name] = append(follows[name], reference{other, line})
		}
	}
	for _, name := range l.serviceNames {
		s := c.Services[name]
		add(name, "services."+name+".", &s.Needs, s.RestartOn)
		c.Services[name] = s
	}
	for _, name := range sortedKeys(c.Profiles.Overrides) {
		p := c.Profiles.Overrides[name]
		add(gatewayPrefix+name, "profiles."+name+".", &p.Needs, p.RestartOn)
		c.Profiles.Overrides[name] = p
	}
	l.reportCycles(needs, prefixes, "needs", "none of them could ever start; remove one of these needs")
	l.reportCycles(follows, prefixes, "restart_on", "they would restart each other for ever; remove one of these names")
}

// checkNeed sets the state that a need waits for, unless hinit.yaml sets it. owner is the service or gateway with the need. It
// returns false for a need to drop: an invalid need, or an optional need that can't be met.
func (l *loader) checkNeed(owner, key string, n *Need) bool {
	s, isService := l.cfg.Services[n.Name]
	profile, isGateway := strings.CutPrefix(n.Name, gatewayPrefix)
	omitted := n.Optional && (!isService && !isGateway || isService && !s.Enabled)
	if omitted || !l.checkExists(key, n.line, n.Name) {
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
	if waiting, is := l.cfg.Services[owner]; isService && !s.Enabled && (!is || waiting.Enabled) {
		l.warn("%s waits for %s, which is not enabled; enable it, or make the need optional: {name: %s, optional: true}", owner, n.Name, n.Name)
	}
	return true
}

// checkExists reports whether a service with this name exists, or is a gateway that may appear later. Otherwise it records a
// problem.
func (l *loader) checkExists(key string, line int, name string) bool {
	profile, isGateway := strings.CutPrefix(name, gatewayPrefix)
	_, isService := l.cfg.Services[name]
	switch {
	case isService, isGateway && IsValidName(profile) && !l.ServicesOnly:
		return true
	case isGateway && l.ServicesOnly:
		l.problems.reportAtLine(line, "cannot set %s: hinit run has no gateways; remove %q", key, name)
	case isGateway:
		l.problems.reportAtLine(line, "cannot set %s: %q cannot be the name of a profile", key, profile)
	case l.problems.countIfFull():
	default:
		hint := listKeysText("; there are: ", l.serviceNames) + "; a gateway is called gateway-NAME"
		if near := nearest.Word(name, l.serviceNames); near != "" {
			hint = "; did you mean \"" + near + "\"?"
		} else if l.ServicesOnly {
			hint = listKeysText("; there are: ", l.serviceNames) + "; add it below services"
		}
		l.problems.reportAtLine(line, "cannot set %s: there is no service %q%s", key, name, hint)
	}
	return false
}

// reportCycles reports cycles of references, at least one if any exists. It follows each reference once. The report of a cycle
// begins at the member whose name sorts first.
func (l *loader) reportCycles(from references, prefixes map[string]string, key, why string) {
	place := map[string]int{} // position of each service on the path, from 1; -1 for a finished service
	var way []reference       // the references that lead to the current service
	var follow func(r reference)
	follow = func(r reference) {
		switch at := place[r.target]; {
		case at < 0:
		case at > 0:
			place[r.target] = -1
			l.reportCycle(append(slices.Clone(way[at:]), r), prefixes, key, why)
		default:
			way = append(way, r)
			place[r.target] = len(way)
			for _, next := range from[r.target] {
				follow(next)
			}
			way = way[:len(way)-1]
			place[r.target] = -1
		}
	}
	for _, name := range sortedKeys(from) {
		follow(reference{target: name})
	}
}

// reportCycle reports one cycle of references. Each reference begins at the target of the reference before.
func (l *loader) reportCycle(cycle []reference, prefixes map[string]string, key, why string) {
	if l.problems.countIfFull() {
		return
	}
	names := make([]string, len(cycle))
	for i, r := range cycle {
		names[i] = r.target
	}
	last := slices.Index(names, slices.Min(names)) // the reference to the first member by name
	names = slices.Concat(names[last:], names[:last+1])
	line := cycle[(last+1)%len(cycle)].line
	l.problems.reportAtLine(line, "cannot set %s%s: %s is a cycle; %s", prefixes[names[0]], key, strings.Join(names, " → "), why)
}
