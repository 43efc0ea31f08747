// Package isolation defines the arguments that PID 1 passes to hinit-isolate: the files, ports and signals that a command may
// use.
//
// Package confine, in hinit-isolate, reads exactly the plan that [Argv] was called with. It owns no goroutine and touches no
// disk.
package isolation

import (
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Program is the file name of the program that isolates itself and becomes the command. It is installed beside hinit.
const Program = "hinit-isolate"

// Argv returns the arguments of Program, at path, that make it become command. Each word of the plan is KEY=VALUE or a flag:
//
//	name, home     name of the profile, and the directory that it may change
//	hide           file or directory that it may not use, even if a permitted directory has it
//	share, read    path that it may change, or read, wherever it is
//	port           TCP port that it may listen on
//	rules          file with saved rules that all plans share, to start faster
//	save           write the rules to this file, and run no command
//	refused        why the command must not start
//	control        it may use the control socket of PID 1
//	marked         PID 1 recognises it by its filters alone, because it has the agent's user
//	degrade        if the kernel lacks a part of the isolation, it starts without this part
func Argv(path string, plan, command []string) []string {
	return slices.Concat([]string{path}, plan, []string{"--"}, command)
}

// Filters is how many more system call filters an isolated process has than PID 1, which recognises such processes by that
// number. A process that may not use the control socket has one more. A process can add filters, but never remove one.
const Filters = 1

// Command returns the command in arguments that [Argv] made. It returns other arguments unchanged.
func Command(argv []string) []string { return argv[Head(argv):] }

// Instead returns arguments that isolate command in the same way as argv isolates another one. If argv isn't from [Argv], it
// returns command.
func Instead(argv, command []string) []string { return slices.Concat(argv[:Head(argv)], command) }

// Head returns the number of arguments before the command in arguments that [Argv] made, and 0 for other arguments.
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
