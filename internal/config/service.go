package config

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decodeServices decodes every service. All other settings must be final before the call, because services inherit from them.
func (l *loader) decodeServices(d *decoder, n *yaml.Node) {
	c := l.cfg
	nodes := d.namedEntries(n, "services.", "service name %q", checkServiceName)
	for _, b := range builtInServices {
		_, written := nodes[b.name]
		_, named := l.lookup(b.variable)
		if !written && !l.Plain && (named || b.name == DashboardName) {
			nodes[b.name] = entry{}
		}
	}
	for _, name := range sortedKeys(nodes) {
		l.decodeService(d, name, nodes[name])
	}
	if _, written := nodes[ActionsName]; !written && c.hasActions() {
		l.decodeService(d, ActionsName, entry{})
	}
}

// decodeService decodes one service. The entry of a built-in service may be empty.
func (l *loader) decodeService(d *decoder, name string, e entry) {
	s := NewService(l.cfg, name)
	if l.Plain {
		s.Env = map[string]string{} // the service gets the caller's environment unchanged
		_, s.Log = l.cfg.origins["logs.dir"]
	}
	if name == ActionsName {
		l.fillActions(&s)
	}
	for _, b := range builtInServices {
		if b.name == name && !l.Plain {
			s.EnabledBy, s.Command = b.variable, slices.Clone(b.command)
			if b.fill != nil {
				b.fill(l, &s)
			}
		}
	}
	prefix, before := "services."+name+".", len(d.problems.list)
	if e.value != nil && alwaysRunsAsRoot(name) && !l.Plain && d.doubt != nil { // the service always runs as root, whatever the file says
		d.reportDoubt(e.line, "services."+name)
	} else if e.value != nil {
		d.decodeMapping(e.value, prefix, "", Keys[Service](), &s, nil)
	}
	if _, kept := l.lookup(actionsState); name == ActionsName && !l.Plain && !kept && s.Env[actionsState] == "" && !l.cfg.AgentInfluences(s.User) {
		d.problems.reportAtLine(e.line, "cannot let services.%s run as %s: the commands that wait would be in a file that the agent can write; set services.%[1]s.env.%[3]s to a file "+
			"in a directory of root's, or let it run as %[4]s", name, s.User, actionsState, l.cfg.Agent.User)
	}
	if len(d.problems.list) == before {
		l.finishService(&s, prefix, e.line)
	}
	l.cfg.Services[name] = s
}

// Names of the built-in services, which need no entry in hinit.yaml. The dashboard always exists. Each of the others is switched
// on by an environment variable, see builtInServices. Further environment variables configure them.
const (
	DashboardName = "dashboard"
	WebName       = "hinit-web"     // serves the status page of hinit
	ForwardName   = "hinit-forward" // sends the logs and events of hinit to a collector
	SandboxName   = "sandbox"       // the service that owns the sandboxes of the volume
	LeaseName     = "hinit-lease"   // holds the lease of the volume, the right of one init to serve the volume
)

// alwaysRunsAsRoot reports whether a built-in service always runs as root.
func alwaysRunsAsRoot(name string) bool { return name == SandboxName || name == LeaseName }

// leaseVar switches on the lease service. Its value selects the program.
const leaseVar = "HINIT_LEASE"

// leaseRestart is the delay before the lease service restarts.
const leaseRestart = 100 * time.Millisecond

// fillLease sets the user of the service that holds the lease of the volume. The service runs as root, because its messages
// decide which init serves the volume.
func (l *loader) fillLease(s *Service) {
	if kind, _ := l.lookup(leaseVar); !IsFalse(kind) && kind != "kubernetes" {
		l.problems.reportVariable(leaseVar, kind, "expected kubernetes, or 0 for none")
	}
	s.User, s.Notify.Protocol = "root", NotifySystemd
	s.Restart.Initial, s.Restart.Max = leaseRestart, time.Second // short enough to be back before the lease expires
}

// builtInServices lists the built-in services. variable is the environment variable that switches a service on. The function
// fill, if there is one, makes the other settings that differ from the defaults of a service.
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

// sandboxRoots is an environment variable of the sandbox service. Its value may name directories that the agent owns. A service
// that runs as root does not inherit such variables, so fillSandbox adds this one to its environment.
const sandboxRoots = "HINIT_SANDBOX_ROOTS"

// fillSandbox sets the user of the service that owns the sandboxes. The service runs as root, because the agent's user must
// not get the engine's socket.
func (l *loader) fillSandbox(s *Service) {
	s.User, s.Command = "root", append(s.Command, l.cfg.Agent.User)
	s.Env["HERMES_HOME"] = "{home}"
	if roots, set := l.lookup(sandboxRoots); set {
		s.Env[sandboxRoots] = roots
	}
}

// fillDashboard sets the command of the image's dashboard (contract, section 10). If variables change the command, they are its
// origin.
func (l *loader) fillDashboard(s *Service) {
	var used []string
	value := func(variable, builtin string, ok func(string) bool, wrong string) string {
		v, set := l.lookup(variable)
		if !set {
			return builtin
		}
		if !ok(v) {
			l.problems.reportVariable(variable, v, wrong)
		}
		used = append(used, variable)
		return v
	}
	isHostName := func(v string) bool { return !strings.ContainsAny(v, " \t\n{}\x00") }
	host := value("HERMES_DASHBOARD_HOST", cmp.Or(l.cfg.Image.DashboardHost, "0.0.0.0"), isHostName, "expected an address or a host name")
	port := value("HERMES_DASHBOARD_PORT", "9119", isPort, "expected a port from 1 to 65535")
	s.Command = []string{"{agent}", "dashboard", "--host", host, "--port", port, "--no-open"}
	if insecure := l.switchedOn("HERMES_DASHBOARD_INSECURE"); insecure && l.cfg.Image.NoInsecure {
		l.warn("HERMES_DASHBOARD_INSECURE has no effect: the dashboard of this image (%s) has no --insecure; for a login set "+
			"HERMES_DASHBOARD_BASIC_AUTH_USERNAME and HERMES_DASHBOARD_BASIC_AUTH_PASSWORD", l.cfg.Image.Version)
	} else if insecure {
		s.Command = append(s.Command, "--insecure")
		used = append(used, "HERMES_DASHBOARD_INSECURE")
	}
	s.Log = false // the output goes to the container log only (contract, section 7)
	if len(used) > 0 {
		l.cfg.origins["services."+s.Name+".command"] = origin{env: strings.Join(used, ", ")}
	}
}

// switchedOn reports whether the image's scripts would read the environment variable name as true. It warns about a value that
// they read as false although it does not look like "off".
func (l *loader) switchedOn(name string) bool {
	v, _ := l.lookup(name)
	if !IsShellTruthy(v) && !IsFalse(v) {
		l.warn("%s=%q counts as off; 1, true and yes are on", name, v)
	}
	return IsShellTruthy(v)
}

// finishService sets keys that depend on other keys, and expands the templates. line is the line of the service.
func (l *loader) finishService(s *Service, prefix string, line int) {
	c := l.cfg
	if s.Command == nil {
		l.problems.reportAtLine(line, "cannot use service %q: %scommand is missing", s.Name, prefix)
	}
	if _, own := c.origins[prefix+"command"]; !own && s.Name == KanbanName && !s.Notify.IsSet() {
		s.Notify.Protocol, s.Notify.Timeout = NotifySystemd, kanbanReadyTimeout // the service reports readiness once it holds the locks of the boards
	}
	l.finishRestart(&s.Restart, prefix)
	l.finishTask(s, prefix)
	l.finishNotify(s, prefix)
	l.finishSetup(&s.ProcessSettings, prefix)
	if _, set := c.origins[prefix+"enabled"]; !set {
		s.Enabled = s.EnabledBy == ""
	}
	if _, set := l.lookup(s.EnabledBy); s.EnabledBy != "" && set {
		s.Enabled = l.switchedOn(s.EnabledBy)
		if s.Name == LeaseName {
			kind, _ := l.lookup(leaseVar)
			s.Enabled = !IsFalse(kind)
		}
		c.origins[prefix+"enabled"] = origin{env: s.EnabledBy}
	}
	if l.Plain {
		l.refuseAgentPlaceholder(s, prefix)
	}
	l.finishChecks(s, prefix)
	s.Command = c.Expand(s.Command, nil)
	s.Operator.StopCommand = c.Expand(s.Operator.StopCommand, nil)
	s.EnvFile = c.Expand(s.EnvFile, nil)
	s.Cwd = filepath.Clean(c.ExpandString(s.Cwd, nil))
	for name, value := range s.Env {
		s.Env[name] = c.ExpandString(value, nil)
	}
}

// Notify says how a service reports that it is ready. The zero value means that the service does not report readiness.
type Notify struct {
	FD       int           `key:"notify.fd" is:"between? 3 1023"`            // descriptor for the newline that reports readiness; 0: none
	Protocol string        `key:"notify.protocol,short" is:"oneof? systemd"` // NotifySystemd, or "" for no protocol
	Timeout  time.Duration `key:"notify.timeout" is:"notnegative"`           // time limit for the readiness report; 0: no limit
	Watchdog time.Duration `key:"watchdog" is:"atleast? 100ms"`              // maximum time between two keep-alive messages; 0: no limit
}

// NotifySystemd is the protocol of sd_notify(3).
const NotifySystemd = "systemd"

// IsSet reports whether the service reports its readiness.
func (n *Notify) IsSet() bool { return n.FD != 0 || n.Protocol != "" }

// The types of the checks that [Service.AllChecks] adds for a service's own messages. They are not valid in a file.
const (
	CheckNotify   = "notify"
	CheckWatchdog = "watchdog"
)

// AllChecks returns the configured checks of a service. It adds the checks for the service's own messages, if notify or watchdog
// is configured.
func (s *Service) AllChecks() []Check {
	checks := slices.Clone(s.Checks)
	own := func(kind, of string, every time.Duration) {
		if every > 0 {
			c := NewCheck(kind)
			c.Name, c.Type, c.Period, c.Delay, c.Timeout, c.Failure, c.Jitter = kind+"-"+of, of, every, every, every, 1, 0
			checks = append(checks, c)
		}
	}
	own(CheckStartup, CheckNotify, s.Notify.Timeout)
	own(CheckAlive, CheckWatchdog, s.Notify.Watchdog)
	return checks
}

// finishNotify reports contradictory keys in the readiness settings of a service.
func (l *loader) finishNotify(s *Service, prefix string) {
	if s.Notify.IsSet() && s.IsTask() {
		o := cmp.Or(l.cfg.origins[prefix+"notify.protocol"], l.cfg.origins[prefix+"notify.fd"])
		l.problems.reportAtOrigin(o, "cannot use %snotify: a task is done when it has ended; remove notify, or once and schedule", prefix)
	}
	n := &s.Notify
	if n.Protocol != "" && n.FD != 0 {
		l.problems.reportAtOrigin(l.cfg.origins[prefix+"notify.fd"], "cannot use %snotify: it is ready when it says so in one way; remove fd or protocol", prefix)
	}
	for _, own := range []struct {
		key   string
		value time.Duration
		check string
	}{{"notify.timeout", n.Timeout, CheckStartup + "-" + CheckNotify}, {"watchdog", n.Watchdog, CheckAlive + "-" + CheckWatchdog}} {
		switch {
		case own.value == 0:
		case n.Protocol == "":
			l.problems.reportAtOrigin(l.cfg.origins[prefix+own.key], "cannot use %s%s: only a service with notify: systemd says that; add it", prefix, own.key)
		case slices.ContainsFunc(s.Checks, func(c Check) bool { return c.Name == own.check }):
			l.problems.reportAtOrigin(l.cfg.origins[prefix+own.key], "cannot use %s%s: it is a check called %q, and another one has that name; give that one another", prefix, own.key, own.check)
		}
	}
}

const (
	// KanbanName is the name of the service that dispatches the tasks on the task boards. The variable HINIT_KANBAN switches the
	// service on. The service needs no entry in hinit.yaml.
	KanbanName = "kanban"
	// KanbanWorker is the name of the one-shot command that works on one task of a task board. It needs no entry in hinit.yaml.
	KanbanWorker = "kanban-worker"

	kanbanVar = "HINIT_KANBAN"
	// kanbanReadyTimeout limits the time until the service has first read the boards and reports readiness. The gateways wait for
	// this report.
	kanbanReadyTimeout = 30 * time.Second
)

// decodeRuns decodes the commands that a client may run once.
func (l *loader) decodeRuns(d *decoder, n *yaml.Node) {
	c := l.cfg
	nodes := d.namedEntries(n, "runs.", "the name %q of a run", checkProfileName)
	if _, ok := nodes[KanbanWorker]; !ok && !l.Plain {
		nodes[KanbanWorker] = entry{}
	}
	for _, name := range sortedKeys(nodes) {
		r, e, prefix := NewRun(), nodes[name], "runs."+name+"."
		if name == KanbanWorker && !l.Plain {
			r.Command = KanbanWorkerCommand()
			if v, ok := l.lookup("HERMES_BIN"); ok {
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

// NewRun returns a one-shot command with the default settings. The grace period is long enough for a worker of the agent, which
// ends within two seconds after TERM (contract kanban, section 22.1).
func NewRun() Run {
	return Run{Env: map[string]string{}, Limits: map[string]ResourceLimit{}, Grace: 5 * time.Second}
}

// KanbanWorkerCommand is the worker's command line (contract kanban, section 21.1).
func KanbanWorkerCommand() []string {
	return []string{"{agent}", "-p", "{profile}", "--accept-hooks", "{options}", "chat", "-q", "work kanban task {task}"}
}

// ExpandRun is like [Config.Expand] for the command of a run. It also replaces the word {options} with the words in options,
// which it does not expand.
func (c *Config) ExpandRun(command []string, vars map[string]string, options []string) []string {
	at := slices.Index(command, "{"+optionsPlaceholder+"}")
	if at < 0 {
		return c.Expand(command, vars)
	}
	return slices.Concat(c.Expand(command[:at], vars), options, c.Expand(command[at+1:], vars))
}
