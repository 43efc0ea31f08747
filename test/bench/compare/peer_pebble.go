package main

import (
	"fmt"
	"strings"
	"syscall"
)

// pebble is measured if it is in PATH; Debian has no package of it. It keeps logs in memory only. Its commands are described on
// https://documentation.ubuntu.com/pebble/reference/cli-commands/.
type pebble struct{}

const pebbleName = "pebble"

func (pebble) name() string               { return pebbleName }
func (pebble) programs() []string         { return []string{"pebble"} }
func (pebble) version() string            { return firstLine("pebble", "version", "--client") }
func (pebble) stopSignal() syscall.Signal { return syscall.SIGTERM }

func (p pebble) command(s *site) (argv, env []string) {
	return []string{"pebble", "run"}, p.environment(s)
}

func (pebble) environment(s *site) []string { return []string{"PEBBLE=" + s.path("pebble")} }

func (pebble) statusOf(_ *site, service string) []string {
	return []string{"pebble", "services", service}
}

func (pebble) statusOfAll(*site) [][]string { return [][]string{{"pebble", "services"}} }

func (pebble) start(_ *site, service string) []string { return []string{"pebble", "start", service} }

func (pebble) stop(_ *site, service string) []string { return []string{"pebble", "stop", service} }

func (p pebble) prepare(s *site) error {
	return s.write("pebble/layers/001-bench.yaml", p.layer(s, s.services), 0o644)
}

func (pebble) layer(s *site, services []string) string {
	delay := ""
	if s.fast {
		delay = "\n    backoff-delay: 1ms"
	}
	var text strings.Builder
	text.WriteString("services:\n")
	for _, service := range services {
		fmt.Fprintf(&text, "  %s:\n    override: replace\n    startup: enabled\n    command: %s%s\n",
			service, strings.Join(s.commandOf(service), " "), delay)
	}
	return text.String()
}

func (p pebble) adders() []adder {
	return []adder{{"pebble add and replan", func(s *site, service string) error {
		return s.write("more-"+service+".yaml", p.layer(s, []string{service}), 0o644)
	}, func(s *site, service string) error {
		if err := run(p.environment(s), "pebble", "add", service, s.path("more-"+service+".yaml")); err != nil {
			return err
		}
		return run(p.environment(s), "pebble", "replan")
	}}}
}
