package health

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/supervisor"
)

const (
	// checkOutput is the maximum number of bytes that hinit reads from a check. SIGPIPE ends a check that writes more.
	checkOutput = 64 << 10
	// checkGrace is the time between SIGTERM and SIGKILL for processes that a check leaves behind.
	checkGrace = 100 * time.Millisecond
)

// runCheck implements [probe.Options].Run: it runs an exec check once, as a task of the supervisor. It returns the exit code and
// the last line of the output. When ctx ends, all processes of the check are killed.
func (h *Health) runCheck(ctx context.Context, name string, spec proc.Spec) (code int, last string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, "", fmt.Errorf("cannot make a pipe: %w", err)
	}
	read := make(chan string, 1)
	guard.Go("reading the output of a check", func() { read <- lastLine(r) })
	defer r.Close()
	// The unit doesn't wait for the boot, because the service that it checks is already running.
	// Wait for the supervisor even if ctx ends. The supervisor needs the open pipe. If it starts the check late, the code
	// below must still end the check.
	err = h.o.Loop.Register(context.WithoutCancel(ctx), supervisor.Unit{
		Name: name, Kind: supervisor.KindCheck, Spec: spec, StdOverrides: [3]*os.File{1: w, 2: w},
		Policy: supervisor.Policy{SingleRun: true, StopSignal: int(unix.SIGTERM), Grace: checkGrace},
	}, supervisor.WantUp)
	_ = w.Close() // the check's process has its own copy of the descriptor
	if err != nil {
		return 0, "", err
	}
	code, err = supervisor.AwaitTask(ctx, h.o.Loop, name)
	if ctx.Err() != nil {
		h.o.Loop.Post(supervisor.Evict{Names: []string{name}, Reason: "its time is over"})
	} else {
		h.o.Loop.Post(supervisor.Remove{Name: name})
	}
	if err != nil {
		return 0, "", err
	}
	_ = r.SetReadDeadline(time.Now().Add(checkGrace)) // a process that the check has left behind may hold the pipe open
	return code, <-read, nil
}

// lastLine reads up to checkOutput bytes, and returns the last non-empty line.
func lastLine(r *os.File) string {
	data, _ := io.ReadAll(io.LimitReader(r, checkOutput)) // after a deadline, the bytes read so far are used
	_ = r.Close()
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}
