package scandir

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/s6/foreign"
	"hinit/internal/s6/formats"
)

// Handover is what a scanner passes to the next program when PID 1 re-executes itself.
type Handover struct {
	Slots  []*Slot
	Pairs  []*foreign.Service   // services of foreign directories that the supervisor knows
	Ending map[string]time.Time // end of the wait for each logger without a service, by name of the logger
	// Later has the slots in the queue. Refused has the directories whose faults are reported.
	Later   map[string]slotDefinition
	Refused map[string]fsutil.ID
	Lock    *os.File
}

// Hold pauses the scanner between two tasks until the call of release. HandOver then returns the complete state. If the current
// task takes too long, Hold returns an error.
func (s *Scanner) Hold() (release func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.layout.holdTimeout)
	defer cancel()
	released := make(chan struct{})
	rest := func() {
		s.publish()
		pause.Until(s.ctx, released)
	}
	if err := s.sendToScanner(ctx, rest); err != nil { // the scanner takes requests only between two tasks
		return nil, err
	}
	return func() { close(released) }, nil
}

// HandOver returns the state for the next program, without blocking. Without Hold, it is the last published state.
func (s *Scanner) HandOver() *Handover {
	h := &Handover{Ending: make(map[string]time.Time), Later: s.queue.definitions(), Refused: make(map[string]fsutil.ID), Lock: s.lock}
	t := s.table.Load()
	for _, name := range slices.Sorted(maps.Keys(t.entries)) {
		e := t.entries[name]
		if e.Slot != nil {
			h.Slots = append(h.Slots, e.Slot)
		}
		if e.Service != nil && !e.Service.Forgotten {
			h.Pairs = append(h.Pairs, e.Service)
		}
		if e.Service != nil && !e.Service.LoggerDeadline.IsZero() {
			h.Ending[e.Service.LoggerName()] = e.Service.LoggerDeadline
		}
		if e.Refused != (fsutil.ID{}) {
			h.Refused[name] = e.Refused
		}
	}
	return h
}

// TakeOver returns a scanner that continues the work of the program before a re-execution. It changes no file; the first check
// finds changes from in between. Readers see the slots as soon as TakeOver returns. Call [Scanner.Start] to begin the work.
func TakeOver(host Host, layout Layout, h *Handover) (*Scanner, error) {
	layout = layout.withLimits()
	dir, err := fsutil.OpenNoLink(layout.ScanDir, layout.Agent)
	if err != nil {
		return nil, fmt.Errorf("cannot take over the scan directory: %w", err)
	}
	s := newScanner(host, layout, dir, h.Lock)
	s.resumed = make(chan struct{})
	for _, name := range slices.Sorted(maps.Keys(h.Later)) {
		s.queue.add(name, h.Later[name])
	}
	for name, id := range h.Refused {
		s.entryOf(name).Refused = id
	}
	for _, service := range h.Pairs {
		service.SetScanner(serviceHost{s.host, s})
		s.entryOf(service.Name).Service = service
	}
	for logger, at := range h.Ending {
		name := strings.TrimSuffix(logger, "/"+formats.LogDir)
		e := s.entryOf(name)
		if e.Service == nil {
			e.Service = foreign.New(serviceHost{s.host, s}, name)
		}
		e.Service.LoggerDeadline = at
	}
	for _, slot := range h.Slots {
		if e := s.entries[slot.Name]; slot.Kind == foreignSlot && (e == nil || e.Service == nil) {
			continue // the supervisor doesn't know this service yet
		}
		slot.Dir = filepath.Join(layout.ScanDir, slot.Name)
		s.entryOf(slot.Name).Slot = slot
	}
	s.publish()
	return s, nil
}

// Start begins the work after a re-execution, in a goroutine that ends with ctx. It returns when the directories of all slots are
// open, or after a time limit.
func (s *Scanner) Start(ctx context.Context) {
	s.ctx = ctx
	guard.Go("scanning for services", func() {
		s.reopen()
		close(s.resumed)
		s.run()
	})
	select {
	case <-s.resumed:
	case <-time.After(s.layout.holdTimeout):
	case <-ctx.Done():
	}
}

// reopen opens the directories of all slots again, and schedules a check of the whole scan directory. It registers every
// foreign service again, because the supervisor may lack the last changes. The check finds slots that can't be opened.
func (s *Scanner) reopen() {
	s.observeFiles()
	for name, e := range s.entries {
		if e.Service != nil {
			e.Service.TakeOver(e.Slot != nil && e.Slot.Link != fsutil.ID{})
		}
		if e.Slot == nil || e.Slot.Kind == foreignSlot {
			continue
		}
		opened, err := s.openSlot(name, e.Slot.Kind)
		switch {
		case err != nil:
		case opened.ID != e.Slot.ID:
			opened.close()
		default:
			opened.Exports = e.Slot.Exports
			e.Slot = opened
		}
	}
	s.publish()
	s.checkTimer.Reset(0)
}
