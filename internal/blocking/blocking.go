// Package blocking limits how many calls of PID 1 may wait for a disk at the same time.
//
// A system call that waits occupies a thread. The Go runtime creates another one when all others wait, and ends the process if
// the kernel refuses it. So every call that may wait first takes a turn: the right to make one such call. Each [Pool] has a
// fixed number of turns, and can't use turns of another pool. So a data volume that hangs delays only calls that need it. A
// goroutine that waits for a turn needs no thread. The threads for all turns exist before the first service starts, see
// [TotalTurns].
//
// The work that keeps PID 1 alive and answering (reaping, signals, status, console) takes no turn, or one of [ShortCalls], so it
// never waits for a disk. A scan of the processes may wait a few milliseconds for a turn of [Environ].
//
// The package owns the goroutines that [Within] and [Wait] start, one for each call.
package blocking

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
)

// Pool is a group of calls that wait for the same kind of resource. Each has its own turns.
type Pool int

// The pools: one for each kind of resource that can hang.
const (
	Volume   Pool = iota // the data volume: profiles, their files, owners
	Logs                 // log files
	Runtime              // the runtime directory (/run/hinit) and the s6 service directories in it
	Foreign              // anything else that may hang: hinit.yaml, service directories that hinit did not make
	Programs             // programs and directories of services that start, which their users choose, see package proc
	Peers                // sockets of processes that root does not trust, see [DoWithPeer]
	Environ              // environments of processes that hide their service, see package proc
	// ShortCalls is for calls that normally don't wait: on sockets of root's clients, pipes of services and files in /proc. Even
	// such a call can take long, for instance while the kernel has stopped the container because its processor time is used up.
	// Each call that takes long needs a thread, and many goroutines may make such calls at the same time. Code that needs turns
	// of several pools must take the turn of ShortCalls last.
	ShortCalls
	poolCount
)

// poolSizes is the number of turns of each pool: how many of its calls may wait at the same time.
var poolSizes = [poolCount]int{Volume: 6, Logs: 3, Runtime: 2, Foreign: 3, Programs: 1, Peers: 1, Environ: 1, ShortCalls: 2}

// turnsInUse has a channel for each pool, with a token for every turn in use.
var turnsInUse = newTurnChannels()

func newTurnChannels() (t [poolCount]chan struct{}) {
	for s := range t {
		t[s] = make(chan struct{}, poolSizes[s])
	}
	return t
}

// MinimizeTurns reduces the turns to the minimum, for a container that allows hardly any threads. Call it before the first turn
// is taken.
func MinimizeTurns() {
	poolSizes = [poolCount]int{Volume: 2, Logs: 1, Runtime: 1, Foreign: 1, Programs: 1, Peers: 1, Environ: 1, ShortCalls: 1}
	turnsInUse = newTurnChannels()
}

// TotalTurns returns the number of turns of all pools together. That many threads must exist for calls that wait.
func TotalTurns() int {
	sum := 0
	for _, n := range poolSizes {
		sum += n
	}
	return sum
}

// ErrBusy means that a call did not begin in time, because earlier calls held all turns of its pool.
var ErrBusy = errors.New("earlier calls still wait for it")

// ErrTimedOut means that a call has begun and did not return in time. It is still running.
var ErrTimedOut = errors.New("it does not answer")

// Do waits for a turn of a pool, calls f, and returns the error of f. f must not call Do for the same pool, directly or not.
// Without another free turn, it would wait for itself for ever.
func Do(s Pool, f func() error) error {
	turnsInUse[s] <- struct{}{}
	defer func() { <-turnsInUse[s] }()
	return f()
}

// HasFreeTurn reports whether a turn of the pool is free.
func HasFreeTurn(s Pool) bool { return len(turnsInUse[s]) < cap(turnsInUse[s]) }

// Run is Do for a function that can't fail.
func Run(s Pool, f func()) { _ = Do(s, func() error { f(); return nil }) }

// Get is Do for a function with a result.
func Get[T any](s Pool, f func() (T, error)) (result T, err error) {
	err = Do(s, func() (err error) {
		result, err = f()
		return err
	})
	return result, err
}

// Wait calls f in a goroutine, and returns the error of f. f must take turns itself. If ctx ends first, f continues and Wait
// returns an error that wraps [ErrTimedOut]; the caller must then not read anything that f writes. doing names the work in error
// messages. A caller that serves clients must limit how many of them wait.
func Wait(ctx context.Context, doing string, f func() error) error {
	result := make(chan error, 1)
	guard.Go(doing, func() { result <- f() })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot finish %s: %w (%w)", doing, ErrTimedOut, context.Cause(ctx))
	}
}

// Within is Do with a time limit: it calls f in a goroutine, and returns the error of f. If ctx ends before f begins, Within
// never calls f, and the error wraps [ErrBusy]. If ctx ends later, f continues and the error wraps [ErrTimedOut]; the caller must
// then not read anything that f writes. doing names the work in error messages.
func Within(ctx context.Context, s Pool, doing string, f func() error) error {
	started, result := make(chan struct{}), make(chan error, 1)
	guard.Go(doing, func() {
		select {
		case <-ctx.Done():
			return
		case turnsInUse[s] <- struct{}{}:
		}
		defer func() { <-turnsInUse[s] }()
		if ctx.Err() != nil {
			return
		}
		close(started)
		result <- f()
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	case <-started:
		return fmt.Errorf("cannot finish %s: %w", doing, errors.Join(ErrTimedOut, context.Cause(ctx)))
	default:
		return fmt.Errorf("cannot begin %s: %w", doing, errors.Join(ErrBusy, context.Cause(ctx)))
	}
}

const (
	// interruptAfter is how long a call of DoWithPeer may take before a signal interrupts it. Further signals follow at the
	// same interval.
	interruptAfter = 5 * time.Millisecond
	// soPassRights is the option SO_PASSRIGHTS of socket(7), which Linux has since 6.16.
	soPassRights = 83
)

// DoWithPeer calls f through Do. Use it for a system call that receives from the socket of a process that root does not trust.
// Such a call normally does not wait. But if that process has sent file descriptors, the kernel may have to close them. The
// close of a TCP socket lasts as long as the sender has set with SO_LINGER. DoWithPeer interrupts such a wait with a signal. It
// calls f on a locked thread.
func DoWithPeer(f func() error) error {
	return Do(Peers, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var over atomic.Bool
		defer over.Store(true)
		thread := unix.Gettid()
		defer time.AfterFunc(interruptAfter, func() {
			for !over.Load() {
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // the runtime ignores a SIGURG that it did not send
				<-time.After(interruptAfter)
			}
		}).Stop()
		return f()
	})
}

// RefuseDescriptors makes the kernel refuse file descriptors that other processes send to the Unix socket fd, or to connections
// of the listener fd. On older kernels, [DoWithPeer] limits the harm.
func RefuseDescriptors(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights, 0) }

// DrainSocket prevents further data in a socket, and reads the remaining data. Call it before the close. Otherwise the close
// could wait for a TCP socket that the peer has sent, see [DoWithPeer].
func DrainSocket(fd uintptr) {
	_ = DoWithPeer(func() error {
		_ = unix.Shutdown(int(fd), unix.SHUT_RD) // an error means that the peer has closed the socket
		var rest [4096]byte
		for {
			if n, err := unix.Read(int(fd), rest[:]); n <= 0 && err != unix.EINTR {
				return err
			}
		}
	})
}
