// Package report follows the history of the supervisor: it tells people what matters to them, and each other room of PID 1 every
// record.
//
// It promises that each record is reported once, also across a re-execution, in the goroutine of [Reporter.Run], the caller's. line.go has
// the words.
package report

import (
	"context"
	"sync"
	"time"

	"hinit/internal/tuning"
	"hinit/supervisor"
)

// Loop is what a Reporter needs of [supervisor.Loop].
type Loop interface {
	History() *supervisor.Ring
	Snapshot() *supervisor.Snapshot
	Ended() <-chan struct{}
}

// Options are what a Reporter works with. It calls the functions one after the other; none may block.
type Options struct {
	Loop     Loop
	Say      func(format string, args ...any) // writes a line to the container log
	Observe  func(supervisor.Record)
	Lost     func() // records were lost before the next one
	Stopping func() // the container is; it may be called again
}

// Reporter reports.
type Reporter struct {
	o    Options
	used chan struct{} // capacity 1: something was done that is no event

	mu       sync.Mutex // held while something is reported, and while the generations change
	reported uint64     // the last record that was
}

// New makes a Reporter that has reported nothing.
func New(o Options) *Reporter { return &Reporter{o: o, used: make(chan struct{}, 1)} }

// Hold lets nothing be reported until release is called, and returns the last record that was.
func (r *Reporter) Hold() (reported uint64, release func()) {
	r.mu.Lock()
	return r.reported, r.mu.Unlock
}

// TakeOver takes over what [Reporter.Hold] returned in the program before this one.
func (r *Reporter) TakeOver(reported uint64) { r.reported = reported }

// Run reports until the supervisor has ended or ctx does, and gives memory back when all is reported.
func (r *Reporter) Run(ctx context.Context) {
	history := r.o.Loop.History()
	var memory tuning.Releaser
	quiet := time.NewTimer(tuning.RestAfter)
	defer quiet.Stop()
	rested := false
	stir := func() {
		rested = false
		quiet.Reset(tuning.RestAfter)
	}
	for {
		news := history.News()
		cursor, some := r.some(history)
		if some {
			stir()
			continue
		}
		select {
		case <-news:
		case <-r.used:
			stir()
		case <-quiet.C: // the boot, a burst or a request is over
			memory.Release()
			if !rested {
				rested = true
				quiet.Reset(tuning.RestAgain)
			}
		case <-r.o.Loop.Ended():
			if history.Last() == cursor {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// Use notes work that is no event of the history, so that memory is released after it.
func (r *Reporter) Use() {
	select {
	case r.used <- struct{}{}:
	default: // it is noted already
	}
}

// some reports what is new and returns how far it has come.
func (r *Reporter) some(history *supervisor.Ring) (cursor uint64, some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	records, lost := history.Since(r.reported)
	if len(records) > 0 && r.o.Loop.Snapshot().Stopping {
		r.o.Stopping()
	}
	r.reported += lost
	if lost > 0 {
		r.o.Say("%d events are not shown here", lost)
		r.o.Lost()
	}
	for _, record := range records {
		r.reported = record.Seq
		if line := Line(record); line != "" {
			r.o.Say("%s", line)
		}
		r.o.Observe(record)
	}
	return r.reported, len(records) > 0
}
