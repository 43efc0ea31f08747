package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"hinit/examples/agent/internal/worker"
)

func cmdChat(c *call) int {
	flags := flag.NewFlagSet("chat", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	query := flags.String("q", "", "")
	if err := flags.Parse(c.args); err != nil {
		return c.fail(exitUsage, err)
	}
	if flags.NArg() > 0 {
		return c.fail(exitUsage, fmt.Errorf("chat takes no word '%s'; ask with -q TEXT", flags.Arg(0)))
	}
	if *query == "" {
		return cmdPrompt(c)
	}
	if os.Getenv(worker.TaskVar) != "" {
		return worker.Run(c.stdout, c.stderr)
	}
	fmt.Fprintln(c.stdout, echoAnswer(*query))
	return exitOK
}

func echoAnswer(text string) string { return "echo: " + text }

// cmdPrompt answers line by line until end of input, the word "exit" or Ctrl-C.
func cmdPrompt(c *call) int {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	defer signal.Stop(interrupts)

	// If Ctrl-C ends the prompt, this goroutine is still blocked in its read. The goroutine ends with the process.
	lines := make(chan string)
	ended := make(chan error, 1)
	go func() {
		scanner := bufio.NewScanner(c.stdin)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		ended <- scanner.Err()
	}()
	for {
		fmt.Fprint(c.stdout, "> ")
		select {
		case <-interrupts:
			fmt.Fprintln(c.stdout, "\nbye")
			return exitOK
		case err := <-ended:
			fmt.Fprintln(c.stdout)
			if err != nil {
				return c.fail(exitFailed, fmt.Errorf("cannot read the input: %w", err))
			}
			return exitOK
		case line := <-lines:
			if strings.TrimSpace(line) == "exit" {
				return exitOK
			}
			fmt.Fprintln(c.stdout, echoAnswer(line))
		}
	}
}
