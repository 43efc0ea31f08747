package main

import (
	"errors"
	"os"
	"strings"
	"syscall"
)

const s6Name = "s6"

// s6 is s6-svscan with an s6-supervise for each service and each logger, and s6-log as the logger, as in s6-overlay.
type s6 struct{}

func (s6) name() string { return s6Name }
func (s6) programs() []string {
	return []string{"s6-svscan", "s6-supervise", "s6-log", "s6-svc", "s6-svstat"}
}
func (s6) version() string            { return debianVersion("s6") }
func (s6) stopSignal() syscall.Signal { return syscall.SIGTERM }
func (s6) command(s *site) (argv, env []string) {
	return []string{"s6-svscan", "-c", "5000", s.path("scan")}, nil
}
func (s6) environment(*site) []string { return nil }
func (s6) statusOf(s *site, service string) []string {
	return []string{"s6-svstat", s.path("scan", service)}
}

func (s6) start(s *site, service string) []string {
	return []string{"s6-svc", "-u", s.path("scan", service)}
}

func (s6) stop(s *site, service string) []string {
	return []string{"s6-svc", "-d", s.path("scan", service)}
}

func (p s6) statusOfAll(s *site) [][]string {
	var all [][]string
	for _, service := range s.services {
		all = append(all, p.statusOf(s, service))
	}
	return all
}

func (p s6) prepare(s *site) error {
	err := errors.Join(
		s.write("scan/.s6-svscan/finish", "#!/bin/sh\nexit 0\n", 0o755),
		os.MkdirAll(s.path("log"), 0o755),
	)
	for _, service := range s.services {
		if err == nil {
			err = p.define(s, service, "scan/")
		}
	}
	return err
}

// define makes the service directory. s6 restarts a service without its delay of a second only if the service had said that it is
// ready.
func (s6) define(s *site, service, in string) error {
	script, ready := s.runScript(service), error(nil)
	if s.fast {
		script = strings.Replace(script, "\n", "\necho >&3\nexec 3>&-\n", 1)
		ready = s.write(in+service+"/notification-fd", "3\n", 0o644)
	}
	return errors.Join(
		ready,
		s.write(in+service+"/run", script, 0o755),
		s.write(in+service+"/log/run", "#!/bin/sh\nexec s6-log n10 s1000000 T "+s.path("log", service)+"\n", 0o755),
	)
}

func (p s6) adders() []adder {
	return []adder{{"s6-svscanctl -a", func(s *site, service string) error {
		return p.define(s, service, "staging/")
	}, func(s *site, service string) error {
		if err := os.Rename(s.path("staging", service), s.path("scan", service)); err != nil {
			return err
		}
		return run(nil, "s6-svscanctl", "-a", s.path("scan"))
	}}}
}
