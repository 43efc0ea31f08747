package container

import (
	"bytes"
	"context"
	"errors"
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
func (c *container) runCheck(ctx context.Context, name string, spec proc.Spec) (code int, last string, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return 0, "", fmt.Errorf("cannot make a pipe: %w", err)
	}
	_ = unix.SetNonblock(p[0], true) // it fails for no descriptor of a pipe
	r, w := os.NewFile(uintptr(p[0]), name), os.NewFile(uintptr(p[1]), name)
	read := make(chan string, 1)
	guard.Go("reading the output of a check", func() { read <- lastLine(r) })
	defer r.Close()
	err = c.loop.Register(ctx, checkUnit(name, spec, w), supervisor.WantUp)
	_ = w.Close() // the process has its own
	if err != nil {
		return 0, "", err
	}
	exit, err := c.awaitCheck(ctx, name)
	if err != nil {
		c.loop.Post(supervisor.Evict{Names: []string{name}, Reason: "its time is over"})
		return 0, "", err
	}
	c.loop.Post(supervisor.Remove{Name: name})
	_ = r.SetReadDeadline(time.Now().Add(checkGrace)) // somebody else may have the pipe
	last = <-read
	switch {
	case exit.Cause == supervisor.CauseSpawn:
		return 0, "", errors.New(exit.Error)
	case exit.Signal != 0:
		return 128 + exit.Signal, last, nil
	}
	return exit.Code, last, nil
}

// checkUnit is a look as the supervisor runs it. It waits for no boot: what it looks at runs already.
func checkUnit(name string, spec proc.Spec, output *os.File) supervisor.Unit {
	return supervisor.Unit{
		Name: name, Kind: supervisor.KindCheck, Spec: spec, Stdout: output, Stderr: output,
		Policy: supervisor.Policy{Task: true, StopSignal: int(unix.SIGTERM), Grace: checkGrace},
	}
}

func (c *container) awaitCheck(ctx context.Context, name string) (*supervisor.Exit, error) {
	for {
		news := c.loop.News()
		v := c.loop.Snapshot().Find(name)
		switch {
		case v == nil:
			return nil, errors.New("the container is stopping")
		case v.State == supervisor.Down && v.LastExit != nil:
			return v.LastExit, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.loop.Ended():
			return nil, supervisor.ErrStopping
		}
	}
}

// lastLine reads to the end, or as much as is read of a check, and returns the last line that says something.
func lastLine(r *os.File) string {
	data, _ := io.ReadAll(io.LimitReader(r, checkOutput)) // what came before a deadline counts
	_ = r.Close()
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}
