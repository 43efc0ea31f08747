package main

import (
	"fmt"
	"strings"
	"syscall"
)

// processCompose is measured if it is in PATH; Debian has no package of it. Its commands are described on
// https://f1bonacc1.github.io/process-compose/cli/process-compose/.
type processCompose struct{}

func (processCompose) name() string               { return "process-compose" }
func (processCompose) programs() []string         { return []string{"process-compose"} }
func (processCompose) version() string            { return firstLine("process-compose", "version", "--short") }
func (processCompose) stopSignal() syscall.Signal { return syscall.SIGTERM }

func (p processCompose) command(s *site) (argv, env []string) {
	return append(p.words(s), "up", "--tui=false", "--config", s.path("process-compose.yaml")), nil
}

func (processCompose) words(s *site) []string {
	return []string{"process-compose", "--use-uds", "--unix-socket", s.path("pc.sock"), "--log-file", s.path("pc.log")}
}

func (processCompose) environment(*site) []string { return nil }

func (p processCompose) statusOf(s *site, service string) []string {
	return append(p.words(s), "process", "get", service)
}

func (p processCompose) statusOfAll(s *site) [][]string {
	return [][]string{append(p.words(s), "process", "list")}
}

func (p processCompose) start(s *site, service string) []string {
	return append(p.words(s), "process", "start", service)
}

func (p processCompose) stop(s *site, service string) []string {
	return append(p.words(s), "process", "stop", service)
}

func (processCompose) prepare(s *site) error {
	var text strings.Builder
	text.WriteString("version: \"0.5\"\nprocesses:\n")
	for _, service := range s.services {
		fmt.Fprintf(&text, `  %[1]s:
    command: exec %[2]s
    log_location: %[3]s
    log_configuration: {rotation: {max_size_mb: 1, max_backups: 10}}
    availability: {restart: always, backoff_seconds: 1}
`, service, strings.Join(quoted(s.commandOf(service)), " "), s.path("log", service+".log"))
	}
	return s.write("process-compose.yaml", text.String(), 0o644)
}
