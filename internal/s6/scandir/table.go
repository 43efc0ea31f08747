package scandir

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/fsutil"
	"hinit/internal/s6"
)

// table is what readers see: all slots and, apart, those beneath them, by name and by directory.
type table struct {
	byName map[string]*Slot
	byID   map[fileID]*Slot
	sorted []*Slot
	// foreign are the names of the foreign services, those on their way out too.
	foreign map[string]bool
	kept    kept
}

// publish shows readers what there is now.
func (s *Scanner) publish() {
	t := &table{
		byName: make(map[string]*Slot, len(s.slots)), byID: make(map[fileID]*Slot, len(s.slots)),
		foreign: make(map[string]bool, len(s.pairs)), kept: s.keep(),
	}
	for name := range s.pairs {
		t.foreign[name] = true
	}
	for _, slot := range s.slots {
		t.add(slot)
		if p := slot.pair; p != nil && p.logger != nil {
			t.add(p.logger)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.byName)) {
		t.sorted = append(t.sorted, t.byName[name])
	}
	s.table.Store(t)
	s.shown()
}

func (t *table) add(slot *Slot) {
	t.byName[slot.Name] = slot
	t.byID[slot.id] = slot
}

// Slots returns all slots in the order of their names. It does not block.
func (s *Scanner) Slots() []*Slot { return s.table.Load().sorted }

// Has says whether there is a slot of that name, or one is offered. It does not block.
func (s *Scanner) Has(name string) bool {
	return s.offers.has(name) || s.table.Load().byName[name] != nil
}

// Exports returns what the run of a gateway exports that somebody has registered, nil for any other service. It does not
// block. The map must not be changed.
func (s *Scanner) Exports(name string) map[string]string {
	if slot := s.table.Load().byName[name]; slot != nil {
		return slot.exports
	}
	return nil
}

// Foreign says whether a directory that somebody else has made defines a service of that name. It does not block.
func (s *Scanner) Foreign(name string) bool { return s.table.Load().foreign[name] }

// Find returns the slot of a service directory, which may be reached through links; path is absolute. The error wraps
// [ErrUnknown] when there is none. It blocks on the file system as the agent's user.
func (s *Scanner) Find(path string) (*Slot, error) {
	path = filepath.Clean(path)
	t := s.table.Load()
	name, lexical := strings.CutPrefix(path, s.ground.Scan+"/")
	if lexical {
		if slot := t.byName[name]; slot != nil {
			return slot, s.present(slot)
		}
	}
	if parent := t.byName[filepath.Dir(name)]; lexical && parent != nil && filepath.Base(name) == s6.LogDir && parent.kind == native {
		return loggerOf(parent), s.present(parent)
	}
	d, err := fsutil.OpenDir(path, s.ground.foreign)
	if err != nil {
		return nil, fmt.Errorf("%w at %q", ErrUnknown, path)
	}
	defer d.Close()
	info, err := d.Lstat("")
	if err != nil {
		return nil, fmt.Errorf("%w at %q", ErrUnknown, path)
	}
	if slot := t.byID[idOf(info)]; slot != nil {
		return slot, s.present(slot)
	}
	if filepath.Base(path) == s6.LogDir {
		if parent, err := s.Find(filepath.Dir(path)); err == nil && parent.kind == native {
			return loggerOf(parent), nil
		}
	}
	return nil, fmt.Errorf("%w at %q", ErrUnknown, path)
}
