// Command hinit-kanban is the task board that agent profiles share, and its dispatcher: hinit kanban. It picks the
// command line from argv[0], and gives up root for the agent's user. It owns no goroutine.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"hinit/internal/proc"
	"hinit/kanban"
	"hinit/kanban/cli"
)

func main() {
	if filepath.Base(os.Args[0]) == proc.LimitsName {
		code, err := proc.LimitsMain(os.Args)
		fmt.Fprintln(os.Stderr, "hinit-kanban:", err)
		os.Exit(code)
	}
	if err := becomeAgent(kanban.Root(os.Getenv, os.Getenv("HOME"))); err != nil {
		fmt.Fprintln(os.Stderr, "hinit-kanban:", err)
		os.Exit(1)
	}
	os.Exit(cli.System().Main(os.Args[1:]))
}
