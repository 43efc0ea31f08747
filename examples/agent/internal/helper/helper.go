// Package helper makes the agent's misbehaving processes: children that outlive the gateway, leave its session or its
// environment, or become orphans. They run the agent's own binary, with the hidden command "agent-helper".
//
// The Start functions run in the gateway, and Main runs in the helper. The package owns no goroutines.
package helper

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Command is the hidden command with which the agent's binary becomes a helper.
const Command = "agent-helper"

// orphansPerParent is how many orphans one parent makes. More at once would disturb the machine, and fewer would take too long.
const orphansPerParent = 50

// orphanLifetime is how long an orphan lives. It outlives its parent, so that it is an orphan when it dies.
const orphanLifetime = 50 * time.Millisecond

// Sleeper is a helper process that only sleeps.
type Sleeper struct {
	Lifetime     time.Duration
	PIDFile      string // File to which the sleeper writes its pid; "": none.
	IgnoreTerm   bool
	DoubleFork   bool // Start the sleeper through an intermediate process, which exits at once.
	Setsid       bool // Start a new session.
	CleanEnv     bool // Start with an empty environment.
	ClosesOutput bool // Close the gateway's stdout and stderr.
}

// Start starts the sleeper. With DoubleFork it returns when the intermediate process has ended.
func (s Sleeper) Start() error {
	args := append([]string{"nap"}, s.sleepArgs()...)
	if !s.DoubleFork {
		cmd, err := helperCmd(args...)
		if err != nil {
			return err
		}
		s.configureCmd(cmd)
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("cannot start a helper: %w", err)
		}
		return cmd.Process.Release()
	}
	between, err := helperCmd(append(s.forkArgs(), s.sleepArgs()...)...)
	if err != nil {
		return err
	}
	s.applyStdio(between)
	if err := between.Run(); err != nil {
		return fmt.Errorf("cannot start a helper: %w", err)
	}
	return nil
}

// StartOrphans makes n orphans, which are processes whose parent ends before they do. It returns when all have been started.
func StartOrphans(n int) error {
	for n > 0 {
		cmd, err := helperCmd("orphans", strconv.Itoa(min(n, orphansPerParent)))
		if err != nil {
			return err
		}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("cannot make orphans: %w", err)
		}
		n -= orphansPerParent
	}
	return nil
}

// Main runs the helper and returns its exit code. args are the words after Command.
func Main(args []string) int {
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, Command+":", err)
		return 1
	}
	return 0
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("want nap, fork or orphans")
	}
	verb, args := args[0], args[1:]
	switch verb {
	case "nap", "fork":
		s, err := parseSleeper(verb, args)
		if err != nil {
			return err
		}
		if verb == "nap" {
			return s.sleep()
		}
		s.DoubleFork = false
		return s.Start()
	case "orphans":
		return startOrphanBatch(args)
	}
	return fmt.Errorf("no helper is called %q", verb)
}

func parseSleeper(verb string, args []string) (Sleeper, error) {
	var s Sleeper
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	flags.DurationVar(&s.Lifetime, "for", 0, "")
	flags.StringVar(&s.PIDFile, "pid-file", "", "")
	flags.BoolVar(&s.IgnoreTerm, "ignore-term", false, "")
	flags.BoolVar(&s.Setsid, "setsid", false, "")
	flags.BoolVar(&s.CleanEnv, "clean-env", false, "")
	return s, flags.Parse(args)
}

func (s Sleeper) sleepArgs() []string {
	args := []string{"-for", s.Lifetime.String()}
	if s.PIDFile != "" {
		args = append(args, "-pid-file", s.PIDFile)
	}
	if s.IgnoreTerm {
		args = append(args, "-ignore-term")
	}
	return args
}

func (s Sleeper) forkArgs() []string {
	args := []string{"fork"}
	if s.Setsid {
		args = append(args, "-setsid")
	}
	if s.CleanEnv {
		args = append(args, "-clean-env")
	}
	return args
}

func (s Sleeper) configureCmd(cmd *exec.Cmd) {
	s.applyStdio(cmd)
	if s.Setsid {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	if s.CleanEnv {
		cmd.Env = []string{}
	}
}

func (s Sleeper) applyStdio(cmd *exec.Cmd) {
	if !s.ClosesOutput {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
}

func (s Sleeper) sleep() error {
	terms := make(chan os.Signal, 1)
	if s.IgnoreTerm {
		signal.Notify(terms, syscall.SIGTERM)
	}
	if s.PIDFile != "" {
		if err := writePID(s.PIDFile); err != nil {
			return err
		}
	}
	<-time.After(s.Lifetime)
	return nil
}

// writePID writes the file atomically, so that a program that waits for the file never reads half a number.
func writePID(path string) error {
	temp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d", filepath.Base(path), os.Getpid()))
	if err := os.WriteFile(temp, fmt.Appendf(nil, "%d\n", os.Getpid()), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

func startOrphanBatch(args []string) error {
	if len(args) != 1 {
		return errors.New("orphans wants a number")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for range n {
		if err := (Sleeper{Lifetime: orphanLifetime, ClosesOutput: true}).Start(); err != nil {
			return err
		}
	}
	return nil
}

func helperCmd(args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the own binary: %w", err)
	}
	return exec.Command(self, append([]string{Command}, args...)...), nil
}
