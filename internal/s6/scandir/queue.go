package scandir

import (
	"context"
	"maps"
	"path/filepath"
	"sync"

	"hinit/internal/pause"
	"hinit/internal/s6/formats"
)

// queue holds the slots that still have to be made. The scanner makes them when it is idle, or earlier if a reader needs one. A
// slot that could not be made stays in the queue.
type queue struct {
	wake chan struct{} // holds a token while turns are waiting

	mu    sync.Mutex
	turns []turn                // slots to make, in this order
	open  map[string]definition // by name: slots that are queued, or are made but not yet published
}

// turn is an element of the queue: either the name of a slot to make, or a channel to close when all earlier elements are done.
type turn struct {
	name    string
	reached chan<- struct{}
}

// Enqueue asks the scanner to make the directory for a service of hinit later. It is like [Scanner.Publish], but does not block.
// Errors are reported to the host.
func (s *Scanner) Enqueue(name string, files Files, down bool) {
	s.queue.add(name, definition{Kind: native, Files: files, Down: down, bare: true})
}

// WhenQueued returns a channel that is closed when the scanner has tried to make every slot that is queued at the time of the
// call.
func (s *Scanner) WhenQueued() <-chan struct{} {
	reached := make(chan struct{})
	s.queue.await(turn{reached: reached})
	return reached
}

// makeIfQueued immediately makes the slot of the service directory at path, if the slot is still queued.
func (s *Scanner) makeIfQueued(ctx context.Context, path string) error {
	name := filepath.Base(path)
	if name == formats.LogDir && !s.queue.has(name) {
		name = filepath.Base(filepath.Dir(path))
	}
	if !s.queue.has(name) {
		return nil
	}
	return s.do(ctx, func() {
		s.makeOrReport(name)
		s.publish()
	})
}

func (q *queue) add(name string, d definition) {
	q.setWithoutTurn(name, d)
	q.await(turn{name: name})
}

// setWithoutTurn records the definition of a slot that the caller makes itself, so the scanner need not make it later.
func (q *queue) setWithoutTurn(name string, d definition) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open[name] = d
}

func (q *queue) await(t turn) {
	q.mu.Lock()
	q.turns = append(q.turns, t)
	q.mu.Unlock()
	pause.Wake(q.wake)
}

func (q *queue) has(name string) bool {
	_, open := q.get(name)
	return open
}

func (q *queue) get(name string) (d definition, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, open = q.open[name]
	return d, open
}

// change modifies the definition of a queued slot. It returns false if the slot is not queued.
func (q *queue) change(name string, change func(*definition)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, open := q.open[name]
	if open {
		change(&d)
		q.open[name] = d
	}
	return open
}

// drop removes a slot from the queue, and returns its last definition.
func (q *queue) drop(name string) (d definition, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, open = q.open[name]
	delete(q.open, name)
	return d, open
}

func (q *queue) next() (first turn, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		return turn{}, false
	}
	first, q.turns = q.turns[0], q.turns[1:]
	return first, len(q.turns) > 0
}

func (q *queue) definitions() map[string]definition {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.open)
}

// maxUnpublished is the maximum number of queued slots that are made before the next publish. A publish after each slot would be
// expensive, because its cost grows with the number of slots.
const maxUnpublished = 64

func (s *Scanner) serveQueue() {
	first, more := s.queue.next()
	if first.name != "" {
		s.makeOrReport(first.name)
	}
	if len(s.unseen) > 0 && (!more || first.reached != nil || len(s.unseen) >= maxUnpublished) {
		s.publish()
	}
	if first.reached != nil {
		close(first.reached)
	}
	if more {
		pause.Wake(s.queue.wake)
	}
}

func (s *Scanner) makeOrReport(name string) {
	if err := s.makeQueued(name); err != nil {
		s.host.Say("%v", err)
	}
}

type madeSlot struct {
	name string
	down bool // the slot was made with a down file
}

// removePublished removes the slots that were just published from the queue. If SetDown was called for a slot after it had been
// made, removePublished now changes its down file.
func (s *Scanner) removePublished() {
	unseen := s.unseen
	s.unseen = nil
	for _, m := range unseen {
		d, open := s.queue.drop(m.name)
		e := s.entries[m.name]
		if open && d.Down != m.down && e != nil && e.Slot != nil {
			s.setDown(e.Slot, d.Down)
		}
	}
}

// completeNext adds the remaining files to a slot that has only its defining files. The scanner calls it when idle, because it
// must not delay the end of the container. On an overlay file system, for example, it can take longer than a short CMD.
func (s *Scanner) completeNext() {
	for _, e := range s.entries {
		if e.rest != nil {
			s.complete(e)
			s.idle.Reset(0)
			return
		}
	}
}

func (s *Scanner) complete(e *entry) {
	nodes := e.rest
	e.rest = nil
	if len(nodes) == 0 {
		return
	}
	if err := e.Slot.dir.AddNodes(nodes); err != nil && s.nameUnchanged(e.Slot) {
		s.host.Say("cannot complete the slot of %s: %v", e.Slot.Name, err)
	}
}
