package config

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decodeServices decodes all services. The keys from which services inherit must already be final.
func (l *loader) decodeServices(d *decoder, n *yaml.Node) {
	nodes := d.namedEntries(n, "services.", "service name %q", checkServiceName)
	for _, b := range builtInServices {
		_, written := nodes[b.name]
		_, named := l.lookupVariable(b.variable)
		if !written && !l.ServicesOnly && (named || b.name == DashboardName) {
			nodes[b.name] = keyEntry{}
		}
	}
	for _, name := range sortedKeys(nodes) {
		l.decodeService(d, name, nodes[name])
	}
}

func (l *loader) decodeService(d *decoder, name string, e keyEntry) {
	s := NewService(l.cfg, name)
	if l.ServicesOnly {
		s.Env = map[string]string{}
		_, s.HasLogFile = l.cfg.origins["logs.dir"]
	}
	if name == ActionsName {
		l.fillActions(&s)
	}
	for _, b := range builtInServices {
		if b.name == name && !l.ServicesOnly {
			s.EnabledBy, s.Command = b.variable, slices.Clone(b.command)
			if b.fill != nil {
				b.fill(l, &s)
			}
		}
	}
	prefix, before := "services."+name+".", len(d.problems.list)
	if e.value != nil && alwaysRunsAsRoot(name) && !l.ServicesOnly && d.changeableBy != nil { // this service always runs as root, so another user must not change its settings
		d.reportViolation(e.line, "services."+name)
	} else if e.value != nil {
		d.decodeMapping(e.value, prefix, "", Keys[Service](), &s, nil)
	}
	if _, kept := l.lookupVariable(actionsStateVar); name == ActionsName && !l.ServicesOnly && !kept && s.Env[actionsStateVar] == "" && !l.cfg.AgentMayFillVariables(s.User) {
		d.problems.reportAtLine(e.line, "cannot let services.%s run as %s: the commands that wait would be in a file that the agent can write; set services.%[1]s.env.%[3]s to a file "+
			"in a directory of root's, or let it run as %[4]s", name, s.User, actionsStateVar, l.cfg.Agent.User)
	}
	if len(d.problems.list) == before {
		l.completeService(&s, prefix, e.line)
	}
	l.cfg.Services[name] = s
}

// Names of built-in services, which need no entry in hinit.yaml. The dashboard always exists; the others exist when an environment
// variable enables them (see builtInServices).
const (
	DashboardName = "dashboard"
	WebName       = "hinit-web"     // service that serves the status page
	ForwardName   = "hinit-forward" // service that sends logs and events to a collector
	SandboxName   = "sandbox"       // service that owns the sandboxes of the volume
	LeaseName     = "hinit-lease"   // service that holds the lease: the right of one init to serve the volume
)

// alwaysRunsAsRoot reports whether a built-in service runs as root regardless of hinit.yaml.
func alwaysRunsAsRoot(name string) bool { return name == SandboxName || name == LeaseName }

// leaseVar is the environment variable that enables the lease service. Its value is the kind of lease.
const leaseVar = "HINIT_LEASE"

// leaseRestartDelay is the delay before the lease service is restarted.
const leaseRestartDelay = 100 * time.Millisecond

// fillLease makes the lease service run as root, because its messages decide which init serves the volume.
func (l *loader) fillLease(s *Service) {
	if kind, _ := l.lookupVariable(leaseVar); !IsFalse(kind) && kind != "kubernetes" {
		l.problems.reportVariable(leaseVar, kind, "expected kubernetes, or 0 for none")
	}
	s.User, s.Notify.Protocol = "root", NotifySystemd
	// the service must run again before the lease expires
	s.Restart.InitialDelay, s.Restart.MaxDelay = leaseRestartDelay, time.Second
}

// builtInServices lists the built-in services. The environment variable in variable enables the service. fill, if not nil, sets
// values that differ from the defaults of a service.
var builtInServices = [...]struct {
	name, variable string
	command        []string
	fill           func(l *loader, s *Service)
}{
	{DashboardName, "HERMES_DASHBOARD", nil, (*loader).fillDashboard},
	{KanbanName, kanbanVar, []string{"hinit-kanban", "serve"}, nil},
	{WebName, "HINIT_WEB", []string{"hinit-web", "serve"}, nil},
	{ForwardName, "HINIT_FORWARD", []string{"hinit-web", "forward"}, func(_ *loader, s *Service) { s.Env["HERMES_HOME"] = "{home}" }},
	{SandboxName, "HINIT_SANDBOX", []string{"hinit-sandbox", "serve", "--user"}, (*loader).fillSandbox},
	{LeaseName, leaseVar, []string{"hinit-lease-kubernetes"}, (*loader).fillLease},
}

// sandboxRootsVar is an environment variable with directories for the sandbox service. Root's services inherit no variable of
// the agent, so fillSandbox sets it.
const sandboxRootsVar = "HINIT_SANDBOX_ROOTS"

// fillSandbox makes the sandbox service run as root, because it uses the engine's socket, which the agent must not get.
func (l *loader) fillSandbox(s *Service) {
	s.User, s.Command = "root", append(s.Command, l.cfg.Agent.User)
	s.Env["HERMES_HOME"] = "{home}"
	if roots, set := l.lookupVariable(sandboxRootsVar); set {
		s.Env[sandboxRootsVar] = roots
	}
}

// fillDashboard sets the command of the image's dashboard (contract, section 10). It records the environment variables in the
// command as its origin.
func (l *loader) fillDashboard(s *Service) {
	var used []string
	value := func(variable, builtin string, ok func(string) bool, problem string) string {
		v, set := l.lookupVariable(variable)
		if !set {
			return builtin
		}
		if !ok(v) {
			l.problems.reportVariable(variable, v, problem)
		}
		used = append(used, variable)
		return v
	}
	isHostName := func(v string) bool { return !strings.ContainsAny(v, " \t\n{}\x00") }
	host := value("HERMES_DASHBOARD_HOST", cmp.Or(l.cfg.Image.DashboardHost, "0.0.0.0"), isHostName, "expected an address or a host name")
	port := value("HERMES_DASHBOARD_PORT", "9119", isPort, "expected a port from 1 to 65535")
	s.Command = []string{"{agent}", "dashboard", "--host", host, "--port", port, "--no-open"}
	if insecure := l.shellVariableIsOn("HERMES_DASHBOARD_INSECURE"); insecure && l.cfg.Image.DashboardLacksInsecure {
		l.warn("HERMES_DASHBOARD_INSECURE has no effect: the dashboard of this image (%s) has no --insecure; for a login set "+
			"HERMES_DASHBOARD_BASIC_AUTH_USERNAME and HERMES_DASHBOARD_BASIC_AUTH_PASSWORD", l.cfg.Image.Version)
	} else if insecure {
		s.Command = append(s.Command, "--insecure")
		used = append(used, "HERMES_DASHBOARD_INSECURE")
	}
	s.HasLogFile = false
	if len(used) > 0 {
		l.cfg.origins["services."+s.Name+".command"] = origin{env: strings.Join(used, ", ")}
	}
}

// shellVariableIsOn reports whether the image's scripts read the variable name as true. It warns about a false value that looks
// like "on".
func (l *loader) shellVariableIsOn(name string) bool {
	v, _ := l.lookupVariable(name)
	if !IsShellTruthy(v) && !IsFalse(v) {
		l.warn("%s=%q counts as off; 1, true and yes are on", name, v)
	}
	return IsShellTruthy(v)
}

// completeService sets keys that depend on other keys, and expands the templates. line is the line of the service in
// hinit.yaml, for messages.
func (l *loader) completeService(s *Service, prefix string, line int) {
	c := l.cfg
	if s.Command == nil {
		l.problems.reportAtLine(line, "cannot use service %q: %scommand is missing", s.Name, prefix)
	}
	if _, own := c.origins[prefix+"command"]; !own && s.Name == KanbanName && !s.Notify.IsSet() {
		s.Notify.Protocol, s.Notify.Timeout = NotifySystemd, kanbanReadyTimeout
	}
	l.validateRestart(&s.Restart, prefix)
	l.completeTask(s, prefix)
	l.validateNotify(s, prefix)
	l.validateProcessSettings(&s.ProcessSettings, prefix)
	if _, set := c.origins[prefix+"enabled"]; !set {
		s.Enabled = s.EnabledBy == ""
	}
	if _, set := l.lookupVariable(s.EnabledBy); s.EnabledBy != "" && set {
		s.Enabled = l.shellVariableIsOn(s.EnabledBy)
		if s.Name == LeaseName {
			kind, _ := l.lookupVariable(leaseVar)
			s.Enabled = !IsFalse(kind)
		}
		c.origins[prefix+"enabled"] = origin{env: s.EnabledBy}
	}
	l.validateChecks(s, prefix)
	s.Command = c.Expand(s.Command, nil)
	s.Operator.StopCommand = c.Expand(s.Operator.StopCommand, nil)
	s.EnvFile = c.Expand(s.EnvFile, nil)
	s.Cwd = filepath.Clean(c.ExpandString(s.Cwd, nil))
	for name, value := range s.Env {
		s.Env[name] = c.ExpandString(value, nil)
	}
}

// Notify configures how a service reports that it is ready. The zero Notify means that it can't.
type Notify struct {
	FD       int           `key:"notify.fd" is:"between? 3 1023"`            // descriptor to which a ready service writes a newline; 0: none
	Protocol string        `key:"notify.protocol,short" is:"oneof? systemd"` // how the service reports that it is ready: NotifySystemd, or ""
	Timeout  time.Duration `key:"notify.timeout" is:"notnegative"`           // time limit of the report; 0: no limit
	// longest time between two watchdog messages of the service; 0: no messages are expected
	Watchdog time.Duration `key:"watchdog" is:"atleast? 100ms"`
}

// NotifySystemd is the protocol of sd_notify(3).
const NotifySystemd = "systemd"

// IsSet reports whether the service reports that it is ready.
func (n *Notify) IsSet() bool { return n.FD != 0 || n.Protocol != "" }

// Types of the checks that [Service.AllChecks] adds. They aren't valid in hinit.yaml.
const (
	CheckNotify   = "notify"
	CheckWatchdog = "watchdog"
)

// AllChecks returns the configured checks of a service. The settings notify and watchdog each add a check for the messages that
// the service sends.
func (s *Service) AllChecks() []Check {
	checks := slices.Clone(s.Checks)
	own := func(kind, of string, every time.Duration) {
		if every > 0 {
			c := NewCheck(kind)
			c.Name, c.Type, c.Period, c.InitialDelay, c.Timeout, c.FailureThreshold, c.Jitter = kind+"-"+of, of, every, every, every, 1, 0
			checks = append(checks, c)
		}
	}
	own(CheckStartup, CheckNotify, s.Notify.Timeout)
	own(CheckAlive, CheckWatchdog, s.Notify.Watchdog)
	return checks
}

// validateNotify reports keys about readiness that contradict each other.
func (l *loader) validateNotify(s *Service, prefix string) {
	if s.Notify.IsSet() && s.IsTask() {
		o := cmp.Or(l.cfg.origins[prefix+"notify.protocol"], l.cfg.origins[prefix+"notify.fd"])
		l.problems.reportAtOrigin(o, "cannot use %snotify: a task is done when it has ended; remove notify, or once and schedule", prefix)
	}
	n := &s.Notify
	if n.Protocol != "" && n.FD != 0 {
		l.problems.reportAtOrigin(l.cfg.origins[prefix+"notify.fd"], "cannot use %snotify: a service reports its readiness in one way; remove fd or protocol", prefix)
	}
	for _, own := range []struct {
		key   string
		value time.Duration
		check string
	}{{"notify.timeout", n.Timeout, CheckStartup + "-" + CheckNotify}, {"watchdog", n.Watchdog, CheckAlive + "-" + CheckWatchdog}} {
		switch {
		case own.value == 0:
		case n.Protocol == "":
			l.problems.reportAtOrigin(l.cfg.origins[prefix+own.key], "cannot use %s%s: only a service with notify: systemd sends such messages; add it", prefix, own.key)
		case slices.ContainsFunc(s.Checks, func(c Check) bool { return c.Name == own.check }):
			l.problems.reportAtOrigin(l.cfg.origins[prefix+own.key], "cannot use %s%s: it is a check called %q, and another check has that name; rename the other check", prefix, own.key, own.check)
		}
	}
}

const (
	// KanbanName is the built-in service that dispatches tasks from the task boards. HINIT_KANBAN enables it.
	KanbanName = "kanban"
	// KanbanWorker is the built-in run (a command that a client may run once) that works on one task of a board.
	KanbanWorker = "kanban-worker"

	kanbanVar = "HINIT_KANBAN"
	// kanbanReadyTimeout limits how long gateways wait for the service to read the boards for the first time.
	kanbanReadyTimeout = 30 * time.Second
)

func (l *loader) decodeRuns(d *decoder, n *yaml.Node) {
	c := l.cfg
	nodes := d.namedEntries(n, "runs.", "the name %q of a run", checkProfileName)
	if _, ok := nodes[KanbanWorker]; !ok && !l.ServicesOnly {
		nodes[KanbanWorker] = keyEntry{}
	}
	for _, name := range sortedKeys(nodes) {
		r, e, prefix := NewRun(), nodes[name], "runs."+name+"."
		if name == KanbanWorker && !l.ServicesOnly {
			r.Command = KanbanWorkerCommand()
			if v, ok := l.lookupVariable("HERMES_BIN"); ok {
				r.Command[0] = v
				c.origins[prefix+"command"] = origin{env: "HERMES_BIN"}
			}
		}
		if e.value != nil {
			d.decodeMapping(e.value, prefix, "", Keys[Run](), &r, nil)
		}
		if r.Command == nil {
			l.problems.reportAtLine(e.line, "cannot use the run %q: %scommand is missing", name, prefix)
		}
		for name, value := range r.Env {
			r.Env[name] = c.ExpandString(value, nil)
		}
		c.Runs[name] = r
	}
}

// NewRun returns a run with the default settings. The grace is enough for a worker of the agent, which ends within two seconds
// after SIGTERM (contract kanban, section 22.1).
func NewRun() Run {
	return Run{Env: map[string]string{}, Limits: map[string]ResourceLimit{}, Grace: 5 * time.Second}
}

// KanbanWorkerCommand is the command of a worker (contract kanban, section 21.1).
func KanbanWorkerCommand() []string {
	return []string{"{agent}", "-p", "{profile}", "--accept-hooks", "{options}", "chat", "-q", "work kanban task {task}"}
}

// ExpandRun is [Config.Expand] for the command of a run. The word {options} is replaced by options, which aren't expanded.
func (c *Config) ExpandRun(command []string, vars map[string]string, options []string) []string {
	at := slices.Index(command, "{"+optionsPlaceholder+"}")
	if at < 0 {
		return c.Expand(command, vars)
	}
	return slices.Concat(c.Expand(command[:at], vars), options, c.Expand(command[at+1:], vars))
}
