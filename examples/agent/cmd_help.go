package main

import "fmt"

func cmdHelp(c *call) int {
	fmt.Fprint(c.stdout, "usage: hermes [-p PROFILE] COMMAND\n\nA small example agent with profiles.\n\ncommands:\n")
	for _, cmd := range commands() {
		fmt.Fprintf(c.stdout, "  %-11s %s\n", cmd.name, cmd.summary)
	}
	fmt.Fprint(c.stdout, `
options:
  -p, --profile PROFILE  work in the home of this profile
  --tui                  the interactive prompt, as without a command on a terminal
  --version, --help
`)
	return exitOK
}
