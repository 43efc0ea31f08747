// Package blocking limits how many calls of PID 1 may wait for a disk at the same time.
//
// A system call that waits occupies a thread of the process. The Go runtime creates another thread when all others wait, and ends
// the process when the kernel refuses a thread. So every call that may wait first takes a turn here, which is the right to make
// one such call. Each [Share] has a fixed number of turns, and can't use another share's turns. So a hanging data volume delays
// only calls that need the data volume. A goroutine that queues for a turn needs no thread. The threads for all turns exist
// before the first service starts, see [Turns].
//
// Work that keeps PID 1 alive and responsive (reaping, signals, the status, the console) takes no turn, or a [Short] turn. A scan of
// the processes may wait a few milliseconds for a turn of [Environ]. So this work never waits here for a disk.
//
// The package owns the goroutines that [Within] and [Wait] start, each for one call.
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

// Share is a group of calls that wait for the same kind of resource. Each share has its own turns.
type Share int

// The values of Share, one for each kind of resource.
const (
	Volume  Share = iota // the data volume: profiles, their files, owners
	Logs                 // log files
	Runtime              // the runtime directory (/run/hinit) and the s6 service directories in it
	Foreign              // anything else that may hang: configuration, programs, service directories that hinit did not make
	Peers                // sockets of processes that root doesn't trust, see function [Peer]
	Environ              // environments of processes that hide their service, see package proc
	// Short is for calls that normally don't wait: to sockets of root's clients, pipes of services, and files in /proc.
	// Many goroutines may make such calls at the same time. Even such a call may be slow, for instance when the kernel has
	// stopped the container because the container has used up its processor time. The Go runtime then needs another thread.
	// A call that takes turns of several shares must take this turn last.
	Short
	shares
)

// turns is the number of calls of each share that may wait at the same time.
var turns = [shares]int{Volume: 6, Logs: 3, Runtime: 2, Foreign: 3, Peers: 1, Environ: 1, Short: 2}

// taken has a channel for each share, which holds a token for every turn of this share that is in use.
var taken = channels()

func channels() (t [shares]chan struct{}) {
	for s := range t {
		t[s] = make(chan struct{}, turns[s])
	}
	return t
}

// UseMinimum reduces the number of turns to the minimum, for a container that allows hardly any threads. Call it before the first
// turn is taken.
func UseMinimum() {
	turns = [shares]int{Volume: 2, Logs: 1, Runtime: 1, Foreign: 1, Peers: 1, Environ: 1, Short: 1}
	taken = channels()
}

// Turns returns the number of turns of all shares together. The process needs the same number of threads for calls that
// wait.
func Turns() int {
	sum := 0
	for _, n := range turns {
		sum += n
	}
	return sum
}

// ErrBusy means that a call did not begin in time, because earlier calls of its share held all turns.
var ErrBusy = errors.New("earlier calls still wait for it")

// ErrSlow means that a call has begun and did not return in time. The call continues.
var ErrSlow = errors.New("it does not answer")

// Do waits for a turn of the share s, calls f, and returns its error. The function f must not call Do for the same share,
// directly or indirectly. If no other turn were free, f would wait for itself.
func Do(s Share, f func() error) error {
	taken[s] <- struct{}{}
	defer func() { <-taken[s] }()
	return f()
}

// Run works like Do, for a function that can't fail.
func Run(s Share, f func()) { _ = Do(s, func() error { f(); return nil }) }

// Get works like Do, for a function with a result.
func Get[T any](s Share, f func() (T, error)) (result T, err error) {
	err = Do(s, func() (err error) {
		result, err = f()
		return err
	})
	return result, err
}

// Wait calls f in a goroutine and returns the error of f. f must take turns itself. If ctx ends first, f continues without the
// caller, and the error wraps [ErrSlow]. The caller must then not read anything that f writes. doing describes f for error
// messages. A caller that serves clients must limit the number of clients that wait.
func Wait(ctx context.Context, doing string, f func() error) error {
	result := make(chan error, 1)
	guard.Go(doing, func() { result <- f() })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot finish %s: %w (%w)", doing, ErrSlow, context.Cause(ctx))
	}
}

// Within is Do with a time limit. It runs f in another goroutine and returns the error of f. If ctx ends before f begins, f is
// never called, and the error wraps [ErrBusy]. If ctx ends later, f continues without the caller, and the error wraps [ErrSlow].
// The caller must then not read anything that f writes. doing describes f for error messages.
func Within(ctx context.Context, s Share, doing string, f func() error) error {
	begun, result := make(chan struct{}), make(chan error, 1)
	guard.Go(doing, func() {
		select {
		case <-ctx.Done():
			return
		case taken[s] <- struct{}{}:
		}
		defer func() { <-taken[s] }()
		if ctx.Err() != nil {
			return
		}
		close(begun)
		result <- f()
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result: // f has ended at the same moment as ctx
		return err
	case <-begun:
		return fmt.Errorf("cannot finish %s: %w", doing, errors.Join(ErrSlow, context.Cause(ctx)))
	default:
		return fmt.Errorf("cannot begin %s: %w", doing, errors.Join(ErrBusy, context.Cause(ctx)))
	}
}

const (
	// nudgeAfter is the time after which a signal interrupts a call in Peer, and the time between further signals.
	nudgeAfter = 5 * time.Millisecond
	// passRights is the option SO_PASSRIGHTS of socket(7), which Linux has since 6.16.
	passRights = 83
)

// Peer works like Do, for a call that receives from the socket of a process that root doesn't trust. Such a call normally
// doesn't wait. But during the call the kernel closes file descriptors that the peer has passed. Closing a TCP socket can
// take as long as the peer has set with SO_LINGER. Peer interrupts that wait with a signal. Peer calls f on a locked
// thread.
func Peer(f func() error) error {
	return Do(Peers, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var over atomic.Bool
		defer over.Store(true)
		thread := unix.Gettid()
		defer time.AfterFunc(nudgeAfter, func() {
			for ; !over.Load(); <-time.After(nudgeAfter) {
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // the runtime ignores this signal if it did not send it
			}
		}).Stop()
		return f()
	})
}

// RefuseDescriptors makes the kernel refuse file descriptors that are sent to the Unix socket fd, or to the connections of the
// listener fd. Older kernels can't do that; see [Peer].
func RefuseDescriptors(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, passRights, 0) }

// Drain reads the remaining data from a socket before it is closed, and prevents further data. Without Drain the close could wait
// because of a passed TCP socket, see [Peer].
func Drain(fd uintptr) {
	_ = Peer(func() error {
		_ = unix.Shutdown(int(fd), unix.SHUT_RD) // the error doesn't matter: the peer may have closed the socket
		var rest [4096]byte
		for {
			if n, err := unix.Read(int(fd), rest[:]); n <= 0 && err != unix.EINTR {
				return err
			}
		}
	})
}
