package imports

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"hinit/internal/cronspec"
)

// compose is a process-compose.yaml that is taken over.
type compose struct {
	*importer
	file    string
	shell   []string
	raw     bool // no variable of a command is filled in before the shell has it
	docker  bool // it is a compose file of Docker
	env     []pair
	dotenv  string            // the .env beside the file
	vars    map[string]string // for templates
	waits   []wait
	awaited map[string]bool // whose end somebody waits for
}

// wait is a dependency, by the names of process-compose.
type wait struct {
	from      *service
	to        string
	condition string
	line      int
}

// processCompose reads process-compose.yaml, or a compose file of Docker, whose keys are much the same.
func (im *importer) processCompose(path string) error {
	root, err := readYAML(path)
	if err != nil {
		return err
	}
	c := &compose{importer: im, file: path, shell: []string{"bash", "-c"}, vars: make(map[string]string), awaited: make(map[string]bool)}
	im.defaults.grace = "10s" // shutdown.timeout_seconds
	var processes []entry
	for _, e := range entries(root) {
		switch e.name {
		case "processes", "services":
			processes, c.docker = entries(e.node), e.name == "services"
		case "environment":
			c.env = variables(e.node)
			c.references(e.line, "environment", c.env)
		case "version", "is_strict", "name": // hinit is always strict
		case "disable_env_expansion":
			c.raw = e.isTrue()
		case "shell":
			for _, k := range entries(e.node) {
				switch k.name {
				case "shell_command":
					c.shell[0] = k.text()
				case "shell_argument":
					c.shell[1] = k.text()
				default:
					c.note(path, k.line, "shell."+k.name, "hinit has nothing like this setting")
				}
			}
		case "log_location", "log_level", "log_length", "log_configuration", "log_format":
			c.note(path, e.line, e.name, "each service has a log of its own, below logs.dir")
		case "vars":
			for _, v := range variables(e.node) {
				c.vars[v.name] = v.value
			}
		default:
			if !strings.HasPrefix(e.name, "x-") { // anchors
				c.note(path, e.line, e.name, "%s", otherWay(e.name))
			}
		}
	}
	if dotenv := absolute(path, ".env"); !c.docker && exists(dotenv) {
		c.dotenv = dotenv
		c.note(dotenv, 0, "", "each service reads it (env_file); what it sets is filled in by the shell of a command, and not in other settings")
	}
	for _, p := range processes {
		for _, d := range entries(p.node) {
			if d.name == "depends_on" {
				c.dependsOn(nil, d)
			}
		}
	}
	for _, w := range c.waits {
		if strings.Contains(w.condition, "_completed") {
			c.awaited[w.to] = true
		}
	}
	c.waits = nil
	for _, p := range processes {
		c.process(p)
	}
	for _, w := range c.waits {
		c.depend(w)
	}
	return nil
}

func (c *compose) dependsOn(from *service, e entry) {
	if e.node.Kind != yaml.MappingNode { // as docker compose has it
		for _, name := range items(e.node) {
			c.waits = append(c.waits, wait{from, name, "process_started", e.line})
		}
	}
	for _, d := range entries(e.node) {
		condition := "process_started"
		if d.node.Kind == yaml.ScalarNode && !isNull(d.node) {
			condition = d.text()
		}
		for _, k := range entries(d.node) {
			if k.name == "condition" {
				condition = k.text()
			}
		}
		c.waits = append(c.waits, wait{from, d.name, condition, d.line})
	}
}

// process takes over one process, once for each replica.
func (c *compose) process(p entry) {
	replicas := 1
	keys := entries(p.node)
	for _, e := range keys {
		if e.name == "replicas" {
			n, err := strconv.Atoi(e.text())
			if err != nil || n < 1 || n > 200 {
				c.note(c.file, e.line, p.name+".replicas", "%q is no number from 1 to 200; one is made", e.text())
				n = 1
			}
			replicas = n
		}
	}
	for n := range replicas {
		name := p.name
		if replicas > 1 {
			name = fmt.Sprintf("%s-%d", p.name, n)
		}
		s := c.add(c.file, p.line, name)
		s.group = p.name
		before := len(c.notes)
		vars := maps.Clone(c.vars)
		for _, e := range keys {
			if e.name == "vars" {
				for _, v := range variables(e.node) {
					vars[v.name] = v.value
				}
			}
		}
		vars["PC_REPLICA_NUM"], vars["PC_PROC_NAME"] = strconv.Itoa(n), p.name
		c.processKeys(p, keys, s, vars)
		for _, name := range []string{"PC_REPLICA_NUM", "PC_PROC_NAME"} {
			if strings.Contains(strings.Join(s.command, " "), name) || replicas > 1 && name == "PC_REPLICA_NUM" {
				s.env = append([]pair{{name, vars[name]}}, s.env...)
			}
		}
		if n > 0 {
			c.notes = c.notes[:before] // said of the first one
		}
	}
}

func (c *compose) processKeys(p entry, keys []entry, s *service, vars map[string]string) {
	s.env = append(s.env, c.env...)
	if c.dotenv != "" {
		s.envFiles = []string{c.dotenv}
	}
	s.restart.policy = "never"
	var entrypoint, arguments []string
	for _, e := range keys {
		where := p.name + "." + e.name
		note := func(format string, args ...any) { c.note(c.file, e.line, where, format, args...) }
		s.came(e.name, c.file, e.line)
		if !c.docker && e.node.Kind != yaml.ScalarNode && slices.Contains([]string{"command", "working_dir", "ready_log_line", "disabled"}, e.name) {
			note("is no text, and is left out")
			continue
		}
		switch e.name {
		case "command":
			if c.docker {
				arguments = c.words(e, where)
			} else {
				s.command = c.inShell(e, where, vars)
			}
		case "entrypoint":
			entrypoint = c.words(e, where)
		case "args":
			arguments = items(e.node)
		case "working_dir":
			s.cwd = absolute(c.file, c.filled(e, where, vars))
		case "environment":
			own := variables(e.node)
			s.env = append(s.env, own...)
			c.references(e.line, p.name+"."+e.name, own)
		case "env_file":
			for _, file := range items(e.node) {
				name, optional := strings.CutPrefix(file, "-")
				s.envFiles = append(s.envFiles, map[bool]string{true: "-"}[optional]+absolute(c.file, name))
			}
		case "depends_on":
			c.dependsOn(s, e)
		case "availability":
			c.availability(p.name, e, s)
		case "readiness_probe":
			c.probe(p.name, e, s, "ready", vars)
		case "liveness_probe":
			c.probe(p.name, e, s, "alive", vars)
		case "ready_log_line":
			k := check{kind: "ready", log: e.node.Value, place: place{c.file, e.line}}
			if regexp.QuoteMeta(k.log) != k.log {
				k.log, k.logMatches = "", k.log
			}
			s.checks = append(s.checks, k)
		case "shutdown":
			c.shutdown(p.name, e, s, vars)
		case "disabled":
			s.disabled = e.isTrue()
		case "log_location":
			s.output.log = true
			note("hinit writes to logs/%s/current below logs.dir, not to %s", s.name, e.text())
		case "log_configuration":
			c.logSize(p.name, e, s)
		case "schedule":
			c.schedule(p.name, e, s)
		case "replicas", "vars": // before
		case "success_exit_codes":
			s.restart.successes = codes(items(e.node))
		case "description":
			s.people.about = comment(c.filled(e, where, vars))
		case "namespace":
			s.people.group = serviceName(e.text())
		case "is_daemon":
			note("a service stays in the foreground under hinit; start it with the option for that")
		case "is_tty", "is_foreground", "is_interactive":
			s.disabled = s.disabled || e.name == "is_foreground" && e.isTrue() // it is started by hand
			note("a service has no terminal under hinit; make it the container's CMD if it needs one")
		default:
			if !c.container(e, where, s) {
				note("%s", otherWay(e.name))
			}
		}
	}
	if entrypoint != nil || c.docker {
		s.command = append(entrypoint, arguments...)
	}
	if s.restart.policy == "never" && s.task.cron == "" && (c.awaited[p.name] || s.task.once != "") {
		s.task.once, s.restart.policy = "boot", ""
	}
	if s.command == nil {
		c.note(c.file, p.line, p.name, "has no command and is left out")
		c.services = c.services[:len(c.services)-1]
	}
}

// references says which variables refer to others, which process-compose fills in and hinit doesn't.
func (c *compose) references(line int, where string, list []pair) {
	for _, v := range list {
		if variable().MatchString(v.value) {
			c.note(c.file, line, where, "%s refers to a variable (%s), which stays as it is written", v.name, v.value)
		}
	}
}

func (c *compose) availability(process string, at entry, s *service) {
	for _, e := range entries(at.node) {
		note := func(format string, args ...any) {
			c.note(c.file, e.line, process+".availability."+e.name, format, args...)
		}
		switch e.name {
		case "restart":
			policies := map[string]string{"always": "always", "on_failure": "on-failure", "exit_on_failure": "never", "no": "never", "false": "never"}
			policy, known := policies[e.text()]
			if !known {
				note("%q is not known; it is not restarted", e.text())
				break
			}
			s.restart.policy = policy
			if e.text() == "exit_on_failure" {
				note("hinit doesn't end when a service fails; make it the container's CMD for that")
			}
		case "backoff_seconds":
			if every := c.seconds(c.file, e, process+".availability."+e.name); every != "" {
				s.restart.initial, s.restart.max, s.restart.factor = every, every, "1"
			}
		case "max_restarts":
			s.restart.maxRestarts = e.text()
		case "exit_on_end":
			if e.isTrue() {
				note("hinit doesn't end when a service does; make it the container's CMD for that")
			}
		default:
			note("%s", otherWay(e.name))
		}
	}
}

func (c *compose) shutdown(process string, at entry, s *service, vars map[string]string) {
	for _, e := range entries(at.node) {
		note := func(format string, args ...any) { c.note(c.file, e.line, process+".shutdown."+e.name, format, args...) }
		switch e.name {
		case "signal":
			signal, known := signalName(e.text())
			if !known {
				note("hinit does not stop with %s; TERM is taken", e.text())
				break
			}
			s.stop.signal = signal
		case "timeout_seconds":
			s.stop.grace = c.seconds(c.file, e, process+".shutdown."+e.name)
		case "parent_only":
			if e.isTrue() {
				note("hinit always stops all processes of a service")
			}
		case "command":
			s.stop.command = c.inShell(e, process+".shutdown."+e.name, vars)
		default:
			note("hinit has nothing like this setting")
		}
	}
}

func (c *compose) schedule(process string, at entry, s *service) {
	for _, e := range entries(at.node) {
		note := func(format string, args ...any) { c.note(c.file, e.line, process+".schedule."+e.name, format, args...) }
		switch e.name {
		case "cron":
			s.task.cron, s.restart.policy = e.text(), ""
		case "timezone":
			s.task.timezone = e.text()
		case "interval":
			s.restart.policy, s.task.cron = "", "@every "+e.text()
			if _, err := cronspec.Parse(s.task.cron, ""); err != nil {
				s.task.cron, s.task.once = "", "boot"
				note("%q is no interval such as 90s; it runs once, at the boot", e.text())
			}
		case "run_on_start":
			if e.isTrue() {
				s.task.once = "boot"
			}
		case "max_concurrent":
			if e.text() != "1" {
				note("runs of a task don't overlap in hinit")
			}
		default:
			note("hinit has nothing like this setting")
		}
	}
}

// depend takes over one dependency.
func (c *compose) depend(w wait) {
	until, known := map[string]string{
		"process_started": "started", "process_healthy": "ready", "process_log_ready": "ready",
		"process_completed_successfully": "done", "process_completed": "done",
		"service_started": "started", "service_healthy": "ready", "service_completed_successfully": "done",
	}[w.condition]
	where := w.from.was + ".depends_on." + w.to
	if !known {
		c.note(c.file, w.line, where, "the condition %q is not known; it waits until that has started", w.condition)
		until = "started"
	}
	if w.condition == "process_completed" {
		c.note(c.file, w.line, where, "it waits until that has ended with exit code 0, not with any")
	}
	found := c.find(w.to)
	if len(found) == 0 {
		c.note(c.file, w.line, where, "there is no such process")
	}
	if w.to == w.from.was {
		c.note(c.file, w.line, where, "it would wait for itself; the need is left out")
	}
	for _, to := range found {
		w.from.wait(need{name: to.name, until: until, place: place{c.file, w.line}})
	}
}
