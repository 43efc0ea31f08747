package main

import (
	"os/exec"
	"strings"
	"syscall"
)

// peer is a program that can run as process 1 in place of hinit. Peers with more abilities also
// implement the interfaces below.
type peer interface {
	name() string
	// programs returns the programs that must be in PATH.
	programs() []string
	// version returns the version, for the notes below the tables.
	version() string
	// prepare writes the peer's configuration for the site's services.
	prepare(s *site) error
	// command returns the command line of process 1, and its environment besides PATH and HOME.
	command(s *site) (argv, env []string)
}

// supervisor is a peer that runs all services of a site, rotates their logs and restarts them.
type supervisor interface {
	peer
	// stopSignal returns the signal that makes process 1 stop everything and exit.
	stopSignal() syscall.Signal
}

// controllable is a supervisor with commands for users. They run outside of the namespace, in the
// site's directory.
type controllable interface {
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

// runtimeAdder is a supervisor to which services can be added at run time.
type runtimeAdder interface {
	supervisor
	// adders returns the ways to add a service.
	adders() []adder
}

// adder is one way to add a service.
type adder struct {
	name  string // Name in the table.
	stage func(s *site, service string) error
	add   func(s *site, service string) error // Starts the prepared service; measured.
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

// debianVersion returns the version of a program's Debian package.
func debianVersion(pkg string) string {
	return firstLine("dpkg-query", "--show", "--showformat", "${Package} ${Version}", pkg)
}
