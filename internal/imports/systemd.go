package imports

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
)

// unitKinds are the kinds of units that are imported. Most other units in the directory get a note.
var unitKinds = []string{".service", ".timer"}

// unitImport is one import of systemd units.
type unitImport struct {
	*importer
	dir   string
	units []*unit
}

// unit is a systemd unit, with the settings from its file and its drop-ins.
type unit struct {
	name, kind       string // name of the unit without its suffix, and the suffix, such as .service
	prefix, instance string // parts of the name before and after @
	place            place
	keys             []setting // settings from all files of the unit
	service          *service  // service of hinit for this .service unit; nil for other units
}

// importSystemd imports a systemd unit, an instance of a template, or all units of a directory.
func (im *importer) importSystemd(path string) error {
	u := &unitImport{importer: im, dir: filepath.Dir(path)}
	names := []string{filepath.Base(path)}
	if found, _ := filepath.Glob(filepath.Join(path, "*.*")); len(found) > 0 {
		u.dir, names = path, lo.Map(found, func(name string, _ int) string { return filepath.Base(name) })
	} else if timer := strings.TrimSuffix(names[0], ".service") + ".timer"; exists(filepath.Join(u.dir, timer)) {
		names = append(names, timer)
	}
	im.defaults.values = values{
		"restart.max_restarts": "5", "restart.max_restarts_window": "10s", "stop.grace": "90s", // defaults of systemd-system.conf(5)
		"restart.initial": "100ms", "restart.factor": "1", "restart.max": "100ms",
	}
	for _, name := range names {
		if err := u.loadUnit(name, true); err != nil {
			return err
		}
	}
	for _, n := range u.units {
		if n.kind == ".service" {
			n.service = im.addService(n.place, n.name)
			u.importService(n)
		}
	}
	for _, n := range u.units {
		if n.kind == ".timer" {
			u.importTimer(n)
		}
	}
	for _, n := range u.units {
		if n.service != nil {
			u.importRelations(n)
			im.dropWithoutCommand(n.service, sourceRef{n.place, n.name})
		}
	}
	return nil
}

// loadUnit reads a unit with its drop-ins, unless it was already read. If follow is true, it also reads the units that this
// unit activates, but no further units: a template could activate an endless chain of instances.
func (u *unitImport) loadUnit(name string, follow bool) error {
	n := &unit{kind: filepath.Ext(name), place: place{file: filepath.Join(u.dir, name)}}
	n.name = strings.TrimSuffix(name, n.kind)
	if slices.ContainsFunc(u.units, func(other *unit) bool { return other.name == n.name && other.kind == n.kind }) {
		return nil
	}
	if !slices.Contains(unitKinds, n.kind) || strings.Contains(name, "/") {
		if slices.Contains([]string{".socket", ".path", ".mount", ".automount", ".swap", ".target", ".slice"}, n.kind) {
			u.addNote(sourceRef{place: n.place}, "hinit has services and tasks only; this unit is left out")
		}
		return nil
	}
	parts, dropIns := []string{n.place.file}, []string{name}
	templated := false
	if n.prefix, n.instance, templated = strings.Cut(n.name, "@"); templated {
		template := n.prefix + "@" + n.kind
		dropIns = append(dropIns, template)
		if !exists(n.place.file) {
			n.place.file = filepath.Join(u.dir, template)
			parts[0] = n.place.file
		}
	}
	for _, name := range slices.Backward(slices.Compact(dropIns)) { // drop-ins of an instance override drop-ins of the template, so they come last
		more, _ := filepath.Glob(filepath.Join(u.dir, name+".d", "*.conf"))
		parts = append(parts, more...)
	}
	for _, part := range parts {
		if err := u.readSettings(n, part); err != nil {
			return err
		}
	}
	if templated && n.instance == "" {
		n.instance = n.lastValue("DefaultInstance")
		if n.name += n.instance; n.instance == "" {
			u.addNote(sourceRef{place: n.place}, "is a template; import an instance of it: hinit import %s", filepath.Join(u.dir, n.prefix+"@NAME"+n.kind))
			return nil
		}
	}
	u.replaceSpecifiers(n)
	u.units = append(u.units, n)
	activates := lo.Ternary(n.kind == ".timer", []string{n.activatedUnit()}, strings.Fields(n.lastValue("OnFailure")))
	for _, other := range activates {
		template := regexp.MustCompile(`@.*\.`).ReplaceAllString(other, "@.")
		if follow && (exists(filepath.Join(u.dir, other)) || exists(filepath.Join(u.dir, template))) {
			if err := u.loadUnit(other, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// listSettings matches the names of settings that are lists. All values of such a setting count. Of any other setting, the last
// value counts.
var listSettings = regexp.MustCompile("^(" + strings.Join(relationSettings, "|") + "|Exec.*|Environment.*|PassEnvironment|.*ExitStatus|Condition.*|Assert.*|On[CBSAU].*Sec|OnCalendar|.*Paths|SystemCall.*)$")

// readSettings adds the settings in one file to the unit. An empty value removes all earlier values of its setting.
func (u *unitImport) readSettings(n *unit, path string) error {
	sections, err := u.readINI(path, true)
	for _, s := range sections {
		if !slices.Contains([]string{"Unit", "Service", "Timer", "Install"}, s.name) {
			if !strings.HasPrefix(s.name, "X-") {
				u.addNote(sourceRef{s.place, s.name}, "hinit has nothing like this section; hinit config schema lists what it has")
			}
			continue
		}
		for _, k := range s.keys {
			if k.name == "TimeoutSec" { // TimeoutSec limits both the start and the stop
				k.name = "TimeoutStartSec"
				n.keys = append(n.keys, k)
				k.name = "TimeoutStopSec"
			}
			if k.value == "" || !listSettings.MatchString(k.name) {
				n.keys = slices.DeleteFunc(n.keys, func(before setting) bool { return before.name == k.name })
			}
			if k.value != "" || strings.HasPrefix(k.name, "Capability") { // an empty Capability setting means that the unit has no capability
				n.keys = append(n.keys, k)
			}
		}
	}
	return err
}

// lastValue returns the last value of a setting. If the unit lacks the setting, it returns "".
func (n *unit) lastValue(name string) string {
	k, _, _ := lo.FindLastIndexOf(n.keys, func(k setting) bool { return k.name == name })
	return k.value
}

// activatedUnit returns the name of the unit that a timer starts.
func (n *unit) activatedUnit() string { return cmp.Or(n.lastValue("Unit"), n.name+".service") }

var specifier = regexp.MustCompile(`%[A-Za-z%]`)

// replaceSpecifiers replaces the specifiers of systemd.unit(5), such as %i. In a command, the specifier for the host name becomes
// a variable, because its value is known only when the command runs.
func (u *unitImport) replaceSpecifiers(n *unit) {
	inside := func(text string) string { return strings.ReplaceAll(strings.ReplaceAll(text, "-", "/"), `\x2d`, "-") }
	known := map[string]string{
		"%i": n.instance, "%I": inside(n.instance), "%n": n.name + n.kind, "%N": n.name, "%p": n.prefix, "%P": inside(n.prefix),
		"%j": n.prefix[strings.LastIndex(n.prefix, "-")+1:], "%f": "/" + inside(cmp.Or(n.instance, n.prefix)), "%%": "%",
		"%t": "/run", "%S": "/var/lib", "%C": "/var/cache", "%L": "/var/log", "%E": "/etc", "%T": "/tmp", "%V": "/var/tmp",
		"%h": "/root", "%u": "root", "%U": "0", "%g": "root", "%G": "0", "%s": "/bin/sh",
	}
	for i, k := range n.keys {
		n.keys[i].value = specifier.ReplaceAllStringFunc(k.value, func(m string) string {
			value, is := known[m]
			switch {
			case is:
				return value
			case m == "%H" && strings.HasPrefix(k.name, "Exec"):
				return "${HOSTNAME}"
			}
			u.addNote(k.sourceRef, "%s stands for a value of the running system; write the value into hinit.yaml", m)
			return m
		})
	}
}

// unitRules are the rules for the settings of a service, except commands and relations to other units.
var unitRules = slices.Concat(rules{
	{name: strings.Join(relationSettings, "|") + "|" + strings.Join(commandSettings, "|")}, // importRelations and importCommands import these settings
	{name: "Type", convert: importType},
	{name: "User", key: "user", convert: func(_ *importer, s *service, e setting) { s.set("user", e.value+s.text("user")) }},
	{name: "Group", key: "user", convert: func(_ *importer, s *service, e setting) { s.set("user", s.text("user")+":"+e.value) }},
	{name: "TimeoutStartSec", key: "notify.timeout", convertNode: func(e setting) any {
		span, _ := parseTimeSpan(e.value) // an error means infinity, which is also hinit's default
		return span
	}},
	{name: "Restart", key: "restart.policy", convertText: func(value string) (string, error) {
		if slices.Contains([]string{"on-abnormal", "on-abort", "on-watchdog"}, value) {
			return "on-failure", fmt.Errorf("%s is on-failure here: hinit restarts after each end with another exit code too", value)
		}
		if value == "no" {
			return "never", nil
		}
		return value, nil
	}},
	{name: "Description", convert: func(_ *importer, s *service, e setting) { s.comment = commentLine(e.value) }},
	{name: "Environment", key: "env", convert: func(im *importer, s *service, e setting) {
		assignments, err := unitWords(e.value)
		if err != nil {
			im.addNote(e.sourceRef, "cannot be read: %v", err)
		}
		for _, a := range assignments {
			name, value, _ := strings.Cut(a, "=")
			s.addVariables(envVar{name, value})
		}
	}},
	{name: "EnvironmentFile", key: "env_file", convert: func(_ *importer, s *service, e setting) {
		s.set("env_file", append(s.list("env_file"), e.value))
	}},
	{name: "WorkingDirectory", key: "cwd", convertText: func(value string) (string, error) {
		if value == "~" {
			return "", errors.New("write the home of the user into hinit.yaml")
		}
		return strings.TrimPrefix(value, "-"), nil
	}},
	{name: "Limit.*", key: "limits", convert: func(_ *importer, s *service, e setting) {
		limits, _ := s.values["limits"].([]envVar)
		limit := envVar{strings.ToLower(strings.TrimPrefix(e.name, "Limit")), strings.ReplaceAll(e.value, "infinity", "unlimited")}
		s.set("limits", append(limits, limit))
	}},
	{name: "RestartSec", convert: constantRestartDelay(parseTimeSpan)},
	{name: "SuccessExitStatus", convert: addExitCodes("success_codes", " ")},
	{name: "RestartPreventExitStatus", convert: addExitCodes("park_on", " ")},
	// StartLimitIntervalSec=0, which means no limit, may come first.
	{name: "StartLimitBurst", convert: func(_ *importer, s *service, e setting) {
		s.set("restart.max_restarts", cmp.Or(s.text("restart.max_restarts"), e.value))
	}},
	{name: "StartLimitInterval(Sec)?", key: "restart", convert: func(im *importer, s *service, e setting) {
		if strings.Trim(e.value, "0s") == "" {
			s.set("restart.max_restarts", "0")
			return
		}
		im.applyRule(rule{key: "restart.max_restarts_window", convertText: parseTimeSpan}, e, func(span any) { s.set("restart.max_restarts_window", span) })
	}},
	{name: "CPUAffinity", key: "cpu_affinity", convertText: func(value string) (string, error) { return strings.Join(strings.Fields(value), ","), nil }},
}, parseRules("systemd unit"))

// importType imports Type=, the condition for a started service.
func importType(im *importer, s *service, e setting) {
	switch e.value {
	case "oneshot":
		s.set("once", "boot")
		s.set("restart.policy", strings.TrimPrefix(s.text("restart.policy"), "never"))
	case "notify", "notify-reload":
		s.set("notify.protocol", "systemd")
		if _, given := s.places["notify"]; !given {
			s.set("notify.timeout", "90s")
		}
		if e.value == "notify-reload" {
			s.set("reload_signal", "HUP")
		}
	case "forking":
		s.set("enabled", "false")
		im.addNote(e.sourceRef, "is not enabled: a service stays in the foreground under hinit; give the program the option for that, and remove enabled: false")
	case "dbus", "idle":
		im.addNote(e.sourceRef, "counts as started at once (%s); add a check of kind ready where others wait for it", e.value)
	}
}

// importService imports the settings of a .service unit into its service.
func (u *unitImport) importService(n *unit) {
	n.service.set("log", "true")
	n.service.set("restart.policy", "never")
	u.apply(unitRules, n.service, n.keys...)
	if at, is := n.service.places["env_file"]; is && n.service.values["env"] != nil {
		u.addNote(sourceRef{at, "EnvironmentFile"}, "systemd prefers the file to Environment, and hinit prefers env; remove from env what the file sets")
	}
	u.importCommands(n)
}

var relationSettings = []string{"After", "Before", "Wants", "Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "OnFailure"}

// importRelations imports the relations of a unit to others, such as After= and OnFailure=. Each unit that is not imported gets
// a note.
func (u *unitImport) importRelations(n *unit) {
	s := n.service
	required := strings.Fields(n.lastValue("Requires") + " " + n.lastValue("Requisite") + " " + n.lastValue("BindsTo"))
	for _, k := range n.keys {
		if !slices.Contains(relationSettings, k.name) {
			continue
		}
		var absent, restarting []string
		for name := range strings.FieldsSeq(k.value) {
			found := u.findServices(strings.TrimSuffix(name, ".service"))
			if len(found) == 0 {
				absent = append(absent, name)
			}
			for _, other := range found {
				switch k.name {
				case "After":
					w := need{name: other.name, optional: !slices.Contains(required, name), place: k.place}
					if w.optional && other.isTask() {
						w.until = "started"
					}
					s.addNeed(w)
				case "Before":
					other.addNeed(need{name: s.name, optional: true, place: k.place})
				case "OnFailure":
					switch {
					case !other.isTask():
						other.set("enabled", "false")
					case other.text("schedule.cron") == "":
						other.set("once", "manual")
					}
					startAfterEvent(s, "failed", other, k.place)
				case "PartOf", "BindsTo":
					restarting = append(restarting, other.name)
				}
			}
		}
		if len(absent) > 0 {
			u.addNote(k.sourceRef, "not imported, and not waited for: %s", strings.Join(absent, ", "))
		}
		if len(restarting) > 0 {
			s.setFrom("restart_on", k.place, append(s.list("restart_on"), restarting...))
			u.addNote(k.sourceRef, "it is restarted with %s; a stop of that does not stop it", strings.Join(restarting, ", "))
		}
	}
}

// parseLimit converts a limit. It converts infinity to "", which means no limit. A percentage of the machine's memory or tasks is
// an error.
func parseLimit(value string) (string, error) {
	if strings.HasSuffix(value, "%") {
		return "", fmt.Errorf("hinit has no limits in percent (%s); write a number", value)
	}
	return lo.Ternary(value == "infinity", "", value), nil
}
