package personality

import (
	"context"
	"sync/atomic"

	"hinit/internal/registry"
	"hinit/internal/s6/scandir"
	"hinit/supervisor"
)

// Handover is the state of the scan directory that is handed over at re-execution.
type Handover = scandir.Handover

// Switch turns the s6 personality of a container on. The personality is on after a successful Open or TakeOver; until then the
// other methods do nothing. The methods may be called from any goroutine.
type Switch struct {
	host        Host
	addFollower func(f registry.Follower, exports map[string]map[string]string)
	settings    func() Settings
	s6          atomic.Pointer[S6]
}

// NewSwitch returns a Switch that is off. When the personality is turned on, the Switch calls addFollower with the personality
// and with the variables that each slot's script exports. addFollower must make the registry report all slots to the personality.
func NewSwitch(host Host, addFollower func(registry.Follower, map[string]map[string]string), with func() Settings) *Switch {
	return &Switch{host: host, addFollower: addFollower, settings: with}
}

// On returns the personality, or nil while it is off.
func (w *Switch) On() *S6 { return w.s6.Load() }

// Open creates the directories of s6, and acts as s6 until ctx ends. After an error hinit continues without the personality.
func (w *Switch) Open(ctx context.Context) error {
	s6, err := Open(ctx, w.host, w.settings())
	if err == nil {
		w.activate(s6)
	}
	return err
}

// TakeOver continues with the scan directory of the program before a re-execution, if that program acted as s6. Call it before
// the supervisor's loop runs.
func (w *Switch) TakeOver(old *Handover) {
	if old == nil {
		return
	}
	s6, err := TakeOver(w.host, w.settings(), old)
	if err != nil {
		w.host.Warn("%v", err)
		return
	}
	w.activate(s6)
}

func (w *Switch) activate(s6 *S6) {
	w.s6.Store(s6)
	w.addFollower(s6, s6.Exports())
}

// HandOver returns the state that the program after a re-execution needs. It returns nil while the personality is off.
func (w *Switch) HandOver() *Handover {
	if s6 := w.On(); s6 != nil {
		return s6.HandOver()
	}
	return nil
}

// Hold stops the scanner for a re-execution, see [scandir.Scanner.Hold].
func (w *Switch) Hold() (release func(), err error) {
	if s6 := w.On(); s6 != nil {
		return s6.Hold()
	}
	return func() {}, nil
}

// Start begins the scanner's work after a re-execution.
func (w *Switch) Start(ctx context.Context) {
	if s6 := w.On(); s6 != nil {
		s6.Start(ctx)
	}
}

// Observe passes a record from the supervisor to the scanner, see [scandir.Scanner.Observe].
func (w *Switch) Observe(r supervisor.Record) {
	if s6 := w.On(); s6 != nil {
		s6.Observe(r)
	}
}

// Made returns a channel that is closed when all slots that are queued at the time of the call have been made. The channel is nil
// while the personality is off.
func (w *Switch) Made() <-chan struct{} {
	if s6 := w.On(); s6 != nil {
		return s6.WhenQueued()
	}
	return nil
}
