// Package blocking bounds how many calls of PID 1 may wait for a disk at the same time.
//
// A system call that waits keeps a thread of the process. The Go runtime makes another thread when all others wait, and ends the
// process when the kernel refuses one. So every call that may wait takes a turn here first. Each [Share] has a fixed number of
// turns, and can't use another share's turns. So a data volume that hangs delays only calls that need the data volume. A
// goroutine that queues for a turn needs no thread. The threads for all turns are made before the first service starts, see
// [Turns].
//
// The work that keeps PID 1 alive and answering takes no turn, or a [Short] one, and so never waits here for a disk. This is
// reaping, signals, the status, and the console.
//
// The package owns the goroutines that [Within] and [Wait] start, each for one call.
package blocking

import (
	"context"
	"errors"
	"fmt"

	"hinit/internal/guard"
)

// Share is a group of calls that wait for the same thing.
type Share int

// The shares.
const (
	Volume  Share = iota // the data volume: profiles, their files, owners
	Logs                 // log files
	Runtime              // the run directory and the slots in it
	Foreign              // everything else that may hang: configuration, service directories of others, programs
	Peers                // sockets of processes that root doesn't trust, see [Peer]
	// Short is for calls that wait for nothing, but of which there may be any number at once: to sockets of root's clients, pipes of
	// services, files in /proc. The runtime takes a processor away from a call that is not back at once, as where the kernel has
	// stopped the container for want of processor time, and needs a thread for it. A call takes this turn last of all.
	Short
	shares
)

// turns is how many calls of a share may wait at once.
var turns = [shares]int{Volume: 6, Logs: 3, Runtime: 2, Foreign: 3, Peers: 1, Short: 2}

// taken has a token for every turn that is taken.
var taken = channels()

func channels() (t [shares]chan struct{}) {
	for s := range t {
		t[s] = make(chan struct{}, turns[s])
	}
	return t
}

// Few leaves as few turns as can be, where the container has hardly any room for threads. It must be called before the first turn
// is taken.
func Few() {
	turns = [shares]int{Volume: 2, Logs: 1, Runtime: 1, Foreign: 1, Peers: 1, Short: 1}
	taken = channels()
}

// Turns is how many calls can wait at once in all shares together, and so how many threads they need.
func Turns() int {
	sum := 0
	for _, n := range turns {
		sum += n
	}
	return sum
}

// ErrBusy says that a call did not begin in time, because earlier ones of its share still wait.
var ErrBusy = errors.New("earlier calls still wait for it")

// ErrSlow says that a call began and has not come back in time. It goes on.
var ErrSlow = errors.New("it does not answer")

// Do takes a turn, calls f and returns what f returns. It blocks for as long as both take. f must not call Do, or anything that
// does, for the same share: it would wait for itself when no other turn is free.
func Do(s Share, f func() error) error {
	taken[s] <- struct{}{}
	defer func() { <-taken[s] }()
	return f()
}

// Wait calls f, which takes its turns itself, and returns f's error. If ctx ends first, f goes on without the caller, and the
// error wraps [ErrSlow]. The caller must then not read anything that f writes. doing describes f for people. A caller that serves
// clients must limit how many of them wait.
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

// Within is Do for a caller that has no time beyond ctx. It returns f's error. If ctx ended before f began, f never begins, and
// the error wraps [ErrBusy]. If f goes on without the caller, the error wraps [ErrSlow]. f runs in a goroutine of its own, so the
// caller must not read anything that f writes after ErrSlow. doing describes f for people.
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
	case err := <-result: // both at once
		return err
	case <-begun:
		return fmt.Errorf("cannot finish %s: %w", doing, errors.Join(ErrSlow, context.Cause(ctx)))
	default:
		return fmt.Errorf("cannot begin %s: %w", doing, errors.Join(ErrBusy, context.Cause(ctx)))
	}
}
