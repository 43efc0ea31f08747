// Package isolation defines the arguments that PID 1 passes to hinit-isolate: the files, ports and signals that a command may
// use.
//
// Package confine, in hinit-isolate, reads back the plan that was passed to [Argv]. Package isolation owns no goroutine and does
// no disk I/O.
package isolation

import (
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Program is the file name of the program that isolates itself and then executes the command. It is installed beside hinit.
const Program = "hinit-isolate"

// Argv returns the arguments for [Program], which is at path. With these arguments, the program isolates itself according to
// shared and own, and then executes command. The words in shared are the same for all profiles. Each word is KEY=VALUE or a flag;
// "it" is the command:
//
//	name, home     name of the profile, and the directory that it may change
//	HOME           its HOME, in place of the one in the environment
//	hide           file or directory that it may not use, even if it is in a permitted directory
//	share, read    path that it may change, or read, wherever it is
//	port           TCP port that it may listen on
//	rules          file with saved rules, which all profiles of a container share, for a faster start
//	save           write the rules to this file instead of executing the command
//	refused        the reason why the command must not start
//	control        it may use the control socket of PID 1
//	marked         PID 1 recognises it by its filters alone, because it runs as the agent's user
//	degrade        if the kernel lacks a part of the isolation, it starts without this part
func Argv(path string, shared, own, command []string) []string {
	return slices.Concat([]string{path}, shared, own, []string{"--"}, command)
}

// Filters is the number of system call filters that an isolated process has in addition to the filters of PID 1. PID 1 recognises
// isolated processes by this number. A process that may not use the control socket has one more. A process can add filters, but
// never remove one.
const Filters = 1

// Command returns the command in argv if argv is from [Argv]. It returns other arguments unchanged.
func Command(argv []string) []string { return argv[PlanLen(argv):] }

// Wrap returns arguments that isolate command according to the same plan as argv. If argv isn't from [Argv], it returns
// command.
func Wrap(argv, command []string) []string { return slices.Concat(argv[:PlanLen(argv)], command) }

// PlanLen returns the number of arguments before the command if argv is from [Argv], and otherwise 0.
func PlanLen(argv []string) int {
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
