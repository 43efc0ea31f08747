package scandir

import (
	"cmp"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/s6/foreign"
	"hinit/internal/s6/formats"
)

type kind int

const (
	native kind = iota // a service that hinit has anyway
	fixed              // no service at all: it answers as up
	other              // a directory that defines its service, see package foreign
)

// Slot is one directory of the scan directory, or its logger. It is immutable. Fields without a tag are handed over.
type Slot struct {
	Name    string            // of the service
	Kind    kind              //
	ID      foreign.ID        // of the directory
	Link    foreign.ID        // of the name, when that is a symbolic link
	Exports map[string]string // by run, of a gateway that somebody has registered

	Dir    string      `reexec:"-"` // absolute path, as the scan directory has it
	dir    *fsutil.Dir `reexec:"-"` // the open directory, as who may read it
	reload int         `reexec:"-"` // signal that asks the service to read its configuration anew, 0 for the usual one
}

// entry is everything the scanner knows of a name in the scan directory. Empty entries are removed.
type entry struct {
	Slot    *Slot            // nil when there is none
	Service *foreign.Service // of a directory that defines one, also while it is on its way out
	Refused foreign.ID       // the directory was complained about

	making time.Time     `reexec:"-"` // somebody else is making the slot, since then
	rest   []fsutil.Node `reexec:"-"` // what the slot is still to be completed with
}

func (e *entry) empty() bool {
	return e.Slot == nil && e.Service == nil && e.Refused == foreign.ID{} && e.making.IsZero()
}

func (e *entry) copy() *entry {
	c := *e
	c.rest = nil // it is not read, and would stay in memory
	if e.Service != nil {
		c.Service = e.Service.Copy()
	}
	return &c
}

// Native reports whether hinit runs the service: a gateway, or a service of hinit.yaml.
func (s *Slot) Native() bool { return s.Kind == native }

// Fixed reports whether there is no service: the slot answers as up and takes no command.
func (s *Slot) Fixed() bool { return s.Kind == fixed }

// ReloadSignal returns the signal that makes the service read its configuration again.
func (s *Slot) ReloadSignal() int {
	return cmp.Or(s.reload, int(syscall.SIGHUP))
}

// NormallyUp reports whether the service starts with the container. It blocks on the file system of the scan directory.
func (s *Slot) NormallyUp() bool {
	if s.dir == nil {
		return true
	}
	_, err := s.dir.Lstat(formats.DownFile)
	return errors.Is(err, fs.ErrNotExist)
}

// SetDown makes or removes the down file. It blocks on the file system of the scan directory.
func (s *Slot) SetDown(down bool) error {
	if s.dir == nil || down != s.NormallyUp() {
		return nil
	}
	if down {
		_, err := s.dir.Append(formats.DownFile, nil, 0o644)
		return err
	}
	if err := s.dir.Remove(formats.DownFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// named reports whether the slot's name in the scan directory still means the slot's directory.
func (s *Slot) named(in *fsutil.Dir) bool {
	info, err := in.Lstat(s.Name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // what can't be looked at is not gone for that
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return foreign.IDOf(info) == s.Link
	}
	return s.Link == foreign.ID{} && foreign.IDOf(info) == s.ID
}

func (s *Slot) close() {
	if s.dir != nil && s.Kind != other {
		_ = s.dir.Close() // it may be closed already
	}
}

// loggerOf returns the logger of a service whose log hinit writes.
func loggerOf(slot *Slot) *Slot {
	return &Slot{Name: slot.Name + "/" + formats.LogDir, Dir: slot.Dir + "/" + formats.LogDir, Kind: fixed}
}

// slotsOf returns the slots of a foreign service and of its logger.
func slotsOf(named *Slot, s *foreign.Service) []*Slot {
	at := func(name string, p *foreign.Place, link foreign.ID) *Slot {
		return &Slot{Name: name, Kind: other, ID: p.ID, Link: link, Dir: p.Path, dir: p.Dir(), reload: p.Definition.ReloadSignal}
	}
	slots := []*Slot{at(named.Name, &s.Main, named.Link)}
	if s.Logs != nil {
		slots = append(slots, at(s.LoggerName(), s.Logs, foreign.ID{}))
	}
	return slots
}
