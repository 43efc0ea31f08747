// Command hinit is PID 1 and the supervisor in a container that hosts many agent profiles. It runs as the init when it is called
// as init or tini, or with the verb init or run. For any other verb, or under the name of an s6 tool, it executes hinit-tools,
// which implements all other commands. It owns no goroutine.
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
	_ "hinit/internal/entry/ask" // it runs before the Go runtime starts
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/shim/agentuser"
)

// init locks the main goroutine to the main thread, see [container.Main].
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // only in an init is the main goroutine sure to have the main thread

func main() { os.Exit(run(os.Args)) }

// run selects the program by argv[0], or by the verb.
func run(argv []string) int {
	if len(argv) == 0 {
		argv = []string{"hinit"}
	}
	switch name, words := filepath.Base(argv[0]), argv[1:]; {
	case name == units.PauseName:
		return units.RunPlaceholder()
	case name == "init", name == "tini":
		return container.Main(argv[0], words)
	// hinit-tools also handles a call without a verb, and calls by the names that are links to hinit.
	case len(words) == 0, name == proc.LimitsName, strings.HasPrefix(name, "s6-"), name == "with-contenv", name == agentuser.NativeArgv0:
	case words[0] == "init" && (len(words) != 2 || words[1] != "--help" && words[1] != "-h"):
		return container.Main("hinit", words[1:])
	case words[0] == "run" && len(words) == 1:
		return container.RunServicesOnly("")
	case words[0] == "run" && len(words) == 3 && words[1] == "-c": // hinit-tools handles all other forms, and wrong arguments
		return container.RunServicesOnly(words[2])
	case strings.Join(words, " ") == "version --handover":
		// Before the running hinit replaces its program, it executes the new binary as `BINARY version --handover`. The
		// answer says which format of the handed-over state the new binary reads.
		if _, err := fmt.Println(reexec.StateFormat); err != nil {
			fmt.Fprintln(os.Stderr, "cannot write the output:", err)
			return 1
		}
		return 0
	}
	return execTools(argv)
}

// execTools replaces this process with hinit-tools. That program implements all other commands, the s6 tools, and hinit-limits,
// which sets resource limits and then executes a command. execTools returns only on failure, with an exit code. Package entry
// normally executes hinit-tools before the Go runtime starts; execTools is the fallback.
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
		return 126 // exit code of a shell for a command that can't be executed
	case strings.HasPrefix(argv[0], "s6-"):
		return 111 // exit code of the s6 tools for a failed system call
	}
	return 1
}
