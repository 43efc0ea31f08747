// Command agent is a small agent with profiles. Towards its supervisor it behaves as the Hermes agent does. It is the agent
// of the demo and of the tests, and the reference for other agents. README.md lists what a supervisor demands of an agent,
// and the code shows a way to meet these demands.
//
// The program decides nothing about supervision. It owns its profiles' files and, as "gateway run", one long-lived process.
// The main goroutine does all the work. Other goroutines exist only in the packages gateway and worker, in the interactive
// prompt and in the dashboard.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"hinit/examples/agent/internal/helper"
	"hinit/examples/agent/internal/home"
	"hinit/examples/agent/internal/worker"
)

// Exit codes of commands. Package gateway has the codes of a gateway.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitConfig = 78 // Another start would fail in the same way, so don't start again.
)

// A call is one run of the program. The global options are already removed from its arguments.
type call struct {
	args    []string // Words after the name of the command.
	environ []string // Environment of the process as received.
	home    home.Home
	stdin   *os.File
	stdout  *os.File
	stderr  io.Writer
}

type command struct {
	name    string
	summary string
	usage   string
	noHome  bool // Whether the command also works without a home.
	run     func(*call) int
}

func commands() []command {
	return []command{
		{"chat", "talk to the agent", "chat [-q TEXT]", false, cmdChat},
		{"gateway", "run or inspect the gateway of a profile", gatewayUsage, false, cmdGateway},
		{"profile", "create, delete and select profiles", profileUsage, false, cmdProfile},
		{"config", "read and write config.yaml", configUsage, false, cmdConfig},
		{"dashboard", "serve the web dashboard", dashboardUsage, false, cmdDashboard},
		{"terminal", "run commands in the profile's sandbox", terminalUsage, false, cmdTerminal},
		{"login", "log in to a provider", "login", true, cmdLogin},
		{"notify", "tell the supervisor something, as systemd-notify does", notifyUsage, true, cmdNotify},
		{"dump", "print version and build information", "dump", true, cmdDump},
		{"agent-info", "print what this process was given by whoever started it", "agent-info [--json]", true, cmdInfo},
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == helper.Command {
		os.Exit(helper.Main(os.Args[2:]))
	}
	os.Exit(run())
}

func run() int {
	c := &call{environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	profile, words, err := cutProfileOption(os.Args[1:])
	if err != nil {
		return c.fail(exitUsage, err)
	}
	name := ""
	if words = cutWorkerOptions(words); len(words) > 0 {
		name, c.args = words[0], words[1:]
	}
	cmd, err := findCommand(name, c)
	if err != nil {
		return c.fail(exitUsage, err)
	}
	// Ignore the name, which the dispatcher also passes for the default profile.
	if profile == home.DefaultProfile && os.Getenv(worker.TaskVar) != "" {
		profile = ""
	}
	c.home, err = home.Resolve(os.Getenv, profile)
	if err != nil && !(cmd.noHome && errors.Is(err, home.ErrNoHome)) {
		return c.fail(exitFailed, err)
	}
	if c.home.SelectionNotice != "" {
		fmt.Fprintln(c.stderr, "Warning:", c.home.SelectionNotice)
	}
	if c.home.Dir != "" { // Programs that this process starts must work in the same home.
		if err := os.Setenv("HERMES_HOME", c.home.Dir); err != nil {
			return c.fail(exitFailed, err)
		}
	}
	if cmd.usage != "" && wantsHelp(c.args) {
		fmt.Fprintf(c.stdout, "usage: %s\n\n%s\n", cmd.usage, cmd.summary)
		return exitOK
	}
	return cmd.run(c)
}

// findCommand finds the command with the given name. Without a name, the command is the prompt on a terminal, and otherwise the
// help.
func findCommand(name string, c *call) (command, error) {
	switch name {
	case "", "--tui":
		if isTerminal(c.stdin) && isTerminal(c.stdout) {
			return command{run: cmdPrompt}, nil
		}
		return command{run: cmdHelp, noHome: true}, nil
	case "help", "--help", "-h":
		return command{run: cmdHelp, noHome: true}, nil
	case "version", "--version", "-V":
		return command{run: cmdVersion, noHome: true}, nil
	}
	for _, cmd := range commands() {
		if cmd.name == name {
			return cmd, nil
		}
	}
	return command{}, fmt.Errorf("unknown command '%s'; see --help", name)
}

// fail prints an error in the form that all commands use, and returns the exit code.
func (c *call) fail(code int, err error) int {
	fmt.Fprintln(c.stderr, "Error:", err)
	return code
}
