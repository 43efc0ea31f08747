package scandir

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"hinit/internal/s6"
)

// offers are the slots that the scanner makes when it has nothing better to do, or as soon as somebody looks for one.
type offers struct {
	wake chan struct{} // has one while there is something in the line

	mu   sync.Mutex
	line []offer              // what is to be made, in order
	open map[string]postponed // what is in the line, or made and not shown to readers yet, by name
}

// offer is a place in the line: a slot by its name, or who waits for those before it.
type offer struct {
	name    string
	reached chan<- struct{}
}

func newOffers() *offers {
	return &offers{wake: make(chan struct{}, 1), open: make(map[string]postponed)}
}

// Offer makes the directory of a service that hinit runs by itself, like [Scanner.Publish], some time after it has returned. It
// does not block. What goes wrong is told to the host.
func (s *Scanner) Offer(name string, files Files, down bool) {
	s.offers.add(name, postponed{kind: native, files: files, down: down})
}

// Offered returns a channel that is closed when what was offered so far is made, or could not be.
func (s *Scanner) Offered() <-chan struct{} {
	reached := make(chan struct{})
	s.offers.mu.Lock()
	s.offers.line = append(s.offers.line, offer{reached: reached})
	s.offers.mu.Unlock()
	s.offers.ring()
	return reached
}

// Need makes the slot of a service directory now if it was offered and is not made yet, and does nothing else. It blocks on the file
// system of the scan directory.
func (s *Scanner) Need(ctx context.Context, path string) error {
	name := filepath.Base(path)
	if name == s6.LogDir && !s.offers.has(name) {
		name = filepath.Base(filepath.Dir(path))
	}
	if !s.offers.has(name) {
		return nil
	}
	return s.do(ctx, func() {
		s.makeOffer(name)
		s.publish()
	})
}

func (o *offers) add(name string, p postponed) {
	o.mu.Lock()
	o.open[name] = p
	o.line = append(o.line, offer{name: name})
	o.mu.Unlock()
	o.ring()
}

// ring says that there is something in the line.
func (o *offers) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *offers) has(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, open := o.open[name]
	return open
}

func (o *offers) get(name string) (p postponed, open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, open = o.open[name]
	return p, open
}

// setDown changes an offer. It returns false when there is none.
func (o *offers) setDown(name string, down bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, open := o.open[name]
	if open {
		p.down = down
		o.open[name] = p
	}
	return open
}

// drop takes an offer back and returns it as it was last.
func (o *offers) drop(name string) (p postponed, open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, open = o.open[name]
	delete(o.open, name)
	return p, open
}

// next takes the first place of the line out of it. more says that there are others.
func (o *offers) next() (first offer, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.line) == 0 {
		return offer{}, false
	}
	first, o.line = o.line[0], o.line[1:]
	return first, len(o.line) > 0
}

// all returns a copy of what is open.
func (o *offers) all() map[string]postponed {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.open)
}

// unseenMost is how many slots that were offered are made before readers see them. To show them costs as much as there are slots.
const unseenMost = 64

// serveOffers makes the next slot of the line.
func (s *Scanner) serveOffers() {
	first, more := s.offers.next()
	if first.name != "" {
		s.makeOffer(first.name)
	}
	if len(s.unseen) > 0 && (!more || first.reached != nil || len(s.unseen) >= unseenMost) {
		s.publish()
	}
	if first.reached != nil {
		close(first.reached)
	}
	if more {
		s.offers.ring()
	}
}

// makeOffer makes the slot that was offered under a name, unless it is made already. It is open until the next publishing.
func (s *Scanner) makeOffer(name string) {
	p, open := s.offers.get(name)
	if !open || slices.ContainsFunc(s.unseen, func(m made) bool { return m.name == name }) {
		return
	}
	err := s.make(name, p.kind, p.files, p.down)
	if err != nil {
		s.host.Say("cannot make the slot of %s: %v", name, err)
	}
	s.retry(name, p, err)
	s.unseen = append(s.unseen, made{name, p.down})
}

// made is a slot that readers do not see yet.
type made struct {
	name string
	down bool // as it was made
}

// shown ends the offers that readers see as slots from now on, and writes down what was said of them since they were made.
func (s *Scanner) shown() {
	unseen := s.unseen
	s.unseen = nil
	for _, m := range unseen {
		p, open := s.offers.drop(m.name)
		if !open || p.down == m.down {
			continue
		}
		if later, waits := s.later[m.name]; waits {
			later.down = p.down
			s.later[m.name] = later
		} else if slot := s.slots[m.name]; slot != nil {
			if err := slot.SetDown(p.down); err != nil {
				s.host.Say("cannot change the down file of %s: %v", m.name, err)
			}
		}
	}
}
