package personality

import (
	"context"
	"sync/atomic"

	"hinit/internal/registry"
	"hinit/internal/s6/scandir"
	"hinit/supervisor"
)

// Handover is what is handed over of the scan directory.
type Handover = scandir.Handover

// Switch knows whether a container answers as s6. It does so after Open or TakeOver; until then the other methods do nothing. They may be
// called from any goroutine.
type Switch struct {
	host   Host
	follow func(f registry.Follower, exports map[string]map[string]string)
	with   func() Settings
	s6     atomic.Pointer[S6]
}

// NewSwitch returns the Switch of a container that does not answer as s6. follow has the registry tell a follower of all slots.
func NewSwitch(host Host, follow func(registry.Follower, map[string]map[string]string), with func() Settings) *Switch {
	return &Switch{host: host, follow: follow, with: with}
}

// On returns what answers as s6, nil for nothing.
func (w *Switch) On() *S6 { return w.s6.Load() }

// Open makes the directories of s6, and has the container answer as s6 until ctx ends. Where it can't, hinit goes on without.
func (w *Switch) Open(ctx context.Context) error {
	s6, err := Open(ctx, w.host, w.with())
	if err == nil {
		w.turnOn(s6)
	}
	return err
}

// TakeOver takes the scan directory over, if the last generation answered as s6. It must be called before the supervisor's loop runs.
func (w *Switch) TakeOver(old *Handover) {
	if old == nil {
		return
	}
	s6, err := TakeOver(w.host, w.with(), old)
	if err != nil {
		w.host.Warn("%v", err)
		return
	}
	w.turnOn(s6)
}

func (w *Switch) turnOn(s6 *S6) {
	w.s6.Store(s6)
	w.follow(s6, s6.Exports())
}

// HandOver returns what the next generation takes over.
func (w *Switch) HandOver() *Handover {
	if s6 := w.On(); s6 != nil {
		return s6.HandOver()
	}
	return nil
}

// Hold is [scandir.Scanner.Hold].
func (w *Switch) Hold() (release func(), err error) {
	if s6 := w.On(); s6 != nil {
		return s6.Hold()
	}
	return func() {}, nil
}

// Start begins the work of a scan directory that was taken over.
func (w *Switch) Start(ctx context.Context) {
	if s6 := w.On(); s6 != nil {
		s6.Start(ctx)
	}
}

// Observe is [scandir.Scanner.Observe].
func (w *Switch) Observe(r supervisor.Record) {
	if s6 := w.On(); s6 != nil {
		s6.Observe(r)
	}
}

// Made is closed when the slots in the queue are made. It is nil where the container does not answer as s6.
func (w *Switch) Made() <-chan struct{} {
	if s6 := w.On(); s6 != nil {
		return s6.Made()
	}
	return nil
}
