package config

import (
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// DashboardName is the service that exists without being written down.
const DashboardName = "dashboard"

// dashboardVars are the variables that make the dashboard's default command, besides HERMES_DASHBOARD, which enables it
// (contract, section 10).
var dashboardVars = []struct{ name, doc string }{
	{"HERMES_DASHBOARD_HOST", "Address the dashboard listens on; `0.0.0.0` when unset."},
	{"HERMES_DASHBOARD_PORT", "Port the dashboard listens on; `9119` when unset."},
	{"HERMES_DASHBOARD_INSECURE", "`1`, `true` or `yes` adds `--insecure` to the dashboard's command."},
}

// services builds every service. The rest of the configuration is final by now, for services inherit from it.
func (l *loader) services(d *decoder, n *yaml.Node) {
	c := l.cfg
	nodes := map[string]entry{}
	if n != nil {
		for _, e := range d.entries(n, "services", nil) {
			if reason := checkServiceName(e.key); reason != "" {
				d.problems.at(e.line, "cannot use service name %q: %s", e.key, reason)
				continue
			}
			nodes[e.key] = e
		}
	}
	if _, ok := nodes[DashboardName]; !ok && !l.plain {
		nodes[DashboardName] = entry{}
	}
	fields := serviceFields()
	for _, name := range sortedKeys(nodes) {
		s := newService(c, name)
		if l.plain {
			l.plainService(&s)
		}
		var commandFrom string
		if name == DashboardName && !l.plain {
			commandFrom = l.dashboard(&s)
		}
		prefix, e := "services."+name+".", nodes[name]
		before := len(d.problems.list)
		if e.value != nil {
			decodeFields(d, e.value, prefix, "", fields, &s, nil)
		}
		if len(d.problems.list) == before {
			l.finishService(&s, prefix, commandFrom, e.line)
		}
		c.Services[name] = s
	}
}

// dashboard fills in the default dashboard of the image (contract, section 10) and returns the variables that changed its
// command.
func (l *loader) dashboard(s *Service) (vars string) {
	host, port := "0.0.0.0", "9119"
	var used []string
	if v, ok := l.lookup("HERMES_DASHBOARD_HOST"); ok {
		if strings.ContainsAny(v, " \t\n{}\x00") {
			l.problems.env("HERMES_DASHBOARD_HOST", v, "expected an address or a host name")
		}
		host = v
		used = append(used, "HERMES_DASHBOARD_HOST")
	}
	if v, ok := l.lookup("HERMES_DASHBOARD_PORT"); ok {
		if p, err := strconv.ParseUint(v, 10, 16); err != nil || p == 0 {
			l.problems.env("HERMES_DASHBOARD_PORT", v, "expected a port from 1 to 65535")
		}
		port = v
		used = append(used, "HERMES_DASHBOARD_PORT")
	}
	s.Command = []string{"{agent}", "dashboard", "--host", host, "--port", port, "--no-open"}
	if l.switchedOn("HERMES_DASHBOARD_INSECURE") {
		s.Command = append(s.Command, "--insecure")
		used = append(used, "HERMES_DASHBOARD_INSECURE")
	}
	s.EnabledBy = "HERMES_DASHBOARD"
	s.Log = false // its output goes to the container log only (contract, section 7)
	return strings.Join(used, ", ")
}

// switchedOn reports whether the variable is true the way the image's scripts read it, and warns of a value that looks
// like a yes but is none.
func (l *loader) switchedOn(name string) bool {
	v, _ := l.lookup(name)
	if !ShellTruthy(v) && !plainlyFalse(v) {
		l.warn("%s=%q counts as off; 1, true and yes are on", name, v)
	}
	return ShellTruthy(v)
}

// finishService settles what depends on more than one key and expands the templates. commandFrom names the variables a
// default command was made from.
func (l *loader) finishService(s *Service, prefix, commandFrom string, line int) {
	c := l.cfg
	if s.Command == nil {
		l.problems.at(line, "cannot use service %q: %scommand is missing", s.Name, prefix)
	}
	if _, set := c.origins[prefix+"command"]; !set && commandFrom != "" {
		c.origins[prefix+"command"] = origin{env: commandFrom}
	}
	if reason := checkRestart(&s.Restart); reason != "" {
		// A contradiction among inherited values alone has been reported where they are set.
		for _, name := range []string{"initial", "max", "park_on", "immediate_on"} {
			if _, own := c.origins[prefix+"restart."+name]; own {
				l.restartProblem(prefix+"restart.", reason)
				break
			}
		}
	}
	if _, set := c.origins[prefix+"enabled"]; !set {
		s.Enabled = s.EnabledBy == ""
	}
	if s.EnabledBy != "" {
		if _, set := l.lookup(s.EnabledBy); set {
			s.Enabled = l.switchedOn(s.EnabledBy)
			c.origins[prefix+"enabled"] = origin{env: s.EnabledBy}
		}
	}
	if l.plain {
		l.refuseAgentHole(s, prefix)
	}
	s.Command = c.Expand(s.Command, nil)
	s.Cwd = filepath.Clean(c.ExpandString(s.Cwd, nil))
	for name, value := range s.Env {
		s.Env[name] = c.ExpandString(value, nil)
	}
}
