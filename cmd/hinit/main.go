package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/cli"
	"hinit/internal/container"
	"hinit/internal/container/units"
	_ "hinit/internal/entry" // where the process begins
	"hinit/internal/proc"
	"hinit/shim/agentuser"
)

func main() { os.Exit(run(os.Args)) }

// run selects the program by argv[0].
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
	case "init", "tini":
		return container.Main(argv[0], argv[1:])
	}
	if name := filepath.Base(argv[0]); strings.HasPrefix(name, "s6-") || name == "with-contenv" || name == agentuser.NativeName { // a link that leads here
		return cli.ToolByName(argv)
	}
	return cli.Main(argv[1:], cli.Init{Container: container.Main, Plain: container.Plain})
}
