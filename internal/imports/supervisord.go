package imports

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/samber/lo"

	"hinit/internal/config"
)

// supervisordSections has notes about sections that are not imported.
var supervisordSections = parseRules("supervisord sections")

// importSupervisord imports supervisord.conf and the files that it includes.
func (im *importer) importSupervisord(path string) error {
	sections, err := im.supervisordFiles(path)
	if err != nil {
		return err
	}
	im.defaults.set("stop.grace", "10s") // supervisord's default for stopwaitsecs
	for _, s := range sections {
		if s.name == "supervisord" {
			im.importSupervisordSection(s)
		}
	}
	groups := make(map[string]string) // group of each program, without programs outside groups
	for _, s := range sections {
		name, is := strings.CutPrefix(s.name, "group:")
		if !is {
			continue
		}
		for program := range strings.SplitSeq(s.useSetting("programs").value, ",") {
			groups[strings.TrimSpace(program)] = name
		}
		if k := s.useSetting("priority"); k.used {
			im.addNote(sourceRef{k.place, "priority"}, "of a group is left out (%s); say needs where one program waits for another", k.value)
		}
	}
	priorities := make(map[*service]int)
	for _, s := range sections {
		kind, name, _ := strings.Cut(s.name, ":")
		switch kind {
		case "program":
			im.importProgram(s, name, groups[name], priorities)
		case "supervisord", "group", "include": // other functions import these sections
		default:
			im.apply(supervisordSections, nil, setting{sourceRef: sourceRef{s.place, s.name}, name: kind})
		}
	}
	im.orderByPriority(priorities)
	return nil
}

func (im *importer) supervisordFiles(path string) ([]*section, error) {
	sections, err := im.readINI(path, false)
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Clone(sections) {
		if s.name != "include" {
			continue
		}
		k := s.useSetting("files")
		_, violation, _ := config.ReadFile(path)
		for pattern := range strings.FieldsSeq(k.value) {
			pattern = absolutePath(path, strings.ReplaceAll(pattern, "%(here)s", absolutePath(path, ".")))
			if rel, err := filepath.Rel(absolutePath(path, "."), pattern); violation != nil && (err != nil || !filepath.IsLocal(rel)) {
				im.addNote(sourceRef{k.place, "files"}, "%s is not read, because it is elsewhere: %s", pattern, violation)
				continue
			}
			found, err := filepath.Glob(pattern)
			if err != nil || len(found) == 0 {
				im.addNote(sourceRef{k.place, "files"}, "nothing is at %s", pattern)
			}
			for _, name := range found {
				more, err := im.readINI(name, false)
				if err != nil {
					return nil, err
				}
				sections = append(sections, more...)
			}
		}
	}
	return sections, nil
}

// supervisordKeys has notes about settings in the section [supervisord].
var supervisordKeys = parseRules("supervisord")

// importSupervisordSection imports the section [supervisord], which has the settings of supervisord itself.
func (im *importer) importSupervisordSection(s *section) {
	if k := s.useSetting("environment"); k.used {
		k.where = k.name
		im.defaults.environment = im.variablesOf(k, map[string]string{"here": absolutePath(s.file, ".")})
	}
	for _, k := range s.keys {
		k.where = k.name
		if !k.used {
			im.apply(supervisordKeys, nil, k)
		}
	}
}

// variablesOf parses the environment variables in a setting. vars has the values for expressions in them. A variable that
// refers to the environment of supervisord is left out with a note.
func (im *importer) variablesOf(e setting, vars map[string]string) []envVar {
	list, err := parseEnvironment(e.value)
	if err != nil {
		im.addNote(e.sourceRef, "cannot be read: %v", err)
	}
	return lo.FilterMap(list, func(v envVar, _ int) (envVar, bool) {
		text, refers := expandPython(v.value, vars)
		if refers {
			im.addNote(e.sourceRef, "%s refers to a variable (%s) and is left out; services inherit the variables that hinit run is started with", v.name, v.value)
		}
		return envVar{v.name, text}, !refers
	})
}

// importProgram imports a section [program:x]. Each of its processes (numprocs) becomes a service. group is the group of the
// program, or "".
func (im *importer) importProgram(s *section, name, group string, priorities map[*service]int) {
	number := func(key string, otherwise int) (int, place) {
		k := s.useSetting(key)
		n, err := strconv.Atoi(k.value)
		if err != nil && k.used {
			im.addNote(sourceRef{k.place, key}, "%q is no number; %d is taken", k.value, otherwise)
		}
		return lo.Ternary(err == nil, n, otherwise), k.place
	}
	processes, _ := number("numprocs", 1)
	first, _ := number("numprocs_start", 0)
	priority, prioritized := number("priority", 999)
	process := "%(program_name)s"
	if k := s.useSetting("process_name"); k.used {
		process = k.value
	}
	if processes > 1 && !strings.Contains(process, "process_num") {
		process += "-%(process_num)d"
	}
	im.addReplicas(processes, func(n int) {
		vars := map[string]string{
			"program_name": name, "group_name": cmp.Or(group, name), "process_num": strconv.Itoa(first + n), "numprocs": strconv.Itoa(processes), "here": absolutePath(s.file, "."),
		}
		title, _ := expandPython(process, vars)
		svc := im.addService(s.place, title)
		svc.set("group", lo.Ternary(group == "", "", serviceName(group)))
		svc.recordPlace("needs", prioritized)
		priorities[svc] = priority
		im.importProgramKeys(s, svc, vars)
	})
}

// programRules are the rules for the settings of a program, except command and environment.
var programRules = slices.Concat(rules{
	{name: "stopwaitsecs", key: "stop.grace", convertText: func(value string) (string, error) {
		grace, err := parseSeconds(value)
		if grace == "" {
			err = fmt.Errorf("%q is no number of seconds above zero; 10s is taken", value)
		}
		return grace, err
	}},
	{name: "exitcodes", convert: addExitCodes("success_codes", " ,")},
	{name: "directory", key: "cwd", convertNode: func(e setting) any { return absolutePath(e.file, e.value) }},
	{name: "(stdout|stderr)_logfile", convert: importLogFile},
	{
		name: "(stdout|stderr)_(events_enabled|syslog)|redirect_stdout", matches: func(value string) bool { return !isFalse(value) },
		note: "run hinit forward as a service: it sends the lines to syslog, and hinit events -f streams what happens (%s)",
	},
}, parseRules("supervisord program"))

func convertAutorestart(value string) (string, error) {
	switch {
	case strings.EqualFold(value, "unexpected"):
		return "on-failure", nil
	case isFalse(value):
		return "never", nil
	case isTrue(value):
		return "always", nil
	}
	return "", fmt.Errorf("%q is not known; on-failure is taken, as for unexpected", value)
}

// importProgramKeys imports the settings of a program into svc.
func (im *importer) importProgramKeys(s *section, svc *service, vars map[string]string) {
	svc.addVariables(im.defaults.environment...)
	svc.set("log", "true")
	for _, k := range s.keys {
		written, refers := k.value, false
		k.value, refers = expandPython(written, vars)
		switch {
		case k.used:
		case k.name == "command":
			words := im.splitSetting(k)
			if refers && words != nil { // the shell expands the variables, but must not expand a literal dollar sign
				k.value, _ = expandPython(strings.ReplaceAll(written, "$", "$$"), vars)
				words = wrapInShell(im.splitSetting(k))
			}
			svc.set("command", words)
		case k.name == "environment":
			svc.recordPlace("env", k.place)
			k.value = written
			svc.addVariables(im.variablesOf(k, vars)...)
		case refers:
			im.addNote(k.sourceRef, "refers to variables (%s), and is left out; write the value into hinit.yaml", written)
		default:
			im.apply(programRules, svc, k)
		}
	}
	if k, is := lo.Find(s.keys, func(k setting) bool { return k.name == "exitcodes" }); is && !slices.Contains(strings.Fields(strings.ReplaceAll(k.value, ",", " ")), "0") {
		im.addNote(k.sourceRef, "exit code 0 is a success in hinit, too (%s)", k.value)
	}
	if svc.text("restart.policy") == "" {
		svc.set("restart.policy", "on-failure") // autorestart of supervisord is "unexpected" by default
	}
	im.dropWithoutCommand(svc, sourceRef{s.place, s.name})
}

func importLogFile(im *importer, s *service, e setting) {
	switch {
	case strings.EqualFold(e.value, "none"), strings.HasPrefix(e.value, "/dev/"):
		if e.name == "stdout_logfile" {
			s.set("log", "")
		}
	case strings.EqualFold(e.value, "syslog"):
		im.addNote(e.sourceRef, "hinit forward sends the log to syslog")
	case !strings.EqualFold(e.value, "auto"):
		im.addNote(e.sourceRef, "hinit writes both streams to logs/%s/current below logs.dir, not to %s", s.name, e.value)
	}
}

// orderByPriority makes each program wait for the programs with the next lower priority number, because supervisord starts them
// first.
func (im *importer) orderByPriority(priorities map[*service]int) {
	levels := slices.Compact(slices.Sorted(maps.Values(priorities)))
	for _, s := range im.services {
		level := slices.Index(levels, priorities[s])
		if level <= 0 {
			continue
		}
		for _, before := range im.services {
			if priorities[before] == levels[level-1] {
				s.addNeed(need{name: before.name, until: "started", optional: true, place: s.places["needs"]})
			}
		}
	}
}

var pythonExpression = regexp.MustCompile(`%%|%\(([A-Za-z_0-9]+)\)(0?\d*)([sd])`)

// expandPython replaces Python expressions such as %(name)s by values in vars. It replaces %(ENV_X)s, an environment variable,
// by a reference for a shell; refers reports whether the value has one.
func expandPython(value string, vars map[string]string) (text string, refers bool) {
	text = pythonExpression.ReplaceAllStringFunc(value, func(m string) string {
		if m == "%%" {
			return "%"
		}
		part := pythonExpression.FindStringSubmatch(m)
		if v, known := vars[part[1]]; known {
			if n, err := strconv.Atoi(v); err == nil && part[3] == "d" && part[2] != "" {
				return fmt.Sprintf("%"+part[2]+"d", n)
			}
			return v
		}
		refers = true
		if name, is := strings.CutPrefix(part[1], "ENV_"); is {
			return "${" + name + "}"
		}
		if part[1] == "host_node_name" {
			return "${HOSTNAME}"
		}
		return m
	})
	return text, refers
}

// environmentItem matches the first variable in a list. Its value may be in double quotes, in single quotes or without quotes.
var environmentItem = regexp.MustCompile(`^([^=]*)=\s*(?:"([^"]*)"[^,]*|'([^']*)'[^,]*|([^"',\s][^,]*|))(?:,|$)`)

// parseEnvironment parses a list of environment variables such as KEY="value",OTHER=value.
func parseEnvironment(value string) (list []envVar, err error) {
	for rest := strings.TrimSpace(value); rest != ""; {
		found := environmentItem.FindStringSubmatch(rest)
		switch {
		case !strings.Contains(rest, "="):
			return list, fmt.Errorf("%q is no assignment", rest)
		case found == nil:
			return list, fmt.Errorf("a quote is not closed")
		}
		list = append(list, envVar{strings.TrimSpace(found[1]), found[2] + found[3] + strings.TrimSpace(found[4])})
		rest = strings.TrimLeft(rest[len(found[0]):], ", \t\n")
	}
	return list, nil
}

// parseMegabytes converts a size, such as 50MB, 512KB, 1GB or a number of bytes, to megabytes. It rounds up.
func parseMegabytes(text string) (string, error) {
	n, err := units.RAMInBytes(strings.TrimSpace(text))
	if err != nil || n == 0 {
		return "", fmt.Errorf("hinit rotates every log; the default size is taken (%s)", text)
	}
	return strconv.FormatInt((n+1<<20-1)>>20, 10), nil
}
