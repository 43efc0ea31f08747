package script_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

// patience is the longest wait, on a machine that is busy with other things.
const patience = 3 * time.Minute

// containerKey is the key under which a scenario keeps its container.
type containerKey struct{}

// container is the init of one scenario, with the record of earlier inits on the same volume.
type container struct {
	mode, work string

	cmd      *exec.Cmd
	initPID  int           // PID of the init in this process's namespace.
	ended    chan struct{} // Closed when the namespace has ended and its output is written.
	exitCode int
	terminal *terminal     // Terminal of an init with -tty.
	stalled  chan struct{} // With -stall, the output is not read until this is closed.
	helpers  map[string]*helper
}

// stdio describes the standard descriptors of an init.
type stdio struct {
	tty     bool   // Whether the init has a terminal.
	foreign bool   // Whether the terminal is not the init's controlling terminal.
	file    string // Standard input; "" for an empty one.
	stall   bool
}

// unstall begins to read the init's output.
func (c *container) unstall() {
	if c.stalled != nil {
		close(c.stalled)
		c.stalled = nil
	}
}

// errHopeless marks an error that no further waiting can cure, so that poll returns at once.
var errHopeless = errors.New("the init has ended")

// poll tries until the condition holds, and returns its last error after the deadline.
func poll(deadline time.Duration, condition func() error) error {
	begin := time.Now()
	for {
		looked := time.Now()
		err := condition()
		if err == nil || errors.Is(err, errHopeless) {
			return err
		}
		if looked.Sub(begin) > deadline {
			return fmt.Errorf("not within %v: %w", deadline, err)
		}
		testkit.PausePoll(begin, looked)
	}
}

// start runs an init. Its output goes to container.out and container.err.
func (c *container) start(o stageConfig, env []string, in stdio) error {
	if c.running() {
		return errors.New("the init runs already")
	}
	o.Mode, o.Leftovers, o.TTY = c.mode, filepath.Join(c.work, "left"), in.tty && !in.foreign
	cmd := &exec.Cmd{Env: env, Dir: c.work}
	var streams sync.WaitGroup
	var closeAfterStart []*os.File
	if in.tty {
		t, slave, err := openTerminal(filepath.Join(c.work, "container.tty"))
		if err != nil {
			return err
		}
		c.terminal = t
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setctty: !in.foreign, Ctty: 0}
		closeAfterStart = append(closeAfterStart, slave)
		streams.Go(t.record)
	} else {
		if in.file != "" {
			f, err := os.Open(in.file)
			if err != nil {
				return err
			}
			cmd.Stdin, closeAfterStart = f, append(closeAfterStart, f)
		}
		c.stalled = nil
		if in.stall {
			c.stalled = make(chan struct{})
		}
		for name, stream := range map[string]*io.Writer{"container.out": &cmd.Stdout, "container.err": &cmd.Stderr} {
			w, err := copyStreamTo(filepath.Join(c.work, name), c.stalled, &streams)
			if err != nil {
				return err
			}
			*stream, closeAfterStart = w, append(closeAfterStart, w)
		}
	}
	started := make(chan error, 1)
	c.ended = make(chan struct{})
	ended := c.ended
	go func() {
		// The namespace lives as long as this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := startStage(cmd, o)
		for _, f := range closeAfterStart {
			_ = f.Close() // The stage has its own copies of these files.
		}
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // Only the exit code matters.
		c.exitCode = cmd.ProcessState.ExitCode()
		if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
			c.exitCode = 128 + int(s.Signal())
		}
		streams.Wait()
	}()
	if err := <-started; err != nil {
		return err
	}
	c.cmd, c.initPID = cmd, cmd.Process.Pid
	return poll(patience, func() error { return c.findInit(o) })
}

// findInit waits until the stage has executed or started the init.
func (c *container) findInit(o stageConfig) error {
	if !c.running() {
		return nil // An error means that the init has already ended.
	}
	candidates := []process{{pid: c.cmd.Process.Pid}}
	if c.mode == subreaper {
		candidates = descendants(c.cmd.Process.Pid)
	}
	for _, p := range candidates {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid)); err == nil && filepath.Base(exe) == filepath.Base(o.Program) {
			c.initPID = p.pid
			return nil
		}
		if c.mode == subreaper { // The child does not exist yet, or can't be read.
			break
		}
	}
	return errors.New("the stage has not started the init")
}

// copyStreamTo returns a pipe whose output is copied to a file, after stalled is closed.
func copyStreamTo(name string, stalled <-chan struct{}, streams *sync.WaitGroup) (*os.File, error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	streams.Go(func() {
		if stalled != nil {
			<-stalled
		}
		_, _ = io.Copy(file, r) // Copy returns when every writer has closed the pipe.
		_ = errors.Join(file.Close(), r.Close())
	})
	return w, nil
}

func (c *container) running() bool {
	if c.cmd == nil {
		return false
	}
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// withoutClients removes hinit's clients from a list of processes, because they end soon.
func withoutClients(list string) string {
	var rest []string
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if client := len(f) > 2 && filepath.Base(f[1]) == "hinit" && f[2] != "init"; !client && len(f) > 1 {
			rest = append(rest, strings.TrimSpace(line))
		}
	}
	return strings.Join(rest, "\n")
}

// foreignPrefix matches log lines of the init without a prefix of the contract.
var foreignPrefix = regexp.MustCompile(`(?m)^(hinit|fatal): .*$`)

// wait returns the init's exit code, and reports processes that outlived it.
func (c *container) wait() (int, error) {
	if c.cmd == nil {
		return 0, errors.New("no init was started")
	}
	select {
	case <-c.ended:
	case <-time.After(patience):
		return 0, fmt.Errorf("the init has not ended within %v; alive: %v", patience, c.commands())
	}
	output, err := os.ReadFile(filepath.Join(c.work, "container.err"))
	if line := foreignPrefix.Find(output); err == nil && line != nil {
		return c.exitCode, fmt.Errorf("the init has another prefix than [hinit] for a line of its own: %s", line)
	}
	left, err := os.ReadFile(filepath.Join(c.work, "left"))
	if left := withoutClients(string(left)); err == nil && left != "" {
		return c.exitCode, fmt.Errorf("the init has ended but left alive:\n%s", left)
	}
	return c.exitCode, nil
}

// destroy ends all processes, and waits until they are gone, so that a scenario leaves none.
func (c *container) destroy() {
	c.unstall()
	for _, h := range c.helpers {
		h.kill()
	}
	if c.running() {
		_ = c.cmd.Process.Kill() // The namespace ends with PID 1.
		select {
		case <-c.ended:
		case <-time.After(patience):
		}
	}
	if c.terminal != nil {
		_ = c.terminal.master.Close()
	}
}

// processes lists all processes in the namespace except for the stage and the init.
func (c *container) processes() []process {
	if !c.running() {
		return nil
	}
	return slices.DeleteFunc(descendants(c.cmd.Process.Pid), func(p process) bool { return p.pid == c.initPID })
}

func (c *container) commands() []string {
	var list []string
	for _, p := range c.processes() {
		list = append(list, fmt.Sprintf("%d %c %s", p.innerPID(), p.state, p.command()))
	}
	return list
}

// hostPID converts a PID of the namespace to a PID outside.
func (c *container) hostPID(inner int) (int, error) {
	for _, p := range c.processes() {
		if p.innerPID() == inner {
			return p.pid, nil
		}
	}
	return 0, fmt.Errorf("there is no process %d in the container", inner)
}

func (c *container) signalInit(sig unix.Signal) error {
	if !c.running() {
		return errors.New("the init does not run")
	}
	return unix.Kill(c.initPID, sig)
}

func (c *container) client() *dial.Client {
	return dial.New(filepath.Join(c.work, "run", "control.sock"))
}

func (c *container) service(name string) (client.Service, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.client().Service(ctx, name)
}

// lastWords describes the container of a failed scenario.
func (c *container) lastWords() string {
	var b strings.Builder
	for _, name := range []string{"container.out", "container.err", "container.tty"} {
		text, err := os.ReadFile(filepath.Join(c.work, name))
		if err != nil || len(text) == 0 {
			continue
		}
		const most = 2500
		if len(text) > most {
			text = text[len(text)-most:]
		}
		fmt.Fprintf(&b, "--- %s ---\n%s\n", name, text)
	}
	return b.String()
}
