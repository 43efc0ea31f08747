package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/container"
	"hinit/internal/container/units"
	_ "hinit/internal/entry" // the first code of the process
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/shim/agentuser"
)

// init keeps the main goroutine on the main thread, see [container.Main].
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // only in an init is the main goroutine sure to have the main thread

func main() { os.Exit(run(os.Args)) }

// run selects the program by argv[0], or by the verb.
func run(argv []string) int {
	if len(argv) == 0 {
		argv = []string{"hinit"}
	}
	switch name, words := filepath.Base(argv[0]), argv[1:]; {
	case name == units.StandInName:
		return units.StandIn()
	case name == "init", name == "tini":
		return container.Main(argv[0], words)
	// hinit-tools handles these: no verb, or a name that is a link to hinit
	case len(words) == 0, name == proc.LimitsName, strings.HasPrefix(name, "s6-"), name == "with-contenv", name == agentuser.NativeName:
	case words[0] == "init" && (len(words) != 2 || words[1] != "--help" && words[1] != "-h"):
		return container.Main("hinit", words[1:])
	case words[0] == "run" && len(words) == 1:
		return container.Plain("")
	case words[0] == "run" && len(words) == 3 && words[1] == "-c": // hinit-tools handles all other forms, or prints what is wrong
		return container.Plain(words[2])
	case strings.Join(words, " ") == "version --handover":
		fmt.Println(reexec.Format) // hinit reexec asks a new binary for this
		return 0
	}
	return execTools(argv)
}

// execTools replaces the process by hinit-tools. That program has every other command, the tools of s6, and the program that sets
// limits before a command. It returns only after a failure. It is the fallback for commands for which package entry could not
// execute hinit-tools.
func execTools(argv []string) int {
	self, err := os.Executable()
	path := filepath.Join(filepath.Dir(self), "hinit-tools")
	if err == nil {
		err = unix.Exec(path, argv, os.Environ())
	}
	argv[0] = filepath.Base(argv[0])
	fmt.Fprintf(os.Stderr, "cannot run %s: cannot execute %s: %v; install it beside hinit\n", strings.Join(argv[:min(2, len(argv))], " "), path, err)
	switch {
	case argv[0] == proc.LimitsName:
		return 126 // the exit code of shells
	case strings.HasPrefix(argv[0], "s6-"):
		return 111 // the exit code of s6's tools after a failed system call
	}
	return 1
}
