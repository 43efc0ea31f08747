// Package isolation defines the arguments that PID 1 passes to hinit-isolate: the files, ports and signals that a command may use.
//
// Package isolate reads exactly the plan that [Plan.Argv] was called on. It owns no goroutine and touches no disk.
package isolation

import (
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Program is the file name of the program that isolates itself and becomes the command. It is installed beside hinit.
const Program = "hinit-isolate"

// Plan says which files, ports and signals a command may use.
type Plan struct {
	Name    string   // name of the profile
	Home    string   // directory that it may change
	Hide    []string // files and directories that it may not use, even if a permitted directory has them
	Share   []string // paths that it may change besides its home, wherever they are
	Read    []string // paths that it may read, wherever they are
	Ports   []int    // TCP ports that it may listen on
	Control bool     // it may use the control socket of PID 1
	Marked  bool     // PID 1 recognises it by its filters alone, because it has the agent's user
	Refused string   // reason for which the command must not start, or ""
	Degrade bool     // if the kernel lacks a part of the isolation, it starts without this part
}

// Argv returns the arguments of Program, at path, that make it become command.
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

// Filters is the number of system call filters by which an isolated process exceeds PID 1. A process that may not use the control
// socket has one more. A process can add filters, and never loses one.
const Filters = 1

// Command returns the command in isolated arguments. It returns other arguments unchanged.
func Command(argv []string) []string { return argv[Head(argv):] }

// Instead returns arguments that isolate another command in the same way. If argv is not isolated, it returns command.
func Instead(argv, command []string) []string { return slices.Concat(argv[:Head(argv)], command) }

// Head is how many arguments of [Plan.Argv] come before the command, 0 for other arguments.
func Head(argv []string) int {
	end := slices.Index(argv, "--") + 1
	if end < 2 || end == len(argv) || filepath.Base(argv[0]) != Program {
		return 0
	}
	return end
}

// LandlockABI returns the version of the kernel's Landlock interface, or 0 without Landlock (landlock(7)).
func LandlockABI() int {
	const onlyVersion = 1
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, onlyVersion)
	if errno != 0 {
		return 0
	}
	return int(version)
}
