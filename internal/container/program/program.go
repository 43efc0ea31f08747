// Package program starts the boot program, a helper process that works on the data volume, and receives its messages (see
// [boot.Job]).
//
// When [Program.Receive] returns, the program has reported that it is done, or is being terminated. For each program, the package
// owns a goroutine that waits until the program exits.
package program

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

// grace is the time between SIGTERM and SIGKILL when a boot program is stopped at the end of the container.
const grace = 100 * time.Millisecond

// Loop is the part of a [supervisor.Loop] that this package uses.
type Loop interface {
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Post(e supervisor.Event)
	supervisor.TaskLoop
}

// Program is a running boot program. [Program.Answer] may be called from any goroutine.
type Program struct {
	loop  Loop
	name  string
	path  string
	input *os.File

	mu     sync.Mutex
	output *os.File
}

// Start starts the boot program, which is in the same directory as this program, and sends it a job. name is the prefix of the
// unit's name in the supervisor. The rest of that name is random, because the supervisor forgets a program only some time after
// it has exited. The caller must call [Program.Receive].
func Start(ctx context.Context, loop Loop, name string, job boot.Job) (*Program, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the boot program: %w", err)
	}
	p := &Program{loop: loop, name: fmt.Sprintf("%s/%x", name, rand.Uint64()), path: filepath.Join(filepath.Dir(self), boot.Program)}
	stdin, output, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	input, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a pipe: %w", err), stdin.Close(), output.Close())
	}
	p.input, p.output = input, output
	// Wait for the supervisor even if ctx ends, because the supervisor needs the open files.
	err = loop.Register(context.WithoutCancel(ctx), supervisor.Unit{
		Name: p.name, Kind: supervisor.KindCheck, StdOverrides: [3]*os.File{stdin, stdout, os.Stderr},
		Policy: supervisor.Policy{SingleRun: true, StopSignal: int(unix.SIGTERM), Grace: grace},
		Spec:   proc.Spec{Path: p.path, Argv: []string{boot.ProgramName}, Env: os.Environ(), Dir: "/"},
	}, supervisor.WantUp)
	_, _ = stdin.Close(), stdout.Close() // the program's process has its own copies
	if err != nil {
		p.close()
		return nil, err
	}
	p.write(job)
	return p, nil
}

func (p *Program) close() { _, _ = p.output.Close(), p.input.Close() }

// Answer sends an answer to the program. If the program has exited, Answer does nothing.
func (p *Program) Answer(a boot.Answer) { p.write(a) }

func (p *Program) write(document any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = json.NewEncoder(p.output).Encode(document) // errors are ignored: if the program has exited, Receive reports the exit
}

// Receive calls take with each message from the program. It blocks until the program reports that it is done or has failed. If
// take returns an error or ctx ends, Receive stops the program and returns that error or the cause of ctx.
func (p *Program) Receive(ctx context.Context, take func(boot.Message) error) (err error) {
	stop := context.AfterFunc(ctx, func() { _ = p.input.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		p.close() // stops the program if it is still alive
		guard.Go("waiting for the end of the boot program", func() {
			if err == nil {
				_, _ = supervisor.AwaitTask(ctx, p.loop, p.name)
			}
			p.loop.Post(supervisor.Evict{Names: []string{p.name}, Reason: "its work is over"})
		})
	}()
	for heard := json.NewDecoder(p.input); err == nil; {
		var m boot.Message
		switch fault := heard.Decode(&m); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case fault != nil && p.loop.Snapshot().Stopping:
			return fmt.Errorf("%w: %w", ErrEnded, supervisor.ErrStopping)
		case fault != nil:
			return fmt.Errorf("%w: %q cannot be started, or has ended early: %w; install the one of this version beside hinit", ErrEnded, p.path, fault)
		case m.Done == nil:
			err = take(m)
		case m.Done.Error != "":
			return errors.New(m.Done.Error)
		default:
			return nil
		}
	}
	return err
}

// ErrEnded means that the program exited before its work was done. The error of [Program.Receive] wraps ErrEnded.
var ErrEnded = errors.New("the boot program has failed")
