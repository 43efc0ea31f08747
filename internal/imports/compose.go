package imports

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"hinit/internal/cronspec"
)

// compose is an import of a process-compose.yaml or of a compose file.
type compose struct {
	*importer
	file   string
	shell  []string
	raw    bool // leave all variables of a command to the shell
	docker bool // the file is a compose file of Docker
	env    []pair
	dotenv string            // path of the .env beside the file
	vars   map[string]string // for templates
	waits  []wait
}

// wait is a dependency, with the names that process-compose uses.
type wait struct {
	from      *service
	to        string
	condition string
	place     place
}

// at returns the place of an entry.
func (c *compose) at(e entry, where string) from { return from{place{c.file, e.line}, where} }

// processCompose reads process-compose.yaml, or a compose file of Docker, which has nearly the same keys.
func (im *importer) processCompose(path string) error {
	root, err := readYAML(path)
	if err != nil {
		return err
	}
	c := &compose{importer: im, file: path, shell: []string{"bash", "-c"}, vars: make(map[string]string)}
	im.defaults.set("stop.grace", "10s") // default of shutdown.timeout_seconds
	var processes []entry
	for _, e := range entries(root) {
		switch e.name {
		case "processes", "services":
			processes, c.docker = entries(e.node), e.name == "services"
		case "environment":
			c.env = variables(e.node)
			c.references(c.at(e, "environment"), c.env)
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
					c.note(c.at(k, "shell."+k.name), "hinit has nothing like this setting")
				}
			}
		case "log_location", "log_level", "log_length", "log_configuration", "log_format":
			c.note(c.at(e, e.name), "each service has a log of its own, below logs.dir")
		case "vars":
			for _, v := range variables(e.node) {
				c.vars[v.name] = v.value
			}
		default:
			if !strings.HasPrefix(e.name, "x-") { // keys with x- hold anchors
				c.apply(nil, e.name, c.at(e, e.name), nil, "")
			}
		}
	}
	if dotenv := absolute(path, ".env"); !c.docker && exists(dotenv) {
		c.dotenv = dotenv
		c.note(from{place: place{file: dotenv}}, "each service reads it (env_file); what it sets is filled in by the shell of a command, and not in other settings")
	}
	for _, p := range processes {
		c.process(p)
	}
	for _, w := range c.waits {
		c.depend(w)
	}
	return nil
}

func (c *compose) dependsOn(s *service, e entry) {
	if e.node.Kind != yaml.MappingNode { // the form of docker compose
		for _, name := range items(e.node) {
			c.waits = append(c.waits, wait{s, name, "process_started", place{c.file, e.line}})
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
		c.waits = append(c.waits, wait{s, d.name, condition, place{c.file, d.line}})
	}
}

// process imports one process, once for each replica.
func (c *compose) process(p entry) {
	replicas, vars := 1, maps.Clone(c.vars)
	keys := entries(p.node)
	for _, e := range keys {
		switch e.name {
		case "replicas":
			n, err := strconv.Atoi(e.text())
			if err != nil || n < 1 || n > mostReplicas {
				c.note(c.at(e, p.name+".replicas"), "%q is no number from 1 to %d; one is made", e.text(), mostReplicas)
				n = 1
			}
			replicas = n
		case "vars":
			for _, v := range variables(e.node) {
				vars[v.name] = v.value
			}
		}
	}
	c.replicas(replicas, func(n int) {
		name := p.name
		if replicas > 1 {
			name = fmt.Sprintf("%s-%d", p.name, n)
		}
		s := c.add(place{c.file, p.line}, name)
		s.group = p.name
		vars["PC_REPLICA_NUM"], vars["PC_PROC_NAME"] = strconv.Itoa(n), p.name
		c.processKeys(p, keys, s, vars)
		own, _ := s.values["env"].([]pair)
		for _, name := range []string{"PC_REPLICA_NUM", "PC_PROC_NAME"} {
			if strings.Contains(strings.Join(s.list("command"), " "), name) || replicas > 1 && name == "PC_REPLICA_NUM" {
				own = append([]pair{{name, vars[name]}}, own...)
			}
		}
		s.set("env", own)
	})
}

// processRules are for settings of a process with a single value.
var processRules = rules{
	{name: "disabled", key: "enabled", as: whenSet("false", "")},
	{name: "is_daemon", why: "a service stays in the foreground under hinit; start it with the option for that"},
	{name: "is_foreground", key: "enabled", as: whenSet("false", "a service has no terminal under hinit; make it the container's CMD if it needs one")}, // it is started by hand
	{name: "is_tty|is_interactive", why: "a service has no terminal under hinit; make it the container's CMD if it needs one"},
	// Compose files of Docker have these keys.
	{name: "user", key: "user"},
	{name: "restart", key: "restart.policy", as: func(value string) (string, error) {
		policy, _, _ := strings.Cut(value, ":")
		return cmp.Or(map[string]string{"always": "always", "unless-stopped": "always", "on-failure": "on-failure"}[policy], "never"), nil
	}},
	{name: "stop_grace_period", key: "stop.grace"},
	{name: "stop_signal", key: "stop.signal", as: func(value string) (string, error) { return strings.TrimPrefix(value, "SIG"), nil }},
}

// onlyKeysOfLogs is the note on other keys in the configuration of a log.
const onlyKeysOfLogs = "hinit has the keys of logs for size, number, age and compression, and logs.console for the format"

// groupRules are for settings of a process that are in a group, by the name of the group.
var groupRules = map[string]rules{
	"availability": {
		{name: "restart", key: "restart.policy", as: choice("never", "it is not restarted", map[string]string{
			"always": "always", "on_failure": "on-failure", "exit_on_failure": "never", "no": "never", "false": "never",
		})},
		{name: "backoff_seconds", do: constantDelay(seconds)},
		{name: "max_restarts", key: "restart.max_restarts"},
		{name: "exit_on_end", as: whenSet("", "hinit doesn't end when a service does; make it the container's CMD for that")},
	},
	"shutdown": {
		{name: "signal", key: "stop.signal", as: signalName},
		{name: "timeout_seconds", key: "stop.grace", as: seconds},
		{name: "parent_only", as: whenSet("", "hinit always stops all processes of a service")},
	},
	"schedule": {
		{name: "cron", key: "schedule.cron"},
		{name: "timezone", key: "schedule.timezone"},
		{name: "interval", key: "schedule.cron", as: everyInterval},
		{name: "run_on_start", key: "once", as: whenSet("boot", "")},
		{name: "max_concurrent", as: func(value string) (string, error) {
			if value == "1" {
				return "", nil
			}
			return "", errors.New("runs of a task don't overlap in hinit")
		}},
	},
	"log_configuration": {{name: ".*", why: onlyKeysOfLogs}},
	"rotation": {
		{name: "max_size_mb", key: "logs.max_size_mb"},
		{name: "max_backups", key: "logs.archives"},
		{name: "max_age_days", key: "logs.max_age", as: days},
		{name: "compress", key: "logs.compress", as: whenSet("gzip", "")},
		{name: ".*", why: onlyKeysOfLogs},
	},
}

// group imports the settings of a group.
func (c *compose) group(where string, at entry, s *service, vars map[string]string) {
	for _, e := range entries(at.node) {
		at, name, value := c.at(e, where+"."+e.name), at.name, e.text()
		switch {
		case name == "shutdown" && e.name == "command":
			s.take("stop_command", at.place, c.inShell(e, at.where, vars))
		case name == "log_configuration" && e.name == "rotation":
			c.group(at.where, e, s, vars)
		default:
			c.apply(groupRules[name], e.name, at, s, value)
		}
		if e.name == "restart" && value == "exit_on_failure" {
			c.note(at, "hinit doesn't end when a service fails; make it the container's CMD for that")
		}
	}
	if at.name == "schedule" && s.text("schedule.cron") == "" {
		s.set("once", "boot")
	}
}

// everyInterval makes a schedule from an interval.
func everyInterval(value string) (string, error) {
	cron := "@every " + value
	if _, err := cronspec.Parse(cron, ""); err != nil {
		return "", fmt.Errorf("%q is no interval such as 90s; it runs once, at the boot", value)
	}
	return cron, nil
}

func days(value string) (string, error) {
	n, err := strconv.Atoi(value)
	if err != nil {
		return "", fmt.Errorf("%q is no number of days", oneLine(value))
	}
	return fmt.Sprintf("%dh", 24*n), nil
}

func (c *compose) processKeys(p entry, keys []entry, s *service, vars map[string]string) {
	s.addVariables(c.env...)
	var files []string
	if c.dotenv != "" {
		files = append(files, c.dotenv)
	}
	s.set("restart.policy", "never")
	var entrypoint, arguments []string
	for _, e := range keys {
		at := c.at(e, p.name+"."+e.name)
		if !c.docker && e.node.Kind != yaml.ScalarNode && slices.Contains([]string{"command", "working_dir", "ready_log_line", "disabled"}, e.name) {
			c.note(at, "is no text, and is left out")
			continue
		}
		switch e.name {
		case "command":
			s.came("command", at.place)
			if c.docker {
				arguments = c.words(e, at.where)
			} else {
				s.set("command", c.inShell(e, at.where, vars))
			}
		case "entrypoint":
			entrypoint = c.words(e, at.where)
		case "args":
			arguments = items(e.node)
		case "working_dir":
			s.take("cwd", at.place, absolute(c.file, c.filled(e, at.where, vars)))
		case "environment":
			own := variables(e.node)
			s.came("env", at.place)
			s.addVariables(own...)
			c.references(at, own)
		case "env_file":
			s.came("env_file", at.place)
			for _, file := range items(e.node) {
				name, optional := strings.CutPrefix(file, "-")
				files = append(files, map[bool]string{true: "-"}[optional]+absolute(c.file, name))
			}
		case "depends_on":
			s.came("needs", at.place)
			c.dependsOn(s, e)
		case "readiness_probe":
			c.probe(p.name, e, s, "ready", vars)
		case "liveness_probe":
			c.probe(p.name, e, s, "alive", vars)
		case "healthcheck":
			c.healthcheck(e, at.where, s)
		case "ready_log_line":
			k := check{values{"kind": "ready", "log.contains": e.node.Value}, at.place}
			if regexp.QuoteMeta(e.node.Value) != e.node.Value {
				k.values = values{"kind": "ready", "log.matches": e.node.Value}
			}
			s.checks = append(s.checks, k)
		case "availability", "shutdown", "schedule", "log_configuration":
			c.group(at.where, e, s, vars)
		case "log_location":
			s.set("log", "true")
			c.note(at, "hinit writes to logs/%s/current below logs.dir, not to %s", s.name, e.text())
		case "replicas", "vars": // already done
		case "success_exit_codes":
			s.take("success_codes", at.place, exitCodes(items(e.node)))
		case "description":
			s.about = comment(c.filled(e, at.where, vars))
		case "namespace":
			s.take("group", at.place, serviceName(e.text()))
		default:
			c.apply(processRules, e.name, at, s, e.text())
		}
	}
	s.set("env_file", files)
	if entrypoint != nil || c.docker {
		s.set("command", append(entrypoint, arguments...))
	}
	if s.isTask() {
		asTask(s)
	}
	c.needCommand(s, c.at(p, p.name))
}

// asTask makes a service that does not restart a task. Without a schedule the task runs at the boot.
func asTask(s *service) {
	if s.text("restart.policy") == "never" {
		s.set("restart.policy", "")
		if s.text("schedule.cron") == "" {
			s.set("once", "boot")
		}
	}
}

// references notes variables whose values refer to other variables. process-compose replaces such references, and hinit does not.
func (c *compose) references(at from, list []pair) {
	for _, v := range list {
		if variable.MatchString(v.value) {
			c.note(at, "%s refers to a variable (%s), which stays as it is written", v.name, v.value)
		}
	}
}

// depend imports one dependency.
func (c *compose) depend(w wait) {
	until, known := map[string]string{
		"process_started": "started", "process_healthy": "ready", "process_log_ready": "ready",
		"process_completed_successfully": "done", "process_completed": "done",
		"service_started": "started", "service_healthy": "ready", "service_completed_successfully": "done",
	}[w.condition]
	at := from{w.place, w.from.was + ".depends_on." + w.to}
	if !known {
		c.note(at, "the condition %q is not known; it waits until that has started", w.condition)
		until = "started"
	}
	if w.condition == "process_completed" {
		c.note(at, "it waits until that has ended with exit code 0, not with any")
	}
	found := c.find(w.to)
	if len(found) == 0 {
		c.note(at, "there is no such process")
	}
	if w.to == w.from.was {
		c.note(at, "it would wait for itself; the need is left out")
	}
	for _, to := range found {
		if strings.Contains(w.condition, "_completed") {
			asTask(to)
		}
		w.from.wait(need{name: to.name, until: until, place: w.place})
	}
}
