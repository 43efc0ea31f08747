// Command summary runs go test several times, and prints at the end what all of them did. `make test` calls it.
//
// Each argument has the flags and packages of one go test, separated by spaces. The calls run one after the other, even if one
// fails. The argument "beside" begins a second row of calls, which runs at the same time as the first row. While the tests of one
// row mostly wait, the other row uses the processors. With -programs, summary builds the programs that tests start, and begins
// the other rows only after that. Otherwise two calls would compile the same packages at the same time.
//
// When a package ends, summary prints one line about it, and the output of its failed tests. When a call ends, it prints the time
// and the processor time of the call. At the end it prints the longest tests. Then follow the numbers of tests that passed, were
// skipped (by reason) and failed (by name), subtests included. The exit code is 0 if all passed, 130 after a signal, and
// otherwise 1.
//
// With -again N, up to N tests that failed are run once more, alone. Most tests here start real processes, which a busy machine
// stops for seconds. If such a test passes then, it is listed as unsteady, with its output, and not counted as failed. No test is
// run again if more than N failed, or if a package did not build, panicked, died, or had a data race. The same holds after a
// failure whose message begins with "serious: ", such as two gateways of one profile. A fault that appears every second time is
// still a fault.
//
// After a signal, summary passes the signal on to each running go test and its tests, starts no other, and prints its results so
// far. One goroutine runs each row. Another one for each call passes signals on, and ends with the call.
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
	"sync"
	"syscall"
	"time"

	"hinit/internal/testkit"
)

func main() {
	again := flag.Int("again", 0, "run up to `N` failed tests once more, alone")
	programs := flag.Bool("programs", false, "build the programs that tests drive before the second row")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, `usage: summary [-again N] [-programs] [--] "WORDS OF ONE GO TEST" ... [beside "WORDS OF ONE GO TEST" ...] ...`)
		os.Exit(2)
	}
	signals := make(chan os.Signal, 4)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) { // A signal that was ignored at the start, as under nohup, stays ignored.
			signal.Notify(signals, sig)
		}
	}
	r := &runner{out: os.Stdout, again: *again, programs: *programs}
	os.Exit(r.run(flag.Args(), signals))
}

// runner runs the calls of go test.
type runner struct {
	out      io.Writer
	again    int
	programs bool

	mu          sync.Mutex  // Held while a call handles a line, so that a test's output stays together.
	running     []*exec.Cmd // Running calls.
	interrupted bool
}

// splitRows splits the arguments into rows of calls.
func splitRows(words []string) [][]string {
	var list [][]string
	for {
		i := slices.Index(words, "beside")
		if i < 0 {
			return append(list, words)
		}
		list, words = append(list, words[:i]), words[i+1:]
	}
}

// run runs all calls, writes their results to out, and returns the exit code.
func (r *runner) run(words []string, signals <-chan os.Signal) int {
	begin := time.Now()
	over, passed := make(chan struct{}), make(chan struct{})
	go func() { defer close(passed); r.forwardSignals(signals, over) }()
	s := &summary{out: r.out}
	build := func() error { return nil }
	// Ignore the error: each call then builds the programs for itself.
	if built, err := os.MkdirTemp("/var/tmp", "hinit-built-"); err == nil {
		defer os.RemoveAll(built) // ignore the error: it is a temporary directory
		_ = errors.Join(os.Chmod(built, 0o755), os.Setenv(testkit.BuiltVar, built))
		if r.programs {
			build = testkit.LockPrograms(built)
		}
	}
	all := splitRows(words)
	parts := make([][]*summary, len(all))
	var each sync.WaitGroup
	for i, row := range all {
		if i == 1 {
			if err := build(); err != nil {
				s.broken = append(s.broken, err.Error())
				break
			}
		}
		each.Go(func() {
			for _, call := range row {
				part := &summary{out: r.out}
				parts[i] = append(parts[i], part)
				if err := r.runCall(part, strings.Fields(call)); err != nil {
					part.broken = append(part.broken, fmt.Sprintf("go test %s: %v", call, err))
				}
			}
		})
	}
	each.Wait()
	for _, part := range slices.Concat(parts...) {
		s.merge(part)
	}
	if len(s.broken) == 0 {
		r.runAgain(s)
	}
	close(over)
	<-passed
	s.print(time.Since(begin), r.interrupted)
	switch {
	case r.interrupted:
		return 128 + int(syscall.SIGINT)
	case s.hasFailures():
		return 1
	}
	return 0
}

// forwardSignals passes signals on to the running calls until over is closed. After a signal, no other call starts.
func (r *runner) forwardSignals(signals <-chan os.Signal, over <-chan struct{}) {
	for {
		select {
		case sig := <-signals:
			r.mu.Lock()
			r.interrupted = true
			for _, cmd := range r.running {
				_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal)) // ignore the error: the process group may have ended
			}
			r.mu.Unlock()
		case <-over:
			return
		}
	}
}

// start starts a go test, unless a signal has arrived.
func (r *runner) start(cmd *exec.Cmd, args []string) (started bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.interrupted {
		return false, nil
	}
	fmt.Fprintln(r.out, "go test", strings.Join(args, " "))
	if err := cmd.Start(); err != nil {
		return false, err
	}
	r.running = append(r.running, cmd)
	return true, nil
}

// runCall runs one go test to its end. It returns an error only if go test failed and no failed test or package explains that.
func (r *runner) runCall(s *summary, args []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	if slices.Contains(args, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // The race detector needs cgo.
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // A signal must reach the tests only through forwardSignals.
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if started, err := r.start(cmd, args); !started {
		return err
	}
	begin := time.Now()
	s.words = args
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n') // A test may write long lines.
		r.mu.Lock()
		if len(line) > 0 {
			s.addLine(line)
		}
		r.mu.Unlock()
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(other *exec.Cmd) bool { return other == cmd })
	s.failUnendedPackages()
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() // Processor time of the call, including the compiler and the tests.
	fmt.Fprintf(r.out, "%v, and %v of the processors: go test %.60s\n", time.Since(begin).Round(time.Second), used.Round(time.Second), strings.Join(args, " "))
	exit, is := errors.AsType[*exec.ExitError](err)
	if r.interrupted || is && exit.ExitCode() > 0 && len(s.failed) > 0 {
		return nil
	}
	return err
}
