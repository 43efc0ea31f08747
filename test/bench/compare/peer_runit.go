package main

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// runit is runsvdir with a runsv for each service, and svlogd as the logger.
type runit struct{}

func (runit) name() string               { return "runit" }
func (runit) programs() []string         { return []string{"runsvdir", "runsv", "svlogd", "sv"} }
func (runit) version() string            { return debianVersion("runit") }
func (runit) stopSignal() syscall.Signal { return syscall.SIGHUP } // After SIGTERM, runsvdir would exit and leave its runsv processes running.
func (runit) command(s *site) (argv, env []string) {
	return []string{"runsvdir", "-P", s.path("scan")}, nil
}
func (runit) environment(*site) []string { return nil }
func (runit) statusOf(s *site, service string) []string {
	return []string{"sv", "status", s.path("scan", service)}
}

func (runit) start(s *site, service string) []string {
	return []string{"sv", "up", s.path("scan", service)}
}

func (runit) stop(s *site, service string) []string {
	return []string{"sv", "down", s.path("scan", service)}
}

func (runit) statusOfAll(s *site) [][]string {
	all := []string{"sv", "status"}
	for _, service := range s.services {
		all = append(all, s.path("scan", service))
	}
	return [][]string{all}
}

func (p runit) prepare(s *site) error {
	err := os.MkdirAll(s.path("scan"), 0o755)
	for _, service := range s.services {
		if err == nil {
			err = p.define(s, service, "scan/")
		}
	}
	if err == nil { // runsvdir waits until a changed directory is a second old.
		past := time.Now().Add(-time.Hour)
		err = os.Chtimes(s.path("scan"), past, past)
	}
	return err
}

func (runit) define(s *site, service, in string) error {
	return errors.Join(
		s.write(in+service+"/run", s.runScript(service), 0o755),
		s.write(in+service+"/log/run", "#!/bin/sh\nexec svlogd -tt "+s.path("log", service)+"\n", 0o755),
		s.write("log/"+service+"/config", "s1000000\nn10\n", 0o644),
	)
}

func (p runit) adders() []adder {
	return []adder{{"new directory", func(s *site, service string) error {
		return p.define(s, service, "staging/")
	}, func(s *site, service string) error {
		return os.Rename(s.path("staging", service), s.path("scan", service))
	}}}
}
