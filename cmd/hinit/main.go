package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/agentcli"
	"hinit/internal/cli"
	"hinit/internal/container"
	"hinit/internal/container/units"
	_ "hinit/internal/entry" // where the process begins
	"hinit/internal/proc"
	"hinit/shim/agentuser"
)

func main() { os.Exit(run(os.Args)) }

// run picks the personality from argv[0].
func run(argv []string) int {
	if len(argv) == 0 {
		argv = []string{"hinit"}
	}
	switch filepath.Base(argv[0]) {
	case proc.LimitsName:
		code, err := proc.LimitsMain(argv)
		fmt.Fprintln(os.Stderr, "[hinit]", err)
		return code
	case units.StandInName:
		return units.StandIn()
	case agentuser.NativeName:
		return gatewayCommand(argv[1:]).Main()
	case "init", "tini":
		return container.Main(argv[0], argv[1:])
	}
	if name := filepath.Base(argv[0]); strings.HasPrefix(name, "s6-") || name == "with-contenv" { // a link that leads here
		return cli.ToolOfS6(argv)
	}
	return cli.Main(argv[1:], cli.Init{Container: container.Main, Plain: container.Plain})
}

// gatewayCommand is what this process gives to a gateway command of the agent.
func gatewayCommand(args []string) *agentcli.Call {
	return &agentcli.Call{
		Args: args, Env: os.Environ(), Out: os.Stdout, Err: os.Stderr,
		Dial: func() (agentcli.Supervisor, error) { return cli.Dial() },
	}
}
