package scandir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/s6/foreign"
	"hinit/internal/s6/formats"
	"hinit/supervisor"
)

// ErrUnknown means that no supervised service has that directory.
var ErrUnknown = errors.New("no such slot")

const (
	maxServices  = 1000
	makingTime   = 5 * time.Second        // time for another program to make a slot
	makingPoll   = 100 * time.Millisecond // between two checks whether it has finished
	makingLimit  = 3 * makingTime         // limit of makingTime, if the other program renews its temporary name again and again
	idlePoll     = time.Hour              // between two checks, if notifications work and all slots are hinit's own
	foreignPoll  = time.Minute            // the same, if another program made a slot
	busyPoll     = 5 * time.Second        // between two checks, if notifications don't work
	settleTime   = 50 * time.Millisecond  // from a notification to its check
	lookAgain    = time.Second            // between two checks after notifications
	completeTime = 100 * time.Millisecond // from the last made slot until the first one is completed
	holdTime     = 3 * time.Second        // limit of the wait of a re-execution, before and after; longer than the announcement of a stop
)

// Host is the part of PID 1 that a scanner uses. The scanner's goroutine calls it; its methods may block.
type Host interface {
	// SlotMade registers the gateway of a profile whose slot a client has made, and starts it if start is true. exports are the
	// variables that the slot's run script adds to the container's environment.
	SlotMade(ctx context.Context, profile string, start bool, exports map[string]string) error
	// SlotRemoved reports that a client removed the slot of a service of hinit.
	SlotRemoved(ctx context.Context, service string)
	// Reserved returns why no directory can have a name, or "" if one can.
	Reserved(name string) string
	// Room returns why no further service has room, or nil.
	Room() error
	// Register also makes a log for the service.
	foreign.Supervisor
}

// serviceHost implements foreign.Scanner by a Scanner.
type serviceHost struct {
	Host
	s *Scanner
}

func (a serviceHost) Publish()                                { a.s.publish() }
func (a serviceHost) Watch(path string)                       { a.s.watch(path) }
func (a serviceHost) Unwatch(path string)                     { a.s.unwatch(path) }
func (a serviceHost) LookIn(d time.Duration)                  { a.s.due.Reset(d) }
func (a serviceHost) Agent() (context.Context, *fsutil.Actor) { return a.s.ctx, a.s.layout.foreign }

// Scanner keeps the scan directory and the supervisor consistent.
type Scanner struct {
	host     Host
	layout   Layout
	dir      *fsutil.Dir
	lock     *os.File
	requests chan func()
	records  chan supervisor.Record
	ended    chan struct{}
	resumed  chan struct{} // closed when the directories are open after re-execution
	table    atomic.Pointer[table]
	pending  atomic.Bool // a check for removed directories will follow
	queue    *queue

	// Only the goroutine uses the fields below.
	ctx     context.Context   //nolint:containedctx // ends the goroutine
	entries map[string]*entry // by name in the scan directory
	unseen  []madeSlot        // queued slots that are made, but not yet published
	again   map[string]bool   // queued slots that could not be made
	idle    *time.Timer       // fires when the scanner completes slots
	partial string            // last report about directories that are not supervised
	hints   *fsnotify.Watcher
	due     *time.Timer
	poll    time.Duration
	hinted  bool      // a notification has advanced the time of the next check
	looked  time.Time // time of the last check
	scanned time.Time // beginning of the last scan
}

// Open empties or creates the directories and begins to work. The work ends with ctx.
func Open(ctx context.Context, host Host, layout Layout) (*Scanner, error) {
	layout = layout.withLimits()
	dir, lock, err := layout.prepare()
	if err != nil {
		return nil, err
	}
	s := newScanner(host, layout, dir, lock)
	s.ctx = ctx
	s.publish()
	s.observeFiles()
	s.due.Reset(s.poll)
	guard.Go("scanning for services", s.run)
	return s, nil
}

func newScanner(host Host, layout Layout, dir *fsutil.Dir, lock *os.File) *Scanner {
	return &Scanner{
		host: host, layout: layout, dir: dir, lock: lock, requests: make(chan func()),
		records: make(chan supervisor.Record, 1024), ended: make(chan struct{}), queue: newQueue(),
		entries: make(map[string]*entry), again: make(map[string]bool),
		due: time.NewTimer(time.Hour), idle: time.NewTimer(time.Hour), poll: busyPoll,
	}
}

// observeFiles starts notifications about the scan directory. After a failure the scanner polls more often.
func (s *Scanner) observeFiles() {
	hints, err := fsnotify.NewWatcher()
	if err != nil {
		return
	}
	s.hints = hints
	if blocking.Do(blocking.Runtime, func() error { return hints.Add(s.layout.Scan) }) == nil {
		s.poll = idlePoll
	}
}

func (s *Scanner) watch(path string) {
	if s.hints != nil {
		_ = blocking.Do(blocking.Foreign, func() error { return s.hints.Add(path) })
	}
}

func (s *Scanner) unwatch(path string) {
	if s.hints != nil {
		_ = s.hints.Remove(path) // the watch may already be gone
	}
}

func (s *Scanner) entryOf(name string) *entry {
	e := s.entries[name]
	if e == nil {
		e = &entry{}
		s.entries[name] = e
	}
	return e
}

// removeUnused removes a foreign service that is gone, and an empty entry.
func (s *Scanner) removeUnused(name string) {
	e := s.entries[name]
	if e == nil {
		return
	}
	if e.Service != nil && e.Service.Gone() {
		e.Service = nil
	}
	if e.empty() {
		delete(s.entries, name)
	}
}

func (s *Scanner) slot(name string) *Slot {
	if e := s.entries[name]; e != nil {
		return e.Slot
	}
	return nil
}

// service returns the foreign service with a name, or the service whose logger has the name.
func (s *Scanner) service(name string) *foreign.Service {
	top, _, _ := strings.Cut(name, "/")
	if e := s.entries[top]; e != nil {
		return e.Service
	}
	return nil
}

// Observe passes a record of the supervisor to the scanner. It does not block: if the queue is full, the next check finds the
// change.
func (s *Scanner) Observe(r supervisor.Record) {
	if !r.Dropped && r.Exit == nil && (r.To != supervisor.Down || r.From == r.To) {
		return
	}
	top, _, _ := strings.Cut(r.Service, "/")
	if e := s.table.Load().entries[top]; e == nil || e.Service == nil {
		return
	}
	select {
	case s.records <- r:
	default:
	}
}

func (s *Scanner) observe(r supervisor.Record) {
	if service := s.service(r.Service); service != nil {
		service.Observe(r)
		s.removeUnused(service.Name)
	}
}

// Ended returns a channel that is closed when the scanner's goroutine has ended.
func (s *Scanner) Ended() <-chan struct{} { return s.ended }

func (s *Scanner) run() {
	defer close(s.ended)
	s.work()
	s.end() // not after a panic: the next program continues with the files
}

func (s *Scanner) work() {
	var changes chan fsnotify.Event
	var lost chan error
	if s.hints != nil {
		changes, lost = s.hints.Events, s.hints.Errors
	}
	for {
		select {
		case <-s.ctx.Done():
			return
		case f := <-s.requests:
			f()
		case <-s.queue.wake:
			s.serveQueue()
		case r := <-s.records:
			s.observe(r)
		case ev, ok := <-changes:
			if !ok {
				changes, s.poll = nil, busyPoll
			} else if s.needsCheck(ev) {
				s.scheduleCheck()
			}
		case _, ok := <-lost:
			if !ok {
				lost = nil
			}
			s.scheduleCheck()
		case <-s.idle.C:
			s.completeNext()
		case <-s.due.C:
			s.hinted = false
			s.due.Reset(s.untilNextCheck())
			s.checkSlots()
		}
	}
}

// untilNextCheck returns the time until the next regular check.
func (s *Scanner) untilNextCheck() time.Duration {
	for _, e := range s.entries {
		if e.Service != nil {
			return min(s.poll, foreignPoll)
		}
	}
	return s.poll
}

// scheduleCheck schedules a check, but not right after the last one.
func (s *Scanner) scheduleCheck() {
	if !s.hinted {
		s.hinted = true
		s.due.Reset(max(settleTime, time.Until(s.looked.Add(lookAgain))))
	}
}

// needsCheck reports whether a notification needs a check. Most notifications are about temporary names, and about files that
// services write in their directories, and need none.
func (s *Scanner) needsCheck(ev fsnotify.Event) bool {
	dir, name := filepath.Split(ev.Name)
	if filepath.Clean(dir) == s.layout.Scan {
		slot := s.slot(name)                                                      // a new directory waits for a scan
		return slot != nil && !(ev.Has(fsnotify.Create) && s.nameUnchanged(slot)) // ignore the creation of a slot that hinit has just made
	}
	return formats.Defines(name)
}

func (s *Scanner) end() {
	if s.hints != nil {
		_ = s.hints.Close() // nothing reads from it any more
	}
	s.due.Stop()
	s.idle.Stop()
	for _, e := range s.entries {
		if e.Service != nil {
			e.Service.Close()
		}
		if e.Slot != nil {
			e.Slot.close()
		}
	}
	_ = s.dir.Close()  // a directory
	_ = s.lock.Close() // this releases the lock
}

var errGone = errors.New("the scanner has ended")

// do executes f in the scanner's goroutine, and waits for its end.
func (s *Scanner) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if err := s.send(ctx, func() { defer close(done); f() }); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot get an answer of the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
}

// send passes f to the scanner's goroutine, and returns when the goroutine begins to execute f.
func (s *Scanner) send(ctx context.Context, f func()) error {
	select {
	case s.requests <- f:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot reach the scan directory %q: %w", s.layout.Scan, context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
}
