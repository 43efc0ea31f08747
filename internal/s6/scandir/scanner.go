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

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/s6/foreign"
	"hinit/internal/s6/formats"
	"hinit/internal/watch"
	"hinit/supervisor"
)

const (
	maxServices             = 1000
	agentMakingTimeout      = 5 * time.Second // how long to wait for another program that is making the same slot
	agentMakingPollInterval = 100 * time.Millisecond
	agentMakingLimit        = 3 * agentMakingTimeout // longest wait for a program that makes its temporary directory again and again
	idlePollInterval        = time.Hour              // time between checks if file notifications work and all slots are hinit's own
	foreignPollInterval     = time.Minute            // time between checks if another program has made a slot
	busyPollInterval        = 5 * time.Second        // time between checks if file notifications don't work
	checkDelay              = 50 * time.Millisecond  // time from a notification to its check
	minCheckInterval        = time.Second            // shortest time between two checks that notifications cause
	missingFilesDelay       = 100 * time.Millisecond // after this time without a new slot, the scanner adds missing files to slots
	holdTimeout             = 3 * time.Second        // how long each of the two programs of a re-execution waits for its scanner
)

// Host is the part of PID 1 that a scanner uses. The scanner's goroutine calls the methods, which may block.
type Host interface {
	// SlotMade registers the gateway of a profile whose slot a client has made. If start is set, it also starts the gateway.
	// exports are the variables that the slot's run script adds to the container's environment.
	SlotMade(ctx context.Context, profile string, start bool, exports map[string]string) error
	// SlotRemoved reports that a client has removed the slot of one of hinit's services.
	SlotRemoved(ctx context.Context, service string)
	// WhyReserved says why no service may have this name. For a free name it returns "".
	WhyReserved(name string) string
	// CheckCapacity returns an error if no more services can be supervised.
	CheckCapacity() error
	// Register must also create a log for the service.
	foreign.Supervisor
}

// serviceHost combines a Host and a Scanner into a foreign.Scanner.
type serviceHost struct {
	Host
	s *Scanner
}

func (a serviceHost) PublishState()                           { a.s.publish() }
func (a serviceHost) Watch(path string)                       { a.s.watch(path) }
func (a serviceHost) Unwatch(path string)                     { a.s.watches.Remove(path) }
func (a serviceHost) CheckAfter(d time.Duration)              { a.s.checkTimer.Reset(d) }
func (a serviceHost) Agent() (context.Context, *fsutil.Actor) { return a.s.ctx, a.s.layout.foreign }

// Scanner keeps the scan directory consistent with the services of the supervisor.
type Scanner struct {
	host           Host
	layout         Layout
	dir            *fsutil.Dir
	lock           *os.File
	requests       chan func()
	records        chan supervisor.Record
	ended          chan struct{}
	resumed        chan struct{} // closed when the directories are open again after a re-execution
	table          atomic.Pointer[slotTable]
	checkRequested atomic.Bool // a caller has asked for a check for removed directories
	queue          *queue

	// Only the scanner's goroutine uses the fields from here on.
	ctx            context.Context   //nolint:containedctx // ends the goroutine
	entries        map[string]*entry // entries by their name in the scan directory
	unpublished    []madeSlot        // finished slots of the queue that are not yet published
	failedSlots    map[string]bool   // queued slots whose last attempt has failed
	idleTimer      *time.Timer       // fires when the scanner has been idle for a while
	limitMessage   string            // last message about the limit of services
	watches        watch.Set
	checkTimer     *time.Timer
	pollInterval   time.Duration
	checkScheduled bool      // a notification has scheduled an early check
	lastCheck      time.Time // time of the last check
	lastScan       time.Time // start of the last scan
}

// Open creates or empties the directories of s6, and starts the scanner. The scanner ends with ctx.
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
	s.checkTimer.Reset(s.pollInterval)
	guard.Go("scanning for services", s.run)
	return s, nil
}

func newScanner(host Host, layout Layout, dir *fsutil.Dir, lock *os.File) *Scanner {
	return &Scanner{
		host: host, layout: layout, dir: dir, lock: lock, requests: make(chan func()),
		records: make(chan supervisor.Record, 1024), ended: make(chan struct{}), queue: &queue{wake: make(chan struct{}, 1), definitionsByName: make(map[string]slotDefinition)},
		entries: make(map[string]*entry), failedSlots: make(map[string]bool),
		checkTimer: time.NewTimer(time.Hour), idleTimer: time.NewTimer(time.Hour), pollInterval: busyPollInterval,
	}
}

// observeFiles turns on file notifications for the scan directory. Without them, the scanner checks the directory more often.
func (s *Scanner) observeFiles() {
	if s.watches.Open() == nil && blocking.Do(blocking.Runtime, func() error { return s.watches.AddPath(s.layout.ScanDir) }) == nil {
		s.pollInterval = idlePollInterval
	}
}

func (s *Scanner) watch(path string) {
	if s.watches.Events != nil {
		_ = blocking.Do(blocking.Foreign, func() error { return s.watches.AddPath(path) })
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

func (s *Scanner) removeUnused(name string) {
	e := s.entries[name]
	if e == nil {
		return
	}
	if e.Service != nil && e.Service.HasEnded() {
		e.Service = nil
	}
	if e.Slot == nil && e.Service == nil && e.Refused == (fsutil.ID{}) && e.firstSeenMaking.IsZero() {
		delete(s.entries, name)
	}
}

func (s *Scanner) slot(name string) *Slot {
	if e := s.entries[name]; e != nil {
		return e.Slot
	}
	return nil
}

// service returns the foreign service with this name, or the service whose logger has this name.
func (s *Scanner) service(name string) *foreign.Service {
	top, _, _ := strings.Cut(name, "/")
	if e := s.entries[top]; e != nil {
		return e.Service
	}
	return nil
}

// Observe passes a record of the supervisor to the scanner, without blocking: if the channel is full, it drops the record, and
// the next check finds the change.
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
	s.loop()
	s.closeFiles() // after a panic, files stay open for the next program
}

// loop is the loop of the scanner's goroutine. It runs until the scanner's context ends.
func (s *Scanner) loop() {
	changes, lost := s.watches.Events, s.watches.Lost
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
				changes, s.pollInterval = nil, busyPollInterval
			} else if s.needsCheck(ev) {
				s.scheduleCheck()
			}
		case _, ok := <-lost:
			if !ok {
				lost = nil
			}
			s.scheduleCheck()
		case <-s.idleTimer.C:
			s.addNextMissingFiles()
		case <-s.checkTimer.C:
			s.checkScheduled = false
			s.checkTimer.Reset(s.untilNextCheck())
			s.checkSlots()
		}
	}
}

// untilNextCheck returns the time to the next regular check.
func (s *Scanner) untilNextCheck() time.Duration {
	for _, e := range s.entries {
		if e.Service != nil {
			return min(s.pollInterval, foreignPollInterval)
		}
	}
	return s.pollInterval
}

// scheduleCheck schedules an early check, at least minCheckInterval after the last check.
func (s *Scanner) scheduleCheck() {
	if !s.checkScheduled {
		s.checkScheduled = true
		s.checkTimer.Reset(max(checkDelay, time.Until(s.lastCheck.Add(minCheckInterval))))
	}
}

// needsCheck reports whether a file notification requires a check. Most concern temporary names, or files that services write
// in their own directories.
func (s *Scanner) needsCheck(ev watch.Event) bool {
	dir, name := filepath.Split(ev.Name)
	if filepath.Clean(dir) == s.layout.ScanDir {
		slot := s.slot(name)
		return slot != nil && !(ev.Has(watch.Create) && s.nameUnchanged(slot))
	}
	return formats.IsDefinitionFile(name)
}

// closeFiles closes all open files of the scanner and releases its lock on the scan directory.
func (s *Scanner) closeFiles() {
	s.watches.Close()
	for _, e := range s.entries {
		if e.Service != nil {
			e.Service.Close()
		}
		if e.Slot != nil {
			e.Slot.close()
		}
	}
	_ = s.dir.Close()
	_ = s.lock.Close()
}

var errScannerEnded = errors.New("the scanner has ended")

// doInScanner runs f in the scanner's goroutine and waits for its end. If ctx ends first, it returns an error, and f may still
// run.
func (s *Scanner) doInScanner(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if err := s.sendToScanner(ctx, func() { defer close(done); f() }); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot get an answer of the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errScannerEnded
	}
}

// sendToScanner passes f to the scanner's goroutine. It returns when the goroutine has received f, and does not wait for its
// end.
func (s *Scanner) sendToScanner(ctx context.Context, f func()) error {
	select {
	case s.requests <- f:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot reach the scan directory %q: %w", s.layout.ScanDir, context.Cause(ctx))
	case <-s.ended:
		return errScannerEnded
	}
}
