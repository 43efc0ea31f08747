package lease

import (
	"io"
	"os"
	"time"
)

// Handover is what a lease tells that of the next generation of this process.
type Handover struct {
	Self    Holder `reexec:",json"`
	Status  Status `reexec:",json"`
	Renewed time.Duration
	Beats   uint64
	Local   bool
	Lock    *os.File `reexec:"FD"`
}

// HandOver returns what a successor needs to go on. It doesn't block.
func (l *Lease) HandOver() *Handover {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := &Handover{Self: l.self, Status: l.status, Renewed: l.renewed, Beats: l.beats, Local: l.local}
	if l.local {
		old.Renewed = l.looked
		now := l.env.now()
		if l.notifier != nil && !l.paused && !l.late(now) && !l.pending() { // a look would see nothing new
			old.Renewed = now
		}
	}
	if f, ok := l.lock.(*os.File); ok && l.status.State == Held {
		old.Lock = f
	}
	return old
}

// TakeOver goes on for another lease.
func (l *Lease) TakeOver(old *Handover) {
	l.self = old.Self
	if old.Status.State != Held {
		l.status = old.Status
		return
	}
	var lock io.Closer
	if old.Lock != nil {
		lock = old.Lock
	}
	l.hold(record{Epoch: old.Status.Epoch, Beat: old.Beats, Holder: old.Status.Holder}, lock, old.Renewed, old.Local || lock != nil)
}
