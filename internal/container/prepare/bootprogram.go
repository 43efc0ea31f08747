package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// programGrace is the time between SIGTERM and SIGKILL for a boot program that is alive at the end of the container.
const programGrace = 100 * time.Millisecond

// programLoop is the part of a [supervisor.Loop] that a bootProgram needs. Tests replace it.
type programLoop interface {
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Post(e supervisor.Event)
	supervisor.TaskLoop
}

// bootProgram is a running boot program: a helper process that works on the data volume for PID 1 (see [boot.Job]). Any
// goroutine may call send. A goroutine waits for the end of the process.
type bootProgram struct {
	loop  programLoop
	name  string
	path  string
	input *os.File

	mu     sync.Mutex
	output *os.File
}

// startProgram starts the boot program in the directory of hinit, and sends it a job. The unit in the supervisor has the given
// name and a random suffix, because the unit of an earlier job may still exist. The caller must call receive.
func startProgram(ctx context.Context, loop programLoop, name string, job boot.Job) (*bootProgram, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the boot program: %w", err)
	}
	p := &bootProgram{loop: loop, name: fmt.Sprintf("%s/%x", name, rand.Uint64()), path: filepath.Join(filepath.Dir(self), boot.BootProgram)}
	stdin, output, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	input, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a pipe: %w", err), stdin.Close(), output.Close())
	}
	p.input, p.output = input, output
	// Wait for the supervisor even if ctx ends, because it still needs the open files.
	err = loop.Register(context.WithoutCancel(ctx), supervisor.Unit{
		Name: p.name, Kind: supervisor.KindCheck, StdOverrides: [3]*os.File{stdin, stdout, os.Stderr},
		Policy: supervisor.Policy{SingleRun: true, StopSignal: int(unix.SIGTERM), Grace: programGrace},
		Spec:   proc.Spec{Path: p.path, Argv: []string{boot.BootProgramName}, Env: os.Environ(), Dir: "/"},
	}, supervisor.WantUp)
	_, _ = stdin.Close(), stdout.Close()
	if err != nil {
		p.close()
		return nil, err
	}
	p.send(job)
	return p, nil
}

func (p *bootProgram) close() { _, _ = p.output.Close(), p.input.Close() }

// send sends a job or an answer to the program. It does nothing if the program has exited.
func (p *bootProgram) send(document any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = json.NewEncoder(p.output).Encode(document) // an error means that the program has exited, which receive reports
}

// receive calls handle with each message of the program. It blocks until the program reports its end or has failed. If handle
// returns an error or ctx ends, receive stops the program, and returns that error or the cause of ctx.
func (p *bootProgram) receive(ctx context.Context, handle func(boot.Message) error) (err error) {
	stop := context.AfterFunc(ctx, func() { _ = p.input.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		p.close() // if the program is still alive, close stops it
		guard.Go("waiting for the end of the boot program", func() {
			if err == nil {
				_, _ = supervisor.AwaitTask(ctx, p.loop, p.name)
			}
			p.loop.Post(supervisor.Evict{Names: []string{p.name}, Reason: "its work is over"})
		})
	}()
	for decoder := json.NewDecoder(p.input); err == nil; {
		var m boot.Message
		switch fault := decoder.Decode(&m); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case fault != nil && p.loop.Snapshot().Stopping:
			return fmt.Errorf("%w: %w", errProgramFailed, supervisor.ErrStopping)
		case fault != nil:
			return fmt.Errorf("%w: %q cannot be started, or has ended early: %w; install the one of this version beside hinit, or if it is there, raise the limits of processes and memory", errProgramFailed, p.path, fault)
		case m.Done == nil:
			err = handle(m)
		case m.Done.Error != "":
			return errors.New(m.Done.Error)
		default:
			return nil
		}
	}
	return err
}

var errProgramFailed = errors.New("the boot program has failed")
