package main

import (
	"os/exec"
	"strings"
	"syscall"
)

// A peer is what a user could put in the place of process 1. Further abilities are in the interfaces below; a peer that lacks one
// has no row in the measures that need it.
type peer interface {
	name() string
	// programs are those that must be on PATH.
	programs() []string
	// version says which one it is.
	version() string
	// prepare writes into the site what makes it run the site's services at its start.
	prepare(s *site) error
	// command is what becomes process 1, and its environment besides PATH and HOME.
	command(s *site) (argv, env []string)
}

// A supervisor runs all services of a site, each with a rotated log of its own, and restarts them.
type supervisor interface {
	peer
	// stopSignal makes process 1 stop everything and end.
	stopSignal() syscall.Signal
}

// An operated supervisor has commands. They run outside of the namespace, in the site's directory.
type operated interface {
	supervisor
	// statusOf is the command that tells the state of one service.
	statusOf(s *site, service string) []string
	// statusOfAll are the commands that together tell the state of all.
	statusOfAll(s *site) [][]string
	start(s *site, service string) []string
	stop(s *site, service string) []string
	// environment is the environment of the commands, besides PATH.
	environment(s *site) []string
}

// A grower can be given one more service while it runs.
type grower interface {
	supervisor
	// adders are its ways to add a service.
	adders() []adder
}

// An adder makes one more service run.
type adder struct {
	name  string                              // what a user would call it
	stage func(s *site, service string) error // makes ready, and is not measured
	add   func(s *site, service string) error
}

// allPeers returns the candidates in the order of the tables, also the ones that are not installed.
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

// missing is the first of the peer's programs that is not here.
func missing(p peer) string {
	for _, program := range p.programs() {
		if _, err := exec.LookPath(program); err != nil {
			return program
		}
	}
	return ""
}

// firstLine is what a program prints first.
func firstLine(argv ...string) string {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// packaged is the version of the Debian package that a program comes from.
func packaged(pkg string) string {
	return firstLine("dpkg-query", "--show", "--showformat", "${Package} ${Version}", pkg)
}
