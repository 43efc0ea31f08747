package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// logger is one measured candidate.
type logger struct {
	name    string
	program string // Program that must be installed; "" for none.
	console bool   // Whether the logger also copies the lines to a console.
	start   func(r *run) error
}

func (b *bench) present(only string) []logger {
	all := []logger{
		{name: "hinit, file + console", console: true, start: func(r *run) error { return r.hinit("raw") }},
		{name: "hinit, file", start: func(r *run) error { return r.hinit("off") }},
		{name: reference, program: "s6-log", console: true, start: func(r *run) error {
			return r.filter("s6-log", "n10", "s1000000", "1", "T", r.logs)
		}},
		{name: "s6-log, file", program: "s6-log", start: func(r *run) error {
			return r.filter("s6-log", "n10", "s1000000", "T", r.logs)
		}},
		{name: "svlogd -tt, file", program: "svlogd", start: func(r *run) error {
			if err := os.WriteFile(filepath.Join(r.logs, "config"), []byte("s1000000\nn10\n"), 0o644); err != nil {
				return err
			}
			return r.filter("svlogd", "-tt", r.logs)
		}},
		{name: "supervisord, file, no timestamps", program: "supervisord", start: (*run).supervisord},
		{name: "ceiling: read and write", start: func(r *run) error { return r.startBare("copy") }},
		{name: writerAlone, start: func(r *run) error { return r.startBare("discard") }},
		{name: "ceiling: splice", start: func(r *run) error { return r.startBare("splice") }},
	}
	return slices.DeleteFunc(all, func(l logger) bool {
		if !strings.Contains(l.name, only) {
			return true
		}
		if l.program == "" {
			return false
		}
		_, err := exec.LookPath(l.program)
		if err != nil {
			fmt.Printf("%s is left out: %v; test/bench/install-peers installs it\n", l.name, err)
		}
		return err != nil
	})
}

// hinit runs the writer as a service of a container. console is the value of logs.console.
func (r *run) hinit(console string) error {
	home := filepath.Join(r.dir, "home")
	r.logs = filepath.Join(home, "logs", "gateways", "writer")
	services := fmt.Sprintf("  writer: {command: [%s], env: {%s: write}, restart: {initial: 1h, max: 1h}}\n",
		strings.Join(r.writer(), ", "), roleVar)
	return r.container(home, console, services)
}

// container starts hinit with the given services.
func (r *run) container(home, console, services string) error {
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	if err := os.Chown(home, agentID, agentID); err != nil {
		return err
	}
	config := fmt.Sprintf(`home: %s
agent: {user: "%d:%d", binary: %s}
control: {socket: %s/control.sock}
boot: {hooks: []}
logs: {console: %s}
services:
%s`, home, agentID, agentID, r.bench.self, r.dir, console, services)
	file := filepath.Join(r.dir, "hinit.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	cmd := exec.Command(r.bench.self, r.bench.hinit, "init", "--", "/usr/bin/env", roleVar+"=idle", r.bench.self)
	cmd.Env = append(os.Environ(), roleVar+"=contain", "HINIT_CONFIG="+file, "HERMES_HOME="+home)
	cmd.SysProcAttr = isolated()
	return r.startLogger(cmd)
}

// filter runs a logger that reads the writer's output from its standard input.
func (r *run) filter(argv ...string) error {
	return r.pipeline(exec.Command(argv[0], argv[1:]...))
}

func (r *run) startBare(how string) error {
	cmd := exec.Command(r.bench.self, filepath.Join(r.logs, "current"))
	cmd.Env = append(os.Environ(), roleVar+"="+how)
	return r.pipeline(cmd)
}

func (r *run) pipeline(cmd *exec.Cmd) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdin = in
	w := exec.Command(r.writer()[0], r.writer()[1:]...)
	w.Env = append(os.Environ(), roleVar+"=write")
	w.Stdout, w.Stderr = out, os.Stderr
	if err := w.Start(); err != nil {
		return err
	}
	r.others = append(r.others, w)
	r.heldFiles = append(r.heldFiles, out) // The descriptor in hold keeps the logger alive until its processor time was read.
	err = r.startLogger(cmd)
	_ = in.Close()
	return err
}

func (r *run) supervisord() error {
	argv := r.writer()
	for i := range argv {
		argv[i] = `"` + argv[i] + `"`
	}
	file := filepath.Join(r.dir, "supervisord.conf")
	config := fmt.Sprintf(`[supervisord]
nodaemon=true
user=root
logfile=/dev/null
logfile_maxbytes=0
pidfile=%[1]s/pid
[program:writer]
command=%[2]s
environment=%[3]s="write"
autorestart=false
startsecs=0
stdout_logfile=%[4]s/current
stdout_logfile_maxbytes=1000000
stdout_logfile_backups=10
`, r.dir, strings.Join(argv, " "), roleVar, r.logs)
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	return r.startLogger(exec.Command("supervisord", "-c", file))
}
