package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	shell "hinit/examples/agent/internal/terminal"
)

const terminalUsage = "terminal [--task T] [--force-remove] < COMMANDS"

// terminalCommand is one command of the terminal tool.
type terminalCommand struct {
	Command string  `json:"command"`
	Stdin   string  `json:"stdin"`
	Timeout float64 `json:"timeout"` // Time limit in seconds; 0 means 180.
}

// cmdTerminal is the terminal tool of a session. It reads one JSON object a line, runs the command in the profile's sandbox,
// and prints the result on one line. At the end of its input it removes the sandbox in the same way as the real agent.
func cmdTerminal(c *call) int {
	flags := flag.NewFlagSet("terminal", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	task := flags.String("task", "default", "")
	force := flags.Bool("force-remove", false, "")
	if err := flags.Parse(c.args); err != nil {
		return c.fail(exitUsage, err)
	}
	o, err := shell.FromEnv(os.Getenv, c.home.Dir, c.home.Profile)
	if err != nil {
		return c.fail(exitFailed, err)
	}
	o.Task = *task
	t, err := shell.New(o)
	if err != nil {
		return c.fail(exitFailed, fmt.Errorf("failed to execute command: %w", err))
	}
	defer func() { t.Close(*force) }()
	out := json.NewEncoder(c.stdout)
	lines := bufio.NewScanner(c.stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var next terminalCommand
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return c.fail(exitUsage, err)
		}
		limit := 180 * time.Second
		if next.Timeout > 0 {
			limit = time.Duration(next.Timeout * float64(time.Second))
		}
		r := t.Exec(next.Command, next.Stdin, limit)
		if err := out.Encode(struct {
			shell.Result
			Container string `json:"container"`
		}{r, t.Container()}); err != nil {
			return exitFailed
		}
	}
	return exitOK
}
