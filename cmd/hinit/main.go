package main

import (
	"fmt"
	"os"
	"path/filepath"

	"hinit/internal/proc"
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
		fmt.Fprintln(os.Stderr, "hinit:", err)
		return code
	case "init", "tini":
		return initMain(argv[0], argv[1:])
	}
	return cli(newTerminal(), argv[1:])
}
