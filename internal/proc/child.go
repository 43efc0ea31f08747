package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// Child is a process that a command-line program has started and waits for. PID 1 must not use it, because its Table would reap
// the process.
type Child struct{ pid int }

// StartChild starts a process. spec.Files must have at least three descriptors. With spec.DiesWithStarter the kernel kills the
// process when the calling thread ends, so the caller must stay locked to its thread. The error is a *SpawnError.
func StartChild(spec Spec) (*Child, error) {
	t := &Table{owned: make(map[int]uint64), runs: make(map[uint64]*run), forkers: make(map[int]bool), slowServices: make(map[string]time.Time)}
	pid, err := t.Spawn(spec)
	if err != nil {
		return nil, err
	}
	return &Child{pid}, nil
}

// Signal sends a signal to the process. Do not call it after Wait: the PID may then belong to another process.
func (c *Child) Signal(s syscall.Signal) error {
	if err := unix.Kill(c.pid, s); err != nil {
		return fmt.Errorf("cannot signal process %d: %w", c.pid, err)
	}
	return nil
}

// Wait blocks until the process has ended, reaps it, and returns how it ended.
func (c *Child) Wait() (Exit, error) {
	var status unix.WaitStatus
	if _, err := trust.Retry(func() (int, error) { return unix.Wait4(c.pid, &status, 0, nil) }); err != nil {
		return Exit{}, fmt.Errorf("cannot wait for process %d: %w", c.pid, err)
	}
	x := Exit{PID: c.pid, Code: status.ExitStatus()}
	if status.Signaled() {
		x.Code, x.Signal = -1, int(status.Signal())
	}
	return x, nil
}

// Run starts a process and waits for its end. If ctx ends first, Run kills the process and its process group, and returns as
// soon as they are dead. Programs with a Table must not call it.
func Run(ctx context.Context, spec Spec) (Exit, error) {
	c, err := StartChild(spec)
	if err != nil {
		return Exit{}, err
	}
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		_ = errors.Join(unix.Kill(-c.pid, unix.SIGKILL), c.Signal(unix.SIGKILL)) // the PID is valid until Wait reaps the process
	})
	_, _ = trust.Retry(func() (int, error) { return 0, unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
	if !stop() {
		<-killed
	}
	return c.Wait()
}

// Output runs a program without input. It replaces the first three of spec.Files. It returns up to maxBytes of the standard
// output (out) and of the standard error (errs), and drops the rest. Both go to memory and not to a pipe, so the program never
// blocks while it writes.
func Output(ctx context.Context, spec Spec, maxBytes int64) (out, errs []byte, x Exit, err error) {
	spec.Files = append(make([]*os.File, 3), spec.Files[min(3, len(spec.Files)):]...)
	if spec.Files[0], err = os.Open(os.DevNull); err != nil {
		return nil, nil, x, err
	}
	defer spec.Files[0].Close()
	for i := range spec.Files[1:3] {
		fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, nil, x, err
		}
		spec.Files[1+i] = os.NewFile(uintptr(fd), "output")
		defer spec.Files[1+i].Close()
	}
	x, err = Run(ctx, spec)
	out, _ = io.ReadAll(io.NewSectionReader(spec.Files[1], 0, maxBytes))
	errs, _ = io.ReadAll(io.NewSectionReader(spec.Files[2], 0, maxBytes))
	return out, errs, x, err
}

// SetEnv returns a copy of an environment with the given variables set. New variables are appended, sorted by name.
func SetEnv(env []string, set map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := set[name]
		return replaced
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		out = append(out, name+"="+set[name])
	}
	return out
}

// Getenv returns the value of a variable in an environment, or "". If it is defined several times, the last definition
// counts.
func Getenv(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}
