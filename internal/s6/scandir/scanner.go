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

// ErrUnknown says that no supervised service has that directory.
var ErrUnknown = errors.New("no such slot")

const (
	maxServices = 1000
	makingTime  = 5 * time.Second        // that somebody may take to make a slot
	makingPoll  = 100 * time.Millisecond // to see whether they have
	makingLimit = 3 * makingTime         // also when the name they use for it is renewed all the time
	idlePoll    = time.Minute            // where notifications work
	busyPoll    = 5 * time.Second        // where they do not
	settleTime  = 50 * time.Millisecond  // from a notification to the look it causes
	lookAgain   = time.Second            // between two looks that notifications cause
	fillTime    = 100 * time.Millisecond // from the last slot that was made to the rest of the first
	holdTime    = 3 * time.Second        // that a re-execution waits, before and after; longer than the announcement of a stop
)

// Host is PID 1 around a scan directory. The scanner's goroutine calls it; its methods may block.
type Host interface {
	// SlotMade makes known the gateway of a profile whose slot a client has made, and starts it if start is true. exports are the
	// variables that the slot's run adds to the container's environment.
	SlotMade(ctx context.Context, profile string, start bool, exports map[string]string) error
	// SlotRemoved reports that a client removed the slot of one of hinit's own services.
	SlotRemoved(ctx context.Context, service string)
	// Reserved says why a directory may not have a name, "" when it may.
	Reserved(name string) string
	// Room says why there is no room for another service, nil when there is.
	Room() error
	// Register of a foreign.Supervisor makes a log as well.
	foreign.Supervisor
}

// serviceHost makes a Scanner the scanner of a foreign service.
type serviceHost struct {
	Host
	s *Scanner
}

func (a serviceHost) Publish()                                { a.s.publish() }
func (a serviceHost) Watch(path string)                       { a.s.watch(path) }
func (a serviceHost) Unwatch(path string)                     { a.s.unwatch(path) }
func (a serviceHost) LookIn(d time.Duration)                  { a.s.due.Reset(d) }
func (a serviceHost) Agent() (context.Context, *fsutil.Actor) { return a.s.ctx, a.s.layout.foreign }

// Scanner keeps the scan directory and the supervisor in step.
type Scanner struct {
	host     Host
	layout   Layout
	dir      *fsutil.Dir
	lock     *os.File
	requests chan func()
	records  chan supervisor.Record
	ended    chan struct{}
	resumed  chan struct{} // of a successor
	table    atomic.Pointer[table]
	pending  atomic.Bool // a look at what is gone is due
	queue    *queue

	// Everything below belongs to the goroutine.
	ctx     context.Context   //nolint:containedctx // the life of the goroutine
	entries map[string]*entry // by name in the scan directory
	unseen  []made            // slots of the queue that are made, but not published
	again   map[string]bool   // slots of the queue that could not be made
	idle    *time.Timer       // until slots are filled
	partial string            // why not all of the scan directory is supervised, as it was last said
	hints   *fsnotify.Watcher
	due     *time.Timer
	poll    time.Duration
	hinted  bool      // due was moved because of a notification
	looked  time.Time // when the last look was
	scanned time.Time // when the last scan began
}

// Open wipes and makes the directories and begins to work. It ends with ctx.
func Open(ctx context.Context, host Host, layout Layout) (*Scanner, error) {
	layout = layout.limited()
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

// observeFiles begins to watch the scan directory. If that fails, the scanner polls more often.
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
		_ = s.hints.Remove(path) // it may be gone already
	}
}

func (s *Scanner) at(name string) *entry {
	e := s.entries[name]
	if e == nil {
		e = &entry{}
		s.entries[name] = e
	}
	return e
}

// tidy removes a foreign service that is gone, and an empty entry.
func (s *Scanner) tidy(name string) {
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

// service returns the foreign service that a name belongs to, which may be its logger's.
func (s *Scanner) service(name string) *foreign.Service {
	top, _, _ := strings.Cut(name, "/")
	if e := s.entries[top]; e != nil {
		return e.Service
	}
	return nil
}

// Observe passes a record of the supervisor to the scanner. It does not block: the next look makes up for a record that finds no
// room.
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
		s.tidy(service.Name)
	}
}

// Ended is closed when the scanner's goroutine has ended.
func (s *Scanner) Ended() <-chan struct{} { return s.ended }

func (s *Scanner) run() {
	defer close(s.ended)
	s.work()
	s.end() // not after a panic: another generation goes on with the files
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
			} else if s.matters(ev) {
				s.soon()
			}
		case _, ok := <-lost:
			if !ok {
				lost = nil
			}
			s.soon()
		case <-s.idle.C:
			s.fillNext()
		case <-s.due.C:
			s.hinted = false
			s.due.Reset(s.poll)
			s.look()
		}
	}
}

// soon schedules a look, but not right after the last one.
func (s *Scanner) soon() {
	if !s.hinted {
		s.hinted = true
		s.due.Reset(max(settleTime, time.Until(s.looked.Add(lookAgain))))
	}
}

// matters reports whether a notification deserves a look. Most don't: temporary names, and what services write in their
// directories.
func (s *Scanner) matters(ev fsnotify.Event) bool {
	dir, name := filepath.Split(ev.Name)
	if filepath.Clean(dir) == s.layout.Scan {
		slot := s.slot(name)                                             // somebody's new directory waits for a scan
		return slot != nil && !(ev.Has(fsnotify.Create) && s.same(slot)) // or it is the one that was just made
	}
	return formats.Defines(name)
}

func (s *Scanner) end() {
	if s.hints != nil {
		_ = s.hints.Close() // nothing is read from it any more
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
	_ = s.lock.Close() // it ends the lock
}

var errGone = errors.New("the scanner has ended")

// do runs f on the scanner's goroutine.
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

// send hands f to the scanner's goroutine, and returns when it has been taken.
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
