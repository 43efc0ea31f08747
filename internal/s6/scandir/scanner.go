package scandir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/s6"
	"hinit/supervisor"
)

// ErrUnknown says that a directory is none that is supervised.
var ErrUnknown = errors.New("no such slot")

// errGone says that the scanner has ended.
var errGone = errors.New("the scanner has ended")

// MainHermes is the slot of the container's CMD in the image that s6 ran. It answers and does nothing.
const MainHermes = "main-hermes"

const (
	maxServices = 1000
	makingTime  = 5 * time.Second       // that somebody may take to make a slot
	makingLimit = 3 * makingTime        // also when the name they use for it is renewed all the time
	maxScans    = 128                   // that wait for one
	loggerTime  = 5 * time.Second       // for a logger whose service is gone to end by itself
	idlePoll    = time.Minute           // where notifications work
	busyPoll    = 5 * time.Second       // where they do not
	settleTime  = 50 * time.Millisecond // from a notification to the look it causes
	lookAgain   = time.Second           // between two looks that notifications cause
)

// Host is the hinit around a scan directory. The scanner's goroutine calls it; what it does may block.
type Host interface {
	// Gateway makes the gateway of a profile known whose slot somebody has registered, and starts it if start says so. exports
	// is what the slot's run exports beside the container's environment.
	Gateway(ctx context.Context, profile string, start bool, exports map[string]string) error
	// Unregistered is told that the slot of a service of hinit's own is gone although nobody withdrew it.
	Unregistered(ctx context.Context, service string)
	// Reserved says why no directory may have a name, "" when it may.
	Reserved(name string) string
	// Room says why there is no room for another service, nil when there is.
	Room() error
	// Register, Do and Snapshot are those of the supervisor; Register makes a log as well.
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
	// Identity is who runs a directory that is not root's, and with what environment; or root's own, without what the
	// agent could have put into it.
	Identity(root bool) (cred *proc.Cred, env []string)
	// Say writes a line for people.
	Say(format string, args ...any)
}

// Scanner keeps the scan directory and the supervisor in step.
type Scanner struct {
	host     Host
	ground   Ground
	dir      *fsutil.Dir
	lock     *os.File
	requests chan func()
	scans    chan chan struct{}
	records  chan supervisor.Record
	ended    chan struct{}
	resumed  chan struct{} // of a successor
	table    atomic.Pointer[table]
	pending  atomic.Bool // a look at what is gone is due
	offers   *offers

	// All below belongs to the goroutine.
	ctx     context.Context //nolint:containedctx // the life of the goroutine
	slots   map[string]*Slot
	pairs   map[string]*pair     // of foreign slots, those that are leaving too
	ending  map[string]time.Time // loggers whose service is gone, and when their time is over
	later   map[string]postponed // slots that are to be made when nobody else is about to
	unseen  []made               // slots that were offered and are made, but not published
	refused map[string]fileID    // directories that were complained about, by name; a tenth of the services at most
	making  map[string]time.Time // slots that somebody else is making, and since when
	crowd   string               // what was last complained about on the whole
	hints   *fsnotify.Watcher
	due     *time.Timer
	poll    time.Duration
	hinted  bool      // due was moved because of a notification
	looked  time.Time // when the last look was
}

// Open wipes and makes the directories and begins to work. It ends with ctx.
func Open(ctx context.Context, host Host, ground Ground) (*Scanner, error) {
	ground = ground.inTurn()
	dir, lock, err := ground.prepare()
	if err != nil {
		return nil, err
	}
	s := newScanner(host, ground, dir, lock)
	s.ctx = ctx
	s.publish()
	s.observeFiles()
	s.due.Reset(s.poll)
	guard.Go("scanning for services", s.run)
	return s, nil
}

// newScanner makes a scanner that does not work yet.
func newScanner(host Host, ground Ground, dir *fsutil.Dir, lock *os.File) *Scanner {
	if ground.most == 0 {
		ground.most = maxServices
	}
	return &Scanner{
		host: host, ground: ground, dir: dir, lock: lock, requests: make(chan func()), scans: make(chan chan struct{}, maxScans),
		records: make(chan supervisor.Record, 1024), ended: make(chan struct{}), offers: newOffers(),
		slots: make(map[string]*Slot), pairs: make(map[string]*pair), refused: make(map[string]fileID),
		ending: make(map[string]time.Time), later: make(map[string]postponed), making: make(map[string]time.Time),
		due: time.NewTimer(time.Hour), poll: busyPoll,
	}
}

// observeFiles begins to wait for notifications. Without them it polls more often.
func (s *Scanner) observeFiles() {
	hints, err := fsnotify.NewWatcher()
	if err != nil {
		return
	}
	s.hints = hints
	if blocking.Do(blocking.Runtime, func() error { return hints.Add(s.ground.Scan) }) == nil {
		s.poll = idlePoll
	}
}

// Ended is closed when the scanner's goroutine has ended.
func (s *Scanner) Ended() <-chan struct{} { return s.ended }

// run is the goroutine.
func (s *Scanner) run() {
	defer close(s.ended)
	s.work()
	s.end() // not after a panic: another image goes on with the files
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
		case <-s.offers.wake:
			s.serveOffers()
		case done := <-s.scans:
			s.scan(done)
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
		case <-s.due.C:
			s.hinted = false
			s.due.Reset(s.poll)
			s.look()
		}
	}
}

// soon makes the next look come soon, but not right after the last one.
func (s *Scanner) soon() {
	if !s.hinted {
		s.hinted = true
		s.due.Reset(max(settleTime, time.Until(s.looked.Add(lookAgain))))
	}
}

// matters says whether a notification is worth a look. Most are not: registering makes temporary names, and services write
// into their directories.
func (s *Scanner) matters(ev fsnotify.Event) bool {
	dir, name := filepath.Split(ev.Name)
	if filepath.Clean(dir) == s.ground.Scan {
		slot := s.slots[name]                                            // somebody's new directory waits for a scan
		return slot != nil && !(ev.Has(fsnotify.Create) && s.same(slot)) // or it is the one that was just made
	}
	return s6.Defines(name)
}

func (s *Scanner) end() {
	if s.hints != nil {
		_ = s.hints.Close() // nothing is read from it any more
	}
	s.due.Stop()
	for _, p := range s.pairs {
		p.close()
	}
	for _, slot := range s.slots {
		slot.close()
	}
	_ = s.dir.Close()  // a directory
	_ = s.lock.Close() // it ends the lock
}

// do runs f in the goroutine and waits for it.
func (s *Scanner) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case s.requests <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return fmt.Errorf("cannot reach the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
	return s.wait(ctx, done)
}

func (s *Scanner) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot get an answer of the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
}
