// Command hinit-kanban is the task board that agent profiles share, and its dispatcher: hinit kanban. It picks the
// command line from argv[0] and does nothing else; it owns no goroutine.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"hinit/internal/proc"
	"hinit/kanban/cli"
)

func main() {
	if filepath.Base(os.Args[0]) == proc.LimitsName {
		code, err := proc.LimitsMain(os.Args)
		fmt.Fprintln(os.Stderr, "hinit-kanban:", err)
		os.Exit(code)
	}
	os.Exit(cli.System().Main(os.Args[1:]))
}
