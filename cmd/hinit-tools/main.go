// Command hinit-tools has the commands that PID 1 need not contain; hinit executes it for them. They are explain, tree, profile,
// topology, logs, events, checks, reload, reexec, notify, wait, run-once, shell, signal, config, doctor, demo, bundle, completion
// and man. The program also runs under the names of the s6 tools and of the agent's gateway commands. PID 1 starts it as the boot
// program. It only calls the packages tools, applet, agentcli, identity and volume. It owns no goroutine.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"hinit/internal/agentcli"
	"hinit/internal/boot"
	"hinit/internal/boot/identity"
	"hinit/internal/cli/tools"
	"hinit/internal/cmdline"
	// Package ask runs before the Go runtime starts.
	_ "hinit/internal/entry/ask"
	"hinit/internal/proc"
	"hinit/internal/proc/limits"
	"hinit/internal/s6/applet"
	"hinit/internal/volume"
	"hinit/shim/agentuser"
)

func main() { os.Exit(run(os.Args)) }

// run selects the program's task by argv[0].
func run(argv []string) int {
	if len(argv) == 0 {
		argv = []string{"hinit-tools"}
	}
	switch filepath.Base(argv[0]) {
	case proc.LimitsName: // set resource limits and the user, then execute the command
		code, err := limits.Main(argv)
		fmt.Fprintln(os.Stderr, "[hinit]", err)
		return code
	case boot.BootProgramName: // PID 1 starts this program at boot
		if len(argv) > 1 {
			return identity.Main(argv[1], os.Stdout)
		}
		return volume.Main(os.Stdin, os.Stdout)
	case agentuser.NativeArgv0:
		call := agentcli.Call{
			Args: argv[1:], Env: os.Environ(), Err: os.Stderr,
			Dial:         func() (agentcli.Supervisor, error) { return cmdline.Dial(os.LookupEnv) },
			ListProfiles: func() int { return tools.Main([]string{"profile", "list"}) },
		}
		return cmdline.RunWithOutput(func(out io.Writer) int {
			call.Out = out
			return call.Main()
		})
	}
	if name, tool, ok := applet.Find(argv[0]); ok {
		return tool(&applet.Invocation{
			Name: name, Args: argv[1:], Env: os.Environ(), In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
			Dial: func() (applet.Supervisor, error) { return cmdline.Dial(os.LookupEnv) },
		})
	}
	return tools.Main(argv[1:])
}
