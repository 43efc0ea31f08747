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
	// checkOutput is what is read of a check's output; what writes more is ended by SIGPIPE.
	checkOutput = 64 << 10
	// checkGrace is what a check leaves behind has between TERM and KILL.
	checkGrace = 100 * time.Millisecond
)

// runCheck runs one look of an exec check as a task of the supervisor: [probe.Options].Run. All of it is killed when ctx ends.
func (h *Health) runCheck(ctx context.Context, name string, spec proc.Spec) (code int, last string, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return 0, "", fmt.Errorf("cannot make a pipe: %w", err)
	}
	_ = unix.SetNonblock(p[0], true) // it fails for no descriptor of a pipe
	r, w := os.NewFile(uintptr(p[0]), name), os.NewFile(uintptr(p[1]), name)
	read := make(chan string, 1)
	guard.Go("reading the output of a check", func() { read <- lastLine(r) })
	defer r.Close()
	// The supervisor may be late, but what it was given must not be closed before it has it, nor be left running.
	err = h.o.Loop.Register(context.WithoutCancel(ctx), checkUnit(name, spec, w), supervisor.WantUp)
	_ = w.Close() // the process has its own
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
	_ = r.SetReadDeadline(time.Now().Add(checkGrace)) // somebody else may have the pipe
	return code, <-read, nil
}

// checkUnit is a look as the supervisor runs it. It waits for no boot: what it looks at runs already.
func checkUnit(name string, spec proc.Spec, output *os.File) supervisor.Unit {
	return supervisor.Unit{
		Name: name, Kind: supervisor.KindCheck, Spec: spec, Std: [3]*os.File{1: output, 2: output},
		Policy: supervisor.Policy{Task: true, StopSignal: int(unix.SIGTERM), Grace: checkGrace},
	}
}

// lastLine reads to the end, or as much as is read of a check, and returns the last line that says something.
func lastLine(r *os.File) string {
	data, _ := io.ReadAll(io.LimitReader(r, checkOutput)) // what came before a deadline counts
	_ = r.Close()
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}
