// Command summary runs go test several times and says at the end what all of them did. `make test` is one call of it.
//
// Each argument holds the flags and packages of one go test, separated by spaces. The calls run one after the other. A call runs even
// if an earlier one has failed. Each package is reported in one line when it ends, and the output of a failed test is printed. At the
// end come the numbers of tests that passed, were skipped (by reason) and failed (by name), subtests included. The exit code is 0 if
// nothing failed, 130 after a signal, and otherwise 1.
//
// With -again N, up to N tests that failed are run once more, alone. Most tests here drive real processes, and a busy machine
// stops them for seconds. A test that passes then is named as unsteady, with its output, and is not counted as failed. Nothing is
// run again if more than N failed, or if anything did not build, panicked, died, or had a data race. Nor is anything run again after a
// failure whose message begins with "serious: ", such as two gateways of one profile: one chance in two is a fault too.
//
// A signal is passed on to the go test that runs and its tests; no other begins, and the summary of what has ended comes all the
// same. One goroutine a call, which ends with it, does that.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/internal/testkit"
)

func main() {
	again := flag.Int("again", 0, "run up to `N` failed tests once more, alone")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, `usage: summary [-again N] [--] "WORDS OF ONE GO TEST" ...`)
		os.Exit(2)
	}
	signals := make(chan os.Signal, 4)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) { // as nohup has it
			signal.Notify(signals, sig)
		}
	}
	os.Exit(run(flag.Args(), *again, os.Stdout, signals))
}

// run makes the calls, writes what they bring to out, and returns the exit code.
func run(calls []string, again int, out io.Writer, signals <-chan os.Signal) int {
	begin := time.Now()
	s := &summary{out: out}
	if built, err := os.MkdirTemp("/var/tmp", "hinit-built-"); err == nil { // else each builds for itself
		defer os.RemoveAll(built) // a temporary directory
		_ = errors.Join(os.Chmod(built, 0o755), os.Setenv(testkit.BuiltVar, built))
	}
	var interrupted atomic.Bool
	for _, call := range calls {
		if interrupted.Load() {
			break
		}
		fmt.Fprintln(out, "go test", call)
		if err := s.call(strings.Fields(call), signals, &interrupted); err != nil && !interrupted.Load() {
			s.broken = append(s.broken, fmt.Sprintf("go test %s: %v", call, err))
		}
	}
	if !interrupted.Load() && len(s.broken) == 0 {
		s.again(again, signals, &interrupted)
	}
	s.tell(time.Since(begin), interrupted.Load())
	switch {
	case interrupted.Load():
		return 128 + int(syscall.SIGINT)
	case s.bad():
		return 1
	}
	return 0
}

// call runs one go test to its end. It returns an error only if go test failed and no package has said why.
func (s *summary) call(args []string, signals <-chan os.Signal, interrupted *atomic.Bool) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	if slices.Contains(args, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // the race detector is C
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that who signals this program alone ends the tests too, and all of them once
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		for {
			select {
			case sig := <-signals:
				interrupted.Store(true)
				_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal)) // it may have ended
			case <-done:
				return
			}
		}
	}()
	known := len(s.failed)
	s.words = args
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n') // a test may write a long one
		if len(line) > 0 {
			s.line(line)
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	close(done)
	<-passed
	s.unfinished()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 && len(s.failed) > known {
		return nil
	}
	return err
}
