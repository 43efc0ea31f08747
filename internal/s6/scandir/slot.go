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
	native kind = iota // the slot of a service that hinit runs
	fixed              // no service: the slot always reports up
	other              // the directory defines its service, see package foreign
)

// Slot is one directory in the scan directory, or the directory of its logger. It is immutable. The fields without a tag pass
// through re-execution.
type Slot struct {
	Name    string            // name of the service
	Kind    kind              //
	ID      foreign.ID        // identity of the directory
	Link    foreign.ID        // identity of the link, if the name is a symbolic link
	Exports map[string]string // variables from the run script, for a gateway whose slot a client has made

	Dir    string      `reexec:"-"` // absolute path in the scan directory
	dir    *fsutil.Dir `reexec:"-"` // the open directory, with the identity of the user who may read it
	reload int         `reexec:"-"` // signal that asks the service to reload its configuration, 0 for SIGHUP
}

// entry is the knowledge of the scanner about a name in the scan directory. The scanner removes empty entries.
type entry struct {
	Slot    *Slot            // nil for none
	Service *foreign.Service // the service that the directory defines; also during its end
	Refused foreign.ID       // a directory that was the subject of a complaint

	making time.Time     `reexec:"-"` // since when another program is making the slot
	rest   []fsutil.Node `reexec:"-"` // nodes that the slot still lacks
}

func (e *entry) empty() bool {
	return e.Slot == nil && e.Service == nil && e.Refused == foreign.ID{} && e.making.IsZero()
}

func (e *entry) copy() *entry {
	c := *e
	c.rest = nil // readers don't need it
	if e.Service != nil {
		c.Service = e.Service.Copy()
	}
	return &c
}

// Native reports whether hinit runs the service: a gateway, or a service of hinit.yaml.
func (s *Slot) Native() bool { return s.Kind == native }

// Fixed reports whether the slot has no service: it always reports up and accepts no command.
func (s *Slot) Fixed() bool { return s.Kind == fixed }

// ReloadSignal returns the signal that makes the service reload its configuration.
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

// SetDown creates or removes the down file. It blocks on the file system of the scan directory.
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

// hasName reports whether the slot's name in the scan directory still means the slot's directory.
func (s *Slot) hasName(in *fsutil.Dir) bool {
	info, err := in.Lstat(s.Name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // after another error the directory counts as unchanged
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return foreign.IDOf(info) == s.Link
	}
	return s.Link == foreign.ID{} && foreign.IDOf(info) == s.ID
}

func (s *Slot) close() {
	if s.dir != nil && s.Kind != other {
		_ = s.dir.Close() // the directory may already be closed
	}
}

// loggerOf returns the slot of the logger of a service whose log hinit writes.
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
