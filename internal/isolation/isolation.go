// Package isolation defines the arguments of hinit-isolate, by which PID 1 says which files, ports and signals a command may
// use.
//
// Package confine, in hinit-isolate, reads the words of [Argv]. This package owns no goroutine, and does no disk I/O.
package isolation

import (
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Program is the file name of the program that confines itself and then executes a command.
const Program = "hinit-isolate"

// ProgramPath returns the path of [Program]. It is in hinit's own directory, where only root can write.
var ProgramPath = sync.OnceValue(func() string {
	self, _ := os.Executable()
	return filepath.Join(filepath.Dir(self), Program)
})

// Argv returns the arguments for [Program], which is at path. With these arguments, the program confines itself according to
// shared and own, and then executes command. The words in shared are the same for all profiles. Each word is KEY=VALUE or a
// flag. In this list, "it" is the command:
//
//	name, home     name of the profile, and the directory that it may change
//	HOME           its HOME, in place of the one in the environment
//	hide           file or directory that it may not use, even in a permitted directory
//	share, read    path that it may change, or read, wherever it is
//	port           TCP and UDP port on which it may listen
//	rules          file with rules that all profiles of the container share, for a faster start
//	save           write such rules to this file, instead of executing the command
//	refused        why the command must not start
//	control        it may use the control socket of PID 1
//	marked         PID 1 recognizes it by its filters alone, because it runs as the agent's user
//	degrade        if the kernel lacks a part of the isolation, start without it
func Argv(path string, shared, own, command []string) []string {
	return slices.Concat([]string{path}, shared, own, []string{"--"}, command)
}

// SeccompFilterCount is the number of seccomp filters of an isolated process besides the filters of PID 1. PID 1 recognizes
// isolated processes by this number. A process that may not use the control socket has one more filter. A process can add
// filters, but never remove one.
const SeccompFilterCount = 1

// UnwrapCommand returns the command in the arguments of [Argv]. It returns other arguments unchanged.
func UnwrapCommand(argv []string) []string { return argv[WrapperLen(argv):] }

// Wrap returns arguments that isolate command like the command in argv. If argv is not from [Argv], it returns command.
func Wrap(argv, command []string) []string { return slices.Concat(argv[:WrapperLen(argv)], command) }

// WrapperLen returns the number of arguments before the command if argv is from [Argv]; otherwise 0.
func WrapperLen(argv []string) int {
	end := slices.Index(argv, "--") + 1
	if end < 2 || end == len(argv) || filepath.Base(argv[0]) != Program {
		return 0
	}
	return end
}

// LandlockABI returns the version of Landlock in this kernel; 0 without Landlock (landlock(7)).
func LandlockABI() int {
	const onlyVersion = 1
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, onlyVersion)
	if errno != 0 {
		return 0
	}
	return int(version)
}
