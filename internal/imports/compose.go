package imports

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// compose is a process-compose.yaml that is taken over.
type compose struct {
	*importer
	file    string
	shell   []string
	env     []pair
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

// processCompose reads process-compose.yaml.
func (im *importer) processCompose(path string) error {
	root, err := readYAML(path)
	if err != nil {
		return err
	}
	c := &compose{importer: im, file: path, shell: []string{"bash", "-c"}, awaited: make(map[string]bool)}
	im.defaults.grace = "10s" // shutdown.timeout_seconds
	var processes []entry
	for _, e := range entries(root) {
		switch e.name {
		case "processes":
			processes = entries(e.node)
		case "environment":
			c.env = variables(e.node)
			c.references(e.line, "environment", c.env)
		case "version", "is_strict":
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
			c.note(path, e.line, e.name, "hinit.yaml has no templates; write the values out where they are used")
		default:
			if !strings.HasPrefix(e.name, "x-") { // anchors
				c.note(path, e.line, e.name, "hinit has nothing like this setting")
			}
		}
	}
	for _, p := range processes {
		for _, d := range entries(p.node) {
			if d.name == "depends_on" {
				c.dependsOn(nil, d)
			}
		}
	}
	for _, w := range c.waits {
		if strings.HasPrefix(w.condition, "process_completed") {
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
	for _, d := range entries(e.node) {
		condition := "process_started"
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
		c.processKeys(p, keys, s)
		if replicas > 1 {
			s.env = append([]pair{{"PC_REPLICA_NUM", strconv.Itoa(n)}}, s.env...)
		}
		if n > 0 {
			c.notes = c.notes[:before] // said of the first one
		}
	}
}

func (c *compose) processKeys(p entry, keys []entry, s *service) {
	s.env = append(s.env, c.env...)
	s.restart.policy = "never"
	var entrypoint, arguments []string
	for _, e := range keys {
		note := func(format string, args ...any) { c.note(c.file, e.line, p.name+"."+e.name, format, args...) }
		switch e.name {
		case "command":
			s.command = append(append([]string{}, c.shell...), strings.TrimRight(strings.ReplaceAll(e.node.Value, "$$", "$"), "\n"))
		case "entrypoint":
			entrypoint = items(e.node)
		case "args":
			arguments = items(e.node)
		case "working_dir":
			s.cwd = e.text()
		case "environment":
			own := variables(e.node)
			s.env = append(s.env, own...)
			c.references(e.line, p.name+"."+e.name, own)
		case "env_file":
			s.envFiles = items(e.node)
		case "depends_on":
			c.dependsOn(s, e)
		case "availability":
			c.availability(p.name, e, s)
		case "readiness_probe":
			c.probe(p.name, e, s, "ready")
		case "liveness_probe":
			c.probe(p.name, e, s, "alive")
		case "ready_log_line":
			s.checks = append(s.checks, check{kind: "ready", log: e.node.Value})
		case "shutdown":
			c.shutdown(p.name, e, s)
		case "disabled":
			s.disabled = e.isTrue()
		case "log_location":
			s.output.log = true
			note("hinit writes to logs/%s/current below logs.dir, not to %s", s.name, e.text())
		case "schedule":
			c.schedule(p.name, e, s)
		case "replicas":
		case "namespace", "description":
			note("is for people and for groups, which hinit doesn't have (%s)", e.text())
		case "is_daemon":
			note("a service stays in the foreground under hinit; start it with the option for that")
		case "is_tty", "is_foreground", "is_interactive":
			note("a service has no terminal under hinit; make it the container's CMD if it needs one")
		default:
			note("hinit has nothing like this setting")
		}
	}
	if entrypoint != nil {
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
			s.restart.initial, s.restart.max, s.restart.factor = seconds(e.text()), seconds(e.text()), "1"
		case "max_restarts":
			s.restart.maxRestarts = e.text()
		case "exit_on_end":
			if e.isTrue() {
				note("hinit doesn't end when a service does; make it the container's CMD for that")
			}
		default:
			note("hinit has nothing like this setting")
		}
	}
}

func (c *compose) shutdown(process string, at entry, s *service) {
	for _, e := range entries(at.node) {
		note := func(format string, args ...any) { c.note(c.file, e.line, process+".shutdown."+e.name, format, args...) }
		switch e.name {
		case "signal":
			signal, known := signalName(e.text())
			if !known {
				note("hinit does not stop with %s; TERM is taken", e.text())
				break
			}
			s.signal = signal
		case "timeout_seconds":
			s.grace = seconds(e.text())
		case "parent_only":
			if e.isTrue() {
				note("hinit always stops all processes of a service")
			}
		case "command":
			note("hinit stops by a signal and runs no command (%s); trap the signal, or stop by hand before", e.text())
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
			s.restart.policy = ""
			if s.task.cron = cronOf(e.text()); s.task.cron == "" {
				s.task.once = "manual"
				note("hinit has times, no intervals, and %q is none that cron can say; it runs with hinit run-once", e.text())
			}
		case "run_on_start":
			if e.isTrue() {
				note("a task with a schedule does not run at the start besides")
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

// cronOf says an interval as times, where that comes to the same; "" elsewhere.
func cronOf(interval string) string {
	d, err := time.ParseDuration(interval)
	minutes, hours := int(d/time.Minute), int(d/time.Hour)
	switch {
	case err != nil || d <= 0:
	case d%time.Hour == 0 && hours <= 24 && 24%hours == 0:
		return map[bool]string{true: "0 0 * * *", false: fmt.Sprintf("0 */%d * * *", hours)}[hours == 24]
	case d%time.Minute == 0 && minutes < 60 && 60%minutes == 0:
		return fmt.Sprintf("*/%d * * * *", minutes)
	}
	return ""
}

// probe takes over a check as Kubernetes has it.
func (c *compose) probe(process string, at entry, s *service, kind string) {
	k := check{kind: kind, period: "10s", timeout: "1s"}
	found := false
	for _, e := range entries(at.node) {
		where := process + "." + at.name + "." + e.name
		switch e.name {
		case "exec":
			for _, part := range entries(e.node) {
				if part.name == "command" {
					k.command, found = append(append([]string{}, c.shell...), part.text()), true
				} else {
					c.note(c.file, part.line, where+"."+part.name, "a check runs where the service does")
				}
			}
		case "http_get":
			found = true
			c.httpGet(where, e, &k)
		case "initial_delay_seconds":
			k.delay = seconds(e.text())
		case "period_seconds":
			k.period = cmp.Or(seconds(e.text()), k.period)
		case "timeout_seconds":
			k.timeout = cmp.Or(seconds(e.text()), k.timeout)
		case "success_threshold":
			if kind == "ready" {
				k.success = e.text()
			}
		case "failure_threshold":
			k.failure = e.text()
		default:
			c.note(c.file, e.line, where, "hinit has nothing like this setting")
		}
	}
	if !found {
		c.note(c.file, at.line, process+"."+at.name, "says nothing to look at and is left out")
		return
	}
	s.checks = append(s.checks, k)
}

func (c *compose) httpGet(where string, at entry, k *check) {
	host, port, path, scheme := "", "80", "/", "http"
	for _, e := range entries(at.node) {
		switch e.name {
		case "host":
			host = e.text()
		case "port", "num_port":
			port = e.text()
		case "path":
			path = e.text()
		case "status_code":
			k.http = append(k.http, pair{"status", e.text()})
		case "headers":
			k.headers = variables(e.node)
		case "scheme":
			scheme = strings.ToLower(e.text())
		default:
			c.note(c.file, e.line, where+"."+e.name, "hinit has nothing like this setting")
		}
	}
	if scheme != "http" { // which config refuses, with the reason
		k.http = append(k.http, pair{"url", scheme + "://" + cmp.Or(host, "127.0.0.1") + ":" + port + "/" + strings.TrimPrefix(path, "/")})
		return
	}
	if host != "" && host != "127.0.0.1" {
		k.http = append([]pair{{"host", host}}, k.http...)
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	k.http = append([]pair{{"port", port}, {"path", path}}, k.http...)
}

// depend takes over one dependency.
func (c *compose) depend(w wait) {
	until, known := map[string]string{
		"process_started": "started", "process_healthy": "ready", "process_log_ready": "ready",
		"process_completed_successfully": "done", "process_completed": "done",
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
	for _, to := range found {
		w.from.wait(need{name: to.name, until: until})
	}
}
