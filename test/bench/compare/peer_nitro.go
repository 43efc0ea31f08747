package main

import (
	"errors"
	"os"
	"syscall"
)

// nitro is measured if it is in PATH; Debian has no package of it. Each service has its own logger, s6-log. nitro has room for
// 500 services, unless it is built with another MAXSV, and each logger counts as one. Its manual pages are nitro(8) and
// nitroctl(1).
type nitro struct{}

const nitroName = "nitro"

func (nitro) name() string                           { return nitroName }
func (nitro) programs() []string                     { return []string{"nitro", "nitroctl", "s6-log"} }
func (nitro) version() string                        { return "" }
func (nitro) stopSignal() syscall.Signal             { return syscall.SIGINT }
func (nitro) environment(s *site) []string           { return []string{"NITRO_SOCK=" + s.path("nitro.sock")} }
func (nitro) statusOfAll(*site) [][]string           { return [][]string{{"nitroctl", "list"}} }
func (nitro) start(_ *site, service string) []string { return []string{"nitroctl", "up", service} }
func (nitro) stop(_ *site, service string) []string  { return []string{"nitroctl", "down", service} }

func (nitro) statusOf(_ *site, service string) []string {
	return []string{"nitroctl", "pidof", service}
}

func (p nitro) command(s *site) (argv, env []string) {
	return []string{"nitro", s.path("scan")}, p.environment(s)
}

func (p nitro) prepare(s *site) error {
	err := os.MkdirAll(s.path("log"), 0o755)
	for _, service := range s.services {
		if err == nil {
			err = p.define(s, service)
		}
	}
	return err
}

func (nitro) define(s *site, service string) error {
	return errors.Join(
		s.write("scan/"+service+"-log/run", "#!/bin/sh\nexec s6-log n10 s1000000 T "+s.path("log", service)+"\n", 0o755),
		s.write("scan/"+service+"/run", s.runScript(service), 0o755),
		os.Symlink("../"+service+"-log", s.path("scan", service, "log")),
	)
}

func (p nitro) adders() []adder {
	return []adder{{"nitroctl rescan", p.define, func(s *site, _ string) error {
		return run(p.environment(s), "nitroctl", "rescan")
	}}}
}
