// Command hinit-tools is the part of hinit's command line that PID 1 need not link: explain, tree, profile, topology, events, config,
// doctor, demo, bundle, completion and man. hinit runs it for these. It dispatches to package tools and does nothing else; it owns no goroutine.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"hinit/internal/cli/tools"
	"hinit/internal/proc"
)

func main() {
	if filepath.Base(os.Args[0]) == proc.LimitsName { // it becomes the agent's command, as the agent's user
		code, err := proc.LimitsMain(os.Args)
		fmt.Fprintln(os.Stderr, "[hinit]", err)
		os.Exit(code)
	}
	os.Exit(tools.Main(os.Args[1:]))
}
