package scandir

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/fsutil"
	"hinit/internal/s6/foreign"
	"hinit/internal/s6/formats"
)

// table is the scanner's state for readers in other goroutines. It is immutable.
type table struct {
	byName  map[string]*Slot
	byID    map[fsutil.ID]*Slot
	sorted  []*Slot
	entries map[string]*entry // the state to hand over at re-execution
}

func (s *Scanner) publish() {
	t := &table{
		byName: make(map[string]*Slot, len(s.entries)), byID: make(map[fsutil.ID]*Slot, len(s.entries)),
		entries: make(map[string]*entry, len(s.entries)),
	}
	for name, e := range s.entries {
		t.entries[name] = e.copy()
		switch {
		case e.Slot == nil:
		case e.Slot.Kind == other:
			t.add(slotsOf(e.Slot, e.Service)...)
		default:
			t.add(e.Slot)
		}
	}
	slices.SortFunc(t.sorted, func(a, b *Slot) int { return strings.Compare(a.Name, b.Name) })
	s.table.Store(t)
	s.removePublished()
}

func (t *table) add(slots ...*Slot) {
	for _, slot := range slots {
		t.byName[slot.Name], t.byID[slot.ID] = slot, slot
		t.sorted = append(t.sorted, slot)
	}
}

// Slots returns all slots sorted by name. It does not block.
func (s *Scanner) Slots() []*Slot { return s.table.Load().sorted }

// Exports returns the variables that the run scripts of hinit's own slots export, by slot name. It does not block. The caller
// must not change the maps.
func (s *Scanner) Exports() map[string]map[string]string {
	exports := make(map[string]map[string]string)
	for name := range s.queue.definitions() {
		exports[name] = nil
	}
	for _, slot := range s.table.Load().sorted {
		if slot.Native() {
			exports[slot.Name] = slot.Exports
		}
	}
	return exports
}

// Foreign reports whether a foreign service has the given name, that is, a service that another program's directory defines. It
// does not block.
func (s *Scanner) Foreign(name string) bool {
	e := s.table.Load().entries[name]
	return e != nil && e.Service != nil && !e.Service.Left
}

// Find returns the slot of the service directory at an absolute path, which may contain symbolic links. If the slot is still
// queued, Find makes it first. If path is not a slot's directory, the error wraps [ErrUnknown]. Find blocks on the file system. A
// path that is not in the table is resolved as the agent's user.
func (s *Scanner) Find(ctx context.Context, path string) (*Slot, error) {
	path = filepath.Clean(path)
	if err := s.makeIfQueued(ctx, path); err != nil {
		return nil, err
	}
	if name, lexical := strings.CutPrefix(path, s.layout.Scan+"/"); lexical {
		if slot := s.table.Load().byName[name]; slot != nil {
			return slot, s.checkPresent(slot)
		}
	}
	if slot := s.sameAs(path); slot != nil {
		return slot, s.checkPresent(slot)
	}
	if filepath.Base(path) == formats.LogDir { // path may be the logger directory of a service of hinit
		if slot := s.sameAs(filepath.Dir(path)); slot != nil && slot.Native() {
			return &Slot{Name: slot.Name + "/" + formats.LogDir, Dir: slot.Dir + "/" + formats.LogDir, Kind: fixed}, s.checkPresent(slot)
		}
	}
	return nil, fmt.Errorf("%w at %q", ErrUnknown, path)
}

// sameAs resolves path and returns the slot of that directory, or nil.
func (s *Scanner) sameAs(path string) *Slot {
	d, id, err := foreign.Open(path, true, s.layout.foreign)
	if err != nil {
		return nil
	}
	defer d.Close()
	return s.table.Load().byID[id]
}
