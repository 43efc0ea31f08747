package foreign

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

// ID identifies a directory, whatever its name.
type ID struct {
	Dev uint64 `reexec:"dev"`
	Ino uint64 `reexec:"ino"`
}

// IDOf returns the ID of a file.
func IDOf(info fs.FileInfo) ID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ID{}
	}
	return ID{st.Dev, st.Ino}
}

// Place is one directory that defines a service. Fields without a tag are handed over.
type Place struct {
	Path      string // as the scan directory has it
	ID        ID
	Root      bool     // it is run as root
	Pin       *os.File // of a root's one: what it is run from, whatever its name means by then
	Complaint string   `reexec:"Said"` // what was last complained about

	Definition formats.Definition `reexec:"-"` // as it was last read
	dir        *fsutil.Dir        `reexec:"-"` // open as who runs it; nil when a successor could not open it
	link       bool               `reexec:"-"` // Path is a link to it
	moved      bool               `reexec:"-"` // the supervisor has not heard of this directory yet
}

// Dir is the open directory, nil when there is none.
func (p *Place) Dir() *fsutil.Dir { return p.dir }

func (p *Place) shut() {
	if p.dir != nil {
		_ = p.dir.Close() // a directory
		p.dir = nil
	}
}

func (p *Place) close() {
	if p == nil {
		return
	}
	p.shut()
	// Not closed: the supervisor still runs the finish program from the pin. The garbage collector closes it.
	p.Pin = nil
}

// open opens a service directory and decides as whom it is run. A link is followed as the agent's user, who may have made it.
func (s *Service) open(path string, link bool) (*Place, error) {
	_, agent := s.scanner.Agent()
	p := &Place{Path: path, link: link, moved: true}
	var err error
	if !link && agent.Switches() {
		if p.dir, p.ID, p.Pin, err = s.openRoots(path); err != nil {
			return nil, err
		}
	}
	if p.Root = p.dir != nil; p.Root {
		return p, nil
	}
	if p.dir, p.ID, err = Open(path, link, agent); err != nil {
		return nil, err
	}
	return p, nil
}

// Open opens a directory and returns its ID. Only with link may path be a symbolic link.
func Open(path string, link bool, as *fsutil.Actor) (*fsutil.Dir, ID, error) {
	open := fsutil.OpenReal
	if link {
		open = fsutil.OpenDir
	}
	d, err := open(path, as)
	if err != nil {
		return nil, ID{}, err
	}
	info, err := d.Lstat("")
	if err != nil {
		return nil, ID{}, errors.Join(err, d.Close())
	}
	return d, IDOf(info), nil
}

// holds refuses a logger's directory that was replaced since its service's directory was opened.
func (p *Place) holds(logs *Place) error {
	if p.dir == nil {
		return errors.New("its service's directory is not open")
	}
	info, err := p.dir.Lstat(formats.LogDir)
	if err == nil && IDOf(info) != logs.ID {
		err = errors.New("it was replaced while it was looked at")
	}
	return err
}

// openRoots opens a service directory as root if only root can have written it, and pins it. The service runs from the pin, so
// the directory can't be replaced. Otherwise it returns none.
func (s *Service) openRoots(path string) (*fsutil.Dir, ID, *os.File, error) {
	d, id, err := Open(path, false, fsutil.Self().In(blocking.Foreign))
	if err != nil {
		return nil, ID{}, nil, err
	}
	if what, owned := writtenByOthers(d); what != "" {
		if owned {
			s.scanner.Say("%s: it is not run as root, because %s; only a directory that root alone can write is", path, what)
		}
		return nil, ID{}, nil, d.Close()
	}
	var pin *os.File
	err = blocking.Do(blocking.Foreign, func() (err error) {
		pin, err = os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, ID{}, nil, errors.Join(err, d.Close())
	}
	if pinned, err := pin.Stat(); err != nil || id != IDOf(pinned) {
		return nil, ID{}, nil, errors.Join(errors.New("it was replaced while it was looked at"), err, d.Close(), pin.Close())
	}
	return d, id, pin, nil
}

// reopened repeats the ownership check. When its answer has changed, it returns a new place and closes the old one; otherwise nil.
func (s *Service) reopened(p *Place) *Place {
	if _, agent := s.scanner.Agent(); p.dir == nil || p.link || !agent.Switches() {
		return nil
	}
	what, _ := writtenByOthers(p.dir)
	if (what == "") == p.Root {
		return nil
	}
	next, err := s.open(p.Path, false)
	switch {
	case err != nil && p.Root: // the agent's user can't open it, so as that user it can't be run either
		return &Place{dir: p.dir, ID: p.ID, Path: p.Path, Complaint: p.Complaint, moved: true}
	case err != nil:
		return nil
	case next.ID != p.ID || next.Root == p.Root:
		next.close()
		return nil // it is another one, or is being changed; the next look will tell
	}
	p.close()
	next.Complaint = p.Complaint
	return next
}

// reopen opens the directory again if its name still means it. A link may lead to another directory now.
func (p *Place) reopen(link bool, agent *fsutil.Actor) {
	if p.Root {
		agent = fsutil.Self().In(blocking.Foreign)
	}
	dir, id, err := Open(p.Path, link, agent)
	switch {
	case err != nil:
	case !link && id != p.ID:
		_ = dir.Close() // it is another one
	default:
		p.dir, p.ID, p.link = dir, id, link
	}
}

// mayCount reports whether deaths may be counted in a place. In a directory that is run as root, supervise may still be the
// agent's.
func (p *Place) mayCount() bool {
	if !p.Root {
		return true
	}
	for _, name := range []string{"", filepath.Dir(formats.TallyFile)} {
		info, err := p.dir.Lstat(name)
		if name != "" && errors.Is(err, fs.ErrNotExist) {
			continue // it will be root's
		}
		if err != nil || writable(info) != "" {
			return false
		}
	}
	return true
}
