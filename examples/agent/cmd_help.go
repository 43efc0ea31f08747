package main

import (
	"fmt"
	"strings"
)

func cmdHelp(c *call) int {
	names := make([]string, len(commands()))
	for i, cmd := range commands() {
		names[i] = cmd.name
	}
	fmt.Fprintf(c.stdout, "usage: hermes [-p PROFILE] {%s} ...\n\nA small example agent with profiles.\n\ncommands:\n", strings.Join(names, ","))
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

// cmdLogin implements the command login, which has the same name as a program in most images, login(1).
func cmdLogin(c *call) int {
	fmt.Fprintln(c.stdout, "hermes login: this agent has no accounts")
	return exitOK
}
