package scandir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/s6/foreign"
	"hinit/internal/s6/formats"
)

type slotKind int

const (
	nativeSlot  slotKind = iota // hinit defines the service
	fixedSlot                   // the slot has no service, and always appears as up
	foreignSlot                 // another program has made the directory, which defines a foreign service (package foreign)
)

// Slot is a directory in the scan directory, or the directory of a logger inside it. It is immutable. A re-execution hands over
// all fields except those with the tag "-".
type Slot struct {
	Name    string            // name of the service
	Kind    slotKind          // who defines the service
	ID      fsutil.ID         // identity of the directory
	Link    fsutil.ID         // identity of the link, if the name is a symbolic link
	Exports map[string]string // exports of the run script, if a client has made the slot of this gateway

	Dir          string      `reexec:"-"` // absolute path in the scan directory
	dir          *fsutil.Dir `reexec:"-"` // the open directory; opened as a user who may read it
	reloadSignal int         `reexec:"-"` // signal that asks the service to read its configuration again; 0: SIGHUP
}

// entry is the scanner's record of one name in the scan directory. The scanner removes empty entries.
type entry struct {
	Slot    *Slot            // the slot in this directory; may be nil
	Service *foreign.Service // service of a foreign directory; stays until the service has ended
	Refused fsutil.ID        // identity of a directory that was refused and reported

	firstSeenMaking time.Time         `reexec:"-"` // when the scanner first saw another program make the slot; zero if no program does
	missingFiles    []fsutil.TreeNode `reexec:"-"` // files that must still be added to the slot
}

func (e *entry) copy() *entry {
	c := *e
	c.missingFiles = nil
	if e.Service != nil {
		c.Service = e.Service.Copy()
	}
	return &c
}

// IsNative reports whether hinit defines the service: a gateway, or a service of hinit.yaml.
func (s *Slot) IsNative() bool { return s.Kind == nativeSlot }

// IsFixed reports whether the slot has no service. Such a slot ignores commands and always appears as up.
func (s *Slot) IsFixed() bool { return s.Kind == fixedSlot }

// ReloadSignal returns the signal for reading the configuration of the service again.
func (s *Slot) ReloadSignal() int { return cmp.Or(s.reloadSignal, int(syscall.SIGHUP)) }

// NormallyUp reports whether the service starts with the container: the slot has no down file. It blocks on the file system of
// the scan directory.
func (s *Slot) NormallyUp() bool {
	if s.dir == nil {
		return true
	}
	_, err := s.dir.Lstat(formats.DownFile)
	return errors.Is(err, fs.ErrNotExist)
}

// SetDown creates or removes the down file. It blocks on the file system of the scan directory.
func (s *Slot) SetDown(down bool) error {
	if s.dir == nil || down != s.NormallyUp() {
		return nil
	}
	if down {
		return s.dir.Append(formats.DownFile, nil, 0o644)
	}
	if err := s.dir.Remove(formats.DownFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// hasName reports whether the slot's name in the scan directory still leads to the slot's own directory.
func (s *Slot) hasName(in *fsutil.Dir) bool {
	info, err := in.Lstat(s.Name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return fsutil.IDOf(info) == s.Link
	}
	return s.Link == fsutil.ID{} && fsutil.IDOf(info) == s.ID
}

func (s *Slot) close() {
	if s.dir != nil && s.Kind != foreignSlot {
		_ = s.dir.Close()
	}
}

// slotsOf returns the slots of a foreign service and its logger. named is the service's own slot.
func slotsOf(named *Slot, s *foreign.Service) []*Slot {
	at := func(name string, p *foreign.Directory, link fsutil.ID) *Slot {
		return &Slot{Name: name, Kind: foreignSlot, ID: p.ID, Link: link, Dir: p.Path, dir: p.Dir(), reloadSignal: p.Definition.ReloadSignal}
	}
	slots := []*Slot{at(named.Name, &s.Main, named.Link)}
	if s.LoggerDir != nil {
		slots = append(slots, at(s.LoggerName(), s.LoggerDir, fsutil.ID{}))
	}
	return slots
}

// Files are the scripts that hinit writes into a slot, for people: hinit never runs them.
type Files struct {
	Run    string
	Finish string // script finish; "" for none
	Log    string // script log/run; "" for none
}

// With these modes, the agent's user can query and control a service by the programs of s6 (contract of s6, section 5.1).
const (
	eventMode   = fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o730
	controlMode = fs.ModeNamedPipe | 0o660
)

// definingFiles returns the files that a slot must have when its name appears.
func (f Files) definingFiles(down bool) []fsutil.TreeNode {
	nodes := []fsutil.TreeNode{{Name: formats.RunFile, Mode: 0o755, Data: []byte(f.Run)}}
	if down {
		nodes = append(nodes, fsutil.TreeNode{Name: formats.DownFile, Mode: 0o644})
	}
	return nodes
}

// otherFiles returns the files of a slot that neither hinit nor the agent reads.
func (f Files) otherFiles() []fsutil.TreeNode {
	nodes := []fsutil.TreeNode{{Name: formats.TypeFile, Mode: 0o644, Data: []byte("longrun\n")}}
	if f.Finish != "" {
		nodes = append(nodes, fsutil.TreeNode{Name: formats.FinishFile, Mode: 0o755, Data: []byte(f.Finish)})
	}
	nodes = append(nodes, pipeNodes("")...)
	if f.Log != "" {
		nodes = append(nodes,
			fsutil.TreeNode{Name: formats.LogDir, Mode: fs.ModeDir | 0o755},
			fsutil.TreeNode{Name: formats.LogDir + "/" + formats.RunFile, Mode: 0o755, Data: []byte(f.Log)})
		nodes = append(nodes, pipeNodes(formats.LogDir+"/")...)
	}
	return nodes
}

func pipeNodes(in string) []fsutil.TreeNode {
	return []fsutil.TreeNode{
		{Name: in + "event", Mode: eventMode},
		{Name: in + "supervise", Mode: fs.ModeDir | 0o755},
		{Name: in + "supervise/event", Mode: eventMode},
		{Name: in + "supervise/control", Mode: controlMode},
	}
}

// slotTable is an immutable copy of the scanner's state for readers in other goroutines.
type slotTable struct {
	byName  map[string]*Slot
	byID    map[fsutil.ID]*Slot
	sorted  []*Slot
	entries map[string]*entry // all entries, for HandOver
}

// publish replaces the table by a new one with all present slots. Readers may still use the old table.
func (s *Scanner) publish() {
	t := &slotTable{
		byName: make(map[string]*Slot, len(s.entries)), byID: make(map[fsutil.ID]*Slot, len(s.entries)),
		entries: make(map[string]*entry, len(s.entries)),
	}
	for name, e := range s.entries {
		t.entries[name] = e.copy()
		switch {
		case e.Slot == nil:
		case e.Slot.Kind == foreignSlot:
			t.add(slotsOf(e.Slot, e.Service)...)
		default:
			t.add(e.Slot)
		}
	}
	slices.SortFunc(t.sorted, func(a, b *Slot) int { return strings.Compare(a.Name, b.Name) })
	s.table.Store(t)
	s.removePublished()
}

func (t *slotTable) add(slots ...*Slot) {
	for _, slot := range slots {
		t.byName[slot.Name], t.byID[slot.ID] = slot, slot
		t.sorted = append(t.sorted, slot)
	}
}

// Slots returns all slots sorted by name. It doesn't block.
func (s *Scanner) Slots() []*Slot { return s.table.Load().sorted }

// Exports returns the variables that the run scripts of hinit's own slots export, by slot name. It doesn't block. The caller must
// not change the maps.
func (s *Scanner) Exports() map[string]map[string]string {
	exports := make(map[string]map[string]string)
	for name := range s.queue.definitions() {
		exports[name] = nil
	}
	for _, slot := range s.table.Load().sorted {
		if slot.IsNative() {
			exports[slot.Name] = slot.Exports
		}
	}
	return exports
}

// IsForeign reports whether a foreign service, whose directory another program has made, has this name. It doesn't block.
func (s *Scanner) IsForeign(name string) bool {
	e := s.table.Load().entries[name]
	return e != nil && e.Service != nil && !e.Service.Forgotten
}

// Find returns the slot whose service directory is at path, an absolute path that may contain symbolic links. If the slot is in
// the queue, Find makes it first. If path isn't a slot, the error is a [client.ErrUnknown]. Find blocks on the file system. It
// resolves a path that isn't in the table with the identity of the agent's user.
func (s *Scanner) Find(ctx context.Context, path string) (*Slot, error) {
	path = filepath.Clean(path)
	if err := s.makeIfQueued(ctx, path); err != nil {
		return nil, err
	}
	if name, lexical := strings.CutPrefix(path, s.layout.ScanDir+"/"); lexical {
		if slot := s.table.Load().byName[name]; slot != nil {
			return slot, s.checkPresent(slot)
		}
	}
	if slot := s.slotOfPath(path); slot != nil {
		return slot, s.checkPresent(slot)
	}
	if filepath.Base(path) == formats.LogDir { // path may be the logger directory of one of hinit's services
		if slot := s.slotOfPath(filepath.Dir(path)); slot != nil && slot.IsNative() {
			return &Slot{Name: slot.Name + "/" + formats.LogDir, Dir: slot.Dir + "/" + formats.LogDir, Kind: fixedSlot}, s.checkPresent(slot)
		}
	}
	return nil, notASlotError("no such slot at %q", path)
}

// notASlotError returns the error that a directory isn't the service directory of a supervised service.
func notASlotError(format string, args ...any) error {
	return &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf(format, args...)}
}

// slotOfPath resolves path and returns the slot of that directory, or nil.
func (s *Scanner) slotOfPath(path string) *Slot {
	d, id, err := foreign.Open(path, true, s.layout.foreign)
	if err != nil {
		return nil
	}
	defer d.Close()
	return s.table.Load().byID[id]
}
