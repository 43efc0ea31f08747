package runs

import (
	"slices"
)

// Handover is the state of a Tracker for the next program of a re-execution.
type Handover struct {
	Instance string
	Next     uint64
	Seq      uint64
	Live     []entry
	Ended    []entry
}

// HandOver returns the state that TakeOver needs in the program after a re-execution. It includes runs that are still being
// started.
func (b *Tracker) HandOver() *Handover {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &Handover{Instance: b.instance, Next: b.nextID, Seq: b.changeSeq}
	for _, e := range b.live {
		h.Live = append(h.Live, *e)
	}
	for _, e := range b.ended {
		h.Ended = append(h.Ended, *e)
	}
	return h
}

// TakeOver gives a new Tracker the state of an old one. Call it before Attach.
func (b *Tracker) TakeOver(h *Handover) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instance, b.nextID, b.changeSeq = h.Instance, h.Next, h.Seq
	started := make(chan struct{})
	close(started)
	for _, e := range slices.Concat(h.Live, h.Ended) {
		e.startDone, e.started = started, true
		b.byTag[e.Tag] = &e
		if e.End == nil {
			b.live[e.ID] = &e
			continue
		}
		b.ended = append(b.ended, &e)
	}
}
