package imports

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// supervisord reads supervisord.conf and what it includes.
func (im *importer) supervisord(path string) error {
	sections, err := im.supervisordFile(path)
	if err != nil {
		return err
	}
	im.defaults.grace = "10s" // stopwaitsecs
	for _, s := range sections {
		if s.name == "supervisord" {
			im.supervisordSelf(s)
		}
	}
	priorities := make(map[*service]int)
	for _, s := range sections {
		kind, name, _ := strings.Cut(s.name, ":")
		switch kind {
		case "program":
			for _, made := range im.program(s, name) {
				priorities[made.service] = made.priority
			}
		case "supervisord", "group": // before and after
		case "include":
		case "eventlistener":
			im.note(s.file, s.line, s.name, "hinit has no event listeners; hinit events -f --json streams what happens")
		case "fcgi-program":
			im.note(s.file, s.line, s.name, "hinit opens no FastCGI socket for a program; let it open its own")
		case "unix_http_server", "inet_http_server", "supervisorctl":
			im.note(s.file, s.line, s.name, "hinit has a control socket of its own (control.socket), and no port or password")
		case "rpcinterface", "ctlplugin":
			im.note(s.file, s.line, s.name, "hinit takes no plug-ins; its interface is the control socket, HTTP and JSON")
		default:
			im.note(s.file, s.line, s.name, "hinit has nothing like this section; hinit config schema lists what it has")
		}
	}
	for _, s := range sections {
		if name, is := strings.CutPrefix(s.name, "group:"); is {
			programs, _, _ := s.take("programs")
			for program := range strings.SplitSeq(programs, ",") {
				for _, member := range im.find(strings.TrimSpace(program)) {
					member.people.group = serviceName(name)
				}
			}
			if value, line, ok := s.take("priority"); ok {
				im.note(s.file, line, "priority", "of a group is left out (%s); say needs where one program waits for another", value)
			}
		}
	}
	im.byPriority(priorities)
	return nil
}

// supervisordFile reads a file and the files of its section include.
func (im *importer) supervisordFile(path string) ([]*section, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	sections, bad := parseINI(path, string(text))
	for _, line := range bad {
		im.note(path, line, "", "the line is no section, key or comment, and is left out")
	}
	for _, s := range slices.Clone(sections) {
		if s.name != "include" {
			continue
		}
		value, line, _ := s.take("files")
		for pattern := range strings.FieldsSeq(value) {
			pattern = strings.ReplaceAll(pattern, "%(here)s", filepath.Dir(path))
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(path), pattern)
			}
			found, err := filepath.Glob(pattern)
			if err != nil || len(found) == 0 {
				im.note(path, line, "files", "nothing is at %s", pattern)
			}
			for _, name := range found {
				text, err := readFile(name)
				if err != nil {
					return nil, err
				}
				more, bad := parseINI(name, string(text))
				for _, line := range bad {
					im.note(name, line, "", "the line is no section, key or comment, and is left out")
				}
				sections = append(sections, more...)
			}
		}
	}
	return sections, nil
}

// supervisordSelf takes over what supervisord says of itself.
func (im *importer) supervisordSelf(s *section) {
	if value, line, ok := s.take("environment"); ok {
		im.defaults.environment = im.variablesOf(value, map[string]string{"here": filepath.Dir(s.file)}, s.file, line, "environment")
	}
	for _, k := range s.keys {
		switch {
		case k.used:
		case k.name == "umask":
			im.note(s.file, k.line, k.name, "set services.NAME.umask (%s)", k.value)
		case k.name == "minfds":
			im.note(s.file, k.line, k.name, "set services.NAME.limits.nofile where a service needs more (%s)", k.value)
		case k.name == "minprocs":
			im.note(s.file, k.line, k.name, "set services.NAME.limits.nproc where a service needs more (%s)", k.value)
		case k.name == "nocleanup", k.name == "strip_ansi":
			im.note(s.file, k.line, k.name, "hinit leaves logs as they are, between its runs and in their text")
		case k.name == "nodaemon", k.name == "pidfile", k.name == "identifier", k.name == "silent":
			im.note(s.file, k.line, k.name, "hinit has no need of it: it stays in the foreground and is known by its control socket")
		case k.name == "user":
			im.note(s.file, k.line, k.name, "start hinit as %s, or set services.NAME.user", k.value)
		case k.name == "directory":
			im.note(s.file, k.line, k.name, "start hinit run in %s, or set services.NAME.cwd", k.value)
		case strings.Contains(k.name, "log"):
			im.note(s.file, k.line, k.name, "what hinit says goes to its standard error; logs of services are below logs.dir")
		default:
			im.note(s.file, k.line, k.name, "%s (%s)", otherWay(k.name), k.value)
		}
	}
}

// variablesOf reads the variables of a program, and leaves out those whose value refers to others.
func (im *importer) variablesOf(value string, vars map[string]string, file string, line int, where string) []pair {
	list, err := environmentOf(value)
	if err != nil {
		im.note(file, line, where, "cannot be read: %v", err)
	}
	var out []pair
	for _, v := range list {
		text, refers := expandPython(v.value, vars)
		if refers {
			im.note(file, line, where, "%s refers to a variable (%s) and is left out; services inherit the variables that hinit run is started with", v.name, v.value)
			continue
		}
		out = append(out, pair{v.name, text})
	}
	return out
}

// programService is a service made of a program.
type programService struct {
	*service
	priority int
}

// program takes over a section program, once for each of its processes.
func (im *importer) program(s *section, name string) (made []programService) {
	number := func(key string, otherwise int) int {
		value, line, ok := s.take(key)
		if !ok {
			return otherwise
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			im.note(s.file, line, key, "%q is no number; %d is taken", value, otherwise)
			return otherwise
		}
		return n
	}
	prioritized := s.lineOf("priority")
	processes, first, priority := number("numprocs", 1), number("numprocs_start", 0), number("priority", 999)
	process, _, named := s.take("process_name")
	if !named {
		process = "%(program_name)s"
	}
	if processes > 1 && !strings.Contains(process, "process_num") {
		process += "-%(process_num)d"
	}
	if processes > 200 {
		im.note(s.file, s.line, "numprocs", "%d processes are a service each; 200 are made", processes)
		processes = 200
	}
	keys := slices.Clone(s.keys)
	for n := first; n < first+processes; n++ {
		s.keys = slices.Clone(keys)
		vars := map[string]string{
			"program_name": name, "group_name": name, "process_num": strconv.Itoa(n), "numprocs": strconv.Itoa(processes), "here": filepath.Dir(s.file),
		}
		title, _ := expandPython(process, vars)
		svc := im.add(s.file, s.line, title)
		svc.group = name
		svc.came("priority", s.file, prioritized)
		before := len(im.notes)
		im.programKeys(s, svc, vars)
		if n > first {
			im.notes = im.notes[:before] // said of the first one
		}
		made = append(made, programService{svc, priority})
	}
	return made
}

// programKeys takes over the keys of a program.
func (im *importer) programKeys(s *section, svc *service, vars map[string]string) {
	svc.env = slices.Clone(im.defaults.environment)
	svc.output.log = true
	for _, k := range s.keys {
		if k.used {
			continue
		}
		value, refers := expandPython(k.value, vars)
		svc.came(k.name, s.file, k.line)
		note := func(format string, args ...any) {
			im.note(s.file, k.line, "["+s.name+"] "+k.name, format, args...)
		}
		if refers && k.name != "command" && k.name != "environment" {
			note("refers to variables (%s), and is left out; write the value into hinit.yaml", k.value)
			continue
		}
		switch k.name {
		case "command":
			words, err := split(value)
			if err != nil {
				note("cannot be taken apart: %v", err)
			}
			if refers {
				words = throughShell(words)
			}
			svc.command = words
		case "autostart":
			svc.disabled = isFalse(value)
		case "autorestart":
			switch {
			case strings.EqualFold(value, "unexpected"):
				svc.restart.policy = "on-failure"
			case isFalse(value):
				svc.restart.policy = "never"
			case isTrue(value):
				svc.restart.policy = "always"
			default:
				note("%q is not known; on-failure is taken, as for unexpected", value)
			}
		case "exitcodes":
			svc.restart.successes = codes(strings.Split(value, ","))
		case "startretries":
			svc.restart.maxRestarts = value
		case "startsecs":
			if value != "1" {
				note("is 1s for all services in hinit run (%s); add a check of kind startup to one that needs longer", value)
			}
		case "stopsignal":
			signal, known := signalName(value)
			if !known {
				note("hinit does not stop with %s; TERM is taken", value)
				break
			}
			svc.stop.signal = signal
		case "stopwaitsecs":
			if svc.stop.grace = seconds(value); svc.stop.grace == "" {
				note("%q is no number of seconds above zero; 10s is taken", value)
			}
		case "stopasgroup", "killasgroup":
			if isFalse(value) {
				note("hinit always stops all processes of a service")
			}
		case "user":
			svc.user = value
		case "directory":
			svc.cwd = absolute(s.file, value)
		case "umask":
			svc.umask = value
		case "environment":
			svc.env = append(svc.env, im.variablesOf(k.value, vars, s.file, k.line, "["+s.name+"] "+k.name)...)
		case "redirect_stderr":
			if isFalse(value) {
				note("one log takes both streams; the container's log keeps them apart")
			}
		case "stdout_logfile", "stderr_logfile":
			im.logFile(svc, k.name, value, note)
		case "stdout_logfile_maxbytes":
			size, err := megabytes(value)
			if err != nil || size == 0 {
				note("hinit rotates every log; the default size is taken (%s)", value)
				break
			}
			svc.output.size = strconv.Itoa(size)
		case "stdout_logfile_backups":
			svc.output.archives = value
		case "stderr_logfile_maxbytes", "stderr_logfile_backups":
			note("one log takes both streams; see stdout_logfile")
		case "stdout_events_enabled", "stderr_events_enabled", "stdout_syslog", "stderr_syslog", "redirect_stdout":
			if !isFalse(value) {
				note("run hinit forward as a service: it sends the lines to syslog, and hinit events -f streams what happens (%s)", value)
			}
		default:
			note("%s (%s)", otherWay(k.name), value)
		}
	}
	if svc.restart.policy == "" {
		svc.restart.policy = "on-failure" // unexpected
	}
	if len(svc.command) == 0 {
		im.note(s.file, s.line, s.name, "has no command and is left out")
		im.services = slices.DeleteFunc(im.services, func(other *service) bool { return other == svc })
	}
}

func (im *importer) logFile(svc *service, name, value string, note func(string, ...any)) {
	switch {
	case strings.EqualFold(value, "none"), strings.HasPrefix(value, "/dev/"):
		if name == "stdout_logfile" {
			svc.output.log = false
		}
	case strings.EqualFold(value, "syslog"):
		note("hinit forward sends the log to syslog")
	case !strings.EqualFold(value, "auto"):
		note("hinit writes both streams to logs/%s/current below logs.dir, not to %s", svc.name, value)
	}
}

// byPriority lets programs wait for the programs of the next lower priority, as supervisord starts them.
func (im *importer) byPriority(priorities map[*service]int) {
	var levels []int
	for _, p := range priorities {
		if !slices.Contains(levels, p) {
			levels = append(levels, p)
		}
	}
	slices.Sort(levels)
	for _, s := range im.services {
		level := slices.Index(levels, priorities[s])
		if level <= 0 {
			continue
		}
		for _, before := range im.services {
			if priorities[before] == levels[level-1] {
				s.wait(need{name: before.name, until: "started", optional: true, place: s.from["needs"]})
			}
		}
	}
}

var python = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%\(([A-Za-z_0-9]+)\)(0?\d*)([sd])`) })

// expandPython fills in %(name)s. A variable of the environment becomes a reference for a shell, and refers tells of it.
func expandPython(value string, vars map[string]string) (text string, refers bool) {
	text = python().ReplaceAllStringFunc(value, func(m string) string {
		part := python().FindStringSubmatch(m)
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
	return strings.ReplaceAll(text, "%%", "%"), refers
}

// environmentOf reads KEY="value",OTHER=value.
func environmentOf(value string) (list []pair, err error) {
	rest := strings.TrimSpace(value)
	for rest != "" {
		name, after, ok := strings.Cut(rest, "=")
		if !ok {
			return list, fmt.Errorf("%q is no assignment", rest)
		}
		after = strings.TrimLeft(after, " \t\n")
		var text string
		if after != "" && (after[0] == '"' || after[0] == '\'') {
			end := strings.IndexByte(after[1:], after[0])
			if end < 0 {
				return list, fmt.Errorf("a quote is not closed")
			}
			text, rest = after[1:1+end], after[end+2:]
			_, rest, _ = strings.Cut(rest, ",")
		} else {
			text, rest, _ = strings.Cut(after, ",")
			text = strings.TrimSpace(text)
		}
		list = append(list, pair{strings.TrimSpace(name), text})
		rest = strings.TrimLeft(rest, ", \t\n")
	}
	return list, nil
}

func isTrue(value string) bool {
	return slices.Contains([]string{"true", "on", "yes", "y", "t", "1"}, strings.ToLower(strings.TrimSpace(value)))
}

func isFalse(value string) bool {
	return slices.Contains([]string{"false", "off", "no", "n", "f", "0"}, strings.ToLower(strings.TrimSpace(value)))
}

// megabytes reads 50MB, 512KB, 1GB or a number of bytes, and rounds up.
func megabytes(value string) (int, error) {
	value = strings.ToUpper(strings.TrimSpace(value))
	unit := 1
	for suffix, size := range map[string]int{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30} {
		if number, is := strings.CutSuffix(value, suffix); is {
			value, unit = number, size
		}
	}
	n, err := strconv.Atoi(strings.TrimSpace(value))
	return (n*unit + 1<<20 - 1) >> 20, err
}
