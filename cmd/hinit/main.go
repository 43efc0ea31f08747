package main

import (
	"fmt"
	"os"
	"path/filepath"

	"hinit/internal/cli"
	"hinit/internal/container"
	_ "hinit/internal/entry" // where the process begins
	"hinit/internal/proc"
	"hinit/internal/s6/applet"
	"hinit/internal/s6/personality"
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
	case personality.StandInName:
		return personality.StandIn()
	case "init", "tini":
		return container.Main(argv[0], argv[1:])
	}
	if name, tool, ok := applet.Find(argv[0]); ok {
		return tool(newCall(name, argv[1:]))
	}
	return cli.Main(argv[1:], cli.Init{Container: container.Main, Plain: container.Plain})
}

// newCall is what this process gives to a tool of s6.
func newCall(name string, args []string) *applet.Call {
	return &applet.Call{
		Name: name, Args: args, Env: os.Environ(), In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Dial: func() (applet.Supervisor, error) {
			cl, err := cli.Dial()
			if err != nil {
				return nil, err // not a nil client in an interface
			}
			return cl, nil
		},
	}
}
