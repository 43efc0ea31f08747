package main

import (
	"os/exec"
	"strings"
	"syscall"
)

// A peer is a program that a user could run as process 1 in place of hinit. The interfaces below are for peers that can do more;
// a peer without such an ability has no row in the tables that need it.
type peer interface {
	name() string
	// programs returns the programs that must be in PATH.
	programs() []string
	// version returns the version, for the notes below the tables.
	version() string
	// prepare writes the peer's configuration into the site, so that the peer runs the site's services from its start.
	prepare(s *site) error
	// command returns the command line of process 1, and its environment besides PATH and HOME.
	command(s *site) (argv, env []string)
}

// A supervisor runs all services of a site, each with a rotated log of its own, and restarts them.
type supervisor interface {
	peer
	// stopSignal returns the signal at which process 1 stops everything and ends.
	stopSignal() syscall.Signal
}

// An operated supervisor has commands for users. They run outside of the namespace, in the site's directory.
type operated interface {
	supervisor
	// statusOf returns the command that prints the state of one service.
	statusOf(s *site, service string) []string
	// statusOfAll returns the commands that together print the state of all services.
	statusOfAll(s *site) [][]string
	start(s *site, service string) []string
	stop(s *site, service string) []string
	// environment returns the environment of these commands, besides PATH.
	environment(s *site) []string
}

// A grower can get another service while it runs.
type grower interface {
	supervisor
	// adders returns the ways to add a service.
	adders() []adder
}

// An adder is one way to add a service.
type adder struct {
	name  string                              // name for the table
	stage func(s *site, service string) error // prepares the service; its time is not measured
	add   func(s *site, service string) error // add makes the service run; its time is measured
}

// allPeers returns all candidates in the order of the tables, installed or not.
func (b *bench) allPeers() []peer {
	all := []peer{
		loopPeer{b.self},
		hinit{program: b.hinit},
		s6{},
		runit{},
		supervisord{},
		pebble{},
		nitro{},
		processCompose{},
		tini, dumbInit, catatonit,
	}
	if b.before != "" {
		all = append(all, hinit{program: b.before, before: true})
	}
	return all
}

// missingProgram returns the first of the peer's programs that is not installed.
func missingProgram(p peer) string {
	for _, program := range p.programs() {
		if _, err := exec.LookPath(program); err != nil {
			return program
		}
	}
	return ""
}

// firstLine returns the first line that a program prints.
func firstLine(argv ...string) string {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// packaged returns the version of the Debian package that a program comes from.
func packaged(pkg string) string {
	return firstLine("dpkg-query", "--show", "--showformat", "${Package} ${Version}", pkg)
}
