package main

import (
	"fmt"
	"strings"
	"syscall"
)

// supervisord is one process that also writes the logs, without time stamps. All services are in one group, because it stops
// groups one after the other, a second each.
type supervisord struct{}

func (supervisord) name() string               { return "supervisord" }
func (supervisord) programs() []string         { return []string{"supervisord", "supervisorctl"} }
func (supervisord) version() string            { return debianVersion("supervisor") }
func (supervisord) stopSignal() syscall.Signal { return syscall.SIGTERM }
func (supervisord) command(s *site) (argv, env []string) {
	return []string{"supervisord", "-c", s.path("supervisord.conf")}, nil
}
func (supervisord) environment(*site) []string { return nil }
func (supervisord) ctl(s *site, w ...string) []string {
	return append([]string{"supervisorctl", "-c", s.path("supervisord.conf")}, w...)
}

func (p supervisord) statusOf(s *site, service string) []string {
	return p.ctl(s, "status", "all:"+service)
}

func (p supervisord) statusOfAll(s *site) [][]string { return [][]string{p.ctl(s, "status")} }

func (p supervisord) start(s *site, service string) []string {
	return p.ctl(s, "start", "all:"+service)
}

func (p supervisord) stop(s *site, service string) []string { return p.ctl(s, "stop", "all:"+service) }

func (p supervisord) prepare(s *site) error {
	var text strings.Builder
	fmt.Fprintf(&text, `[supervisord]
nodaemon=true
user=root
logfile=/dev/null
logfile_maxbytes=0
pidfile=%[1]s/supervisord.pid
minfds=%[2]d
[unix_http_server]
file=%[1]s/supervisor.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://%[1]s/supervisor.sock
[group:all]
programs=%[3]s
[include]
files=%[1]s/conf.d/*.conf
`, s.dir, 1024+4*len(s.services), strings.Join(s.services, ","))
	if err := s.write("supervisord.conf", text.String(), 0o644); err != nil {
		return err
	}
	for _, service := range s.services {
		if err := p.define(s, service); err != nil {
			return err
		}
	}
	return s.write("log/.keep", "", 0o644)
}

func (supervisord) define(s *site, service string) error {
	seconds := 1 // The default of supervisord.
	if s.fast {
		seconds = 0
	}
	return s.write("conf.d/"+service+".conf", fmt.Sprintf(`[program:%[1]s]
command=%[2]s
autorestart=true
startsecs=%[3]d
redirect_stderr=true
stdout_logfile=%[4]s
stdout_logfile_maxbytes=1MB
stdout_logfile_backups=10
`, service, strings.Join(quoted(s.commandOf(service)), " "), seconds, s.path("log", service)), 0o644)
}

func (p supervisord) adders() []adder {
	return []adder{{"supervisorctl update", p.define, func(s *site, _ string) error {
		return run(nil, p.ctl(s, "update")...)
	}}}
}
