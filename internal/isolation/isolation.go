// Package isolation is what PID 1 and hinit-isolate say to each other: which files, ports and signals a command is confined to.
//
// It promises that [Parse] returns what [Plan.Argv] was made from. It owns no goroutine and touches no disk.
package isolation

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Program is the file name of the program that isolates itself and becomes the command. It is installed beside hinit.
const Program = "hinit-isolate"

// Plan says what a command may reach.
type Plan struct {
	Name    string   // of the profile
	Home    string   // a directory that it may change
	Hide    []string // files and directories that it may not reach, whatever they are in
	Share   []string // paths that it may change besides its home, wherever they are
	Read    []string // paths that it may read, likewise
	Ports   []int    // TCP ports that it may listen on
	Control bool     // it may use the control socket of PID 1
	Marked  bool     // its filters alone tell PID 1 that it may not: it has the agent's user
	Refused string   // why the command does not start; "" for nothing
	Degrade bool     // it starts with the parts of the isolation that the kernel has
}

// Argv returns the arguments with which Program, at path, becomes a command.
func (p Plan) Argv(path string, command []string) []string {
	argv := []string{path, "name=" + p.Name, "home=" + p.Home}
	if p.Refused != "" {
		argv = append(argv, "refused="+p.Refused)
	}
	for _, list := range []struct {
		key    string
		values []string
	}{{"hide", p.Hide}, {"share", p.Share}, {"read", p.Read}} {
		for _, value := range list.values {
			argv = append(argv, list.key+"="+value)
		}
	}
	for _, port := range p.Ports {
		argv = append(argv, "port="+strconv.Itoa(port))
	}
	for _, flag := range []struct {
		word string
		on   bool
	}{{"control", p.Control}, {"marked", p.Marked}, {"degrade", p.Degrade}} {
		if flag.on {
			argv = append(argv, flag.word)
		}
	}
	return append(append(argv, "--"), command...)
}

// Parse reads arguments that [Plan.Argv] has made.
func Parse(argv []string) (p Plan, command []string, err error) {
	end := slices.Index(argv, "--")
	if end < 1 || end == len(argv)-1 || filepath.Base(argv[0]) != Program {
		return p, nil, errors.New("the command is missing")
	}
	for _, word := range argv[1:end] {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "name":
			p.Name = value
		case "home":
			p.Home = value
		case "refused":
			p.Refused = value
		case "hide":
			p.Hide = append(p.Hide, value)
		case "share":
			p.Share = append(p.Share, value)
		case "read":
			p.Read = append(p.Read, value)
		case "port":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return p, nil, fmt.Errorf("cannot read the port %q: %w", value, err)
			}
			p.Ports = append(p.Ports, int(port))
		case "control":
			p.Control = true
		case "marked":
			p.Marked = true
		case "degrade":
			p.Degrade = true
		default:
			return p, nil, fmt.Errorf("%q is no part of an isolation", word)
		}
	}
	return p, argv[end+1:], nil
}

// Filters is how many filters of system calls an isolated process has more than PID 1. One that may not use the control socket has one more:
// a process can add filters, and never lose one.
const Filters = 1

// Command returns the command that isolated arguments lead to. Other arguments are returned as they are.
func Command(argv []string) []string {
	if _, command, err := Parse(argv); err == nil {
		return command
	}
	return argv
}

// Instead returns arguments that isolate another command in the same way.
func Instead(argv, command []string) []string {
	if p, _, err := Parse(argv); err == nil {
		return p.Argv(argv[0], command)
	}
	return command
}

// LandlockABI is the version of the kernel's interface for Landlock, 0 where there is none (landlock(7)).
func LandlockABI() int {
	const onlyVersion = 1
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, onlyVersion)
	if errno != 0 {
		return 0
	}
	return int(version)
}
