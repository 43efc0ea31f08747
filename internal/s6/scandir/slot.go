package scandir

import (
	"errors"
	"io/fs"
	"syscall"

	"hinit/internal/fsutil"
	"hinit/internal/s6"
)

// kind is what a slot is.
type kind int

const (
	native  kind = iota // a service that hinit has anyway
	fixed               // no service at all: it answers as up
	foreign             // a directory that defines its service
)

// Slot is one directory of the scan directory, or its logger. It is immutable.
type Slot struct {
	Name string // of the service
	Dir  string // absolute path, as the scan directory has it

	kind       kind
	id         fileID      // of the directory
	link       fileID      // of the name, when that is a symbolic link
	dir        *fsutil.Dir // the open directory, as who may read it
	definition s6.Definition
	pair       *pair             // of a foreign one
	exports    map[string]string // by run, of a gateway that somebody has registered
}

// Native says that hinit has the service anyway: a gateway or a service of hinit.yaml.
func (s *Slot) Native() bool { return s.kind == native }

// Fixed says that there is no service: the slot answers as up and takes no command.
func (s *Slot) Fixed() bool { return s.kind == fixed }

// ReloadSignal is the signal that asks the service to read its configuration anew.
func (s *Slot) ReloadSignal() int {
	if s.kind == foreign {
		return s.definition.ReloadSignal
	}
	return int(syscall.SIGHUP)
}

// NormallyUp says whether it starts by itself. It blocks on the file system of the scan directory.
func (s *Slot) NormallyUp() bool {
	if s.dir == nil {
		return true
	}
	_, err := s.dir.Lstat(s6.DownFile)
	return errors.Is(err, fs.ErrNotExist)
}

// SetDown makes or removes the down file. It blocks on the file system of the scan directory.
func (s *Slot) SetDown(down bool) error {
	if s.dir == nil || down != s.NormallyUp() {
		return nil
	}
	if down {
		_, err := s.dir.Append(s6.DownFile, nil, 0o644)
		return err
	}
	if err := s.dir.Remove(s6.DownFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type fileID struct{ dev, ino uint64 }

func idOf(info fs.FileInfo) fileID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}
	}
	return fileID{st.Dev, st.Ino}
}

func (s *Slot) close() {
	if s.dir != nil {
		_ = s.dir.Close() // it may be closed already
	}
}

// loggerOf is the logger of a service whose log hinit writes itself.
func loggerOf(slot *Slot) *Slot {
	return &Slot{Name: slot.Name + "/" + s6.LogDir, Dir: slot.Dir + "/" + s6.LogDir, kind: fixed}
}
