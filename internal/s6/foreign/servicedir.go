package foreign

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

// Directory is a directory that defines a service or a logger. A re-execution hands over all fields except those with the tag
// "-".
type Directory struct {
	Path      string // path in the scan directory
	ID        fsutil.ID
	Root      bool     // the service in this directory runs as root
	Pin       *os.File // if Root: the open directory from which the service runs, even if another directory now has its name
	Complaint string   `reexec:"Said"` // last reported error about the directory

	Definition   formats.Definition `reexec:"-"` // content of the directory when it was last read
	dir          *fsutil.Dir        `reexec:"-"` // opened as the user of the service; nil after a failure in a re-execution
	isSymlink    bool               `reexec:"-"` // Path is a symbolic link
	unregistered bool               `reexec:"-"` // the supervisor doesn't know this directory yet
}

// Dir returns the open directory, or nil if it isn't open.
func (p *Directory) Dir() *fsutil.Dir { return p.dir }

func (p *Directory) closeDir() {
	if p.dir != nil {
		_ = p.dir.Close()
		p.dir = nil
	}
}

func (p *Directory) close() {
	if p == nil {
		return
	}
	p.closeDir()
	// The supervisor may still run the finish program from the pin. The garbage collector closes it.
	p.Pin = nil
}

// open opens a service directory, and decides whether its service runs as root or as the agent. It opens a link with the
// identity of the agent's user, because the agent may have made the link.
func (s *Service) open(path string, link bool) (*Directory, error) {
	_, agent := s.scanner.Agent()
	p := &Directory{Path: path, isSymlink: link, unregistered: true}
	var err error
	if !link && agent.SwitchesIdentity() {
		p.dir, p.ID, p.Pin, err = s.openIfRootOwned(path)
	}
	p.Root = p.dir != nil
	if !p.Root && err == nil {
		p.dir, p.ID, err = Open(path, link, agent)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Open opens the directory at path with the identity as, and returns its ID. path may be a symbolic link only if link is true.
func Open(path string, link bool, as *fsutil.Actor) (*fsutil.Dir, fsutil.ID, error) {
	open := fsutil.OpenNoLink
	if link {
		open = fsutil.OpenDir
	}
	d, err := open(path, as)
	if err != nil {
		return nil, fsutil.ID{}, err
	}
	info, err := d.Lstat("")
	if err != nil {
		return nil, fsutil.ID{}, errors.Join(err, d.Close())
	}
	return d, fsutil.IDOf(info), nil
}

// checkLogger returns an error if another directory has replaced the logger's directory since the service's directory was opened.
func (p *Directory) checkLogger(logs *Directory) error {
	if p.dir == nil {
		return errors.New("its service's directory is not open")
	}
	info, err := p.dir.Lstat(formats.LogDir)
	if err == nil && fsutil.IDOf(info) != logs.ID {
		err = errors.New("it was replaced while it was looked at")
	}
	return err
}

// openIfRootOwned opens a service directory and its pin if only root can have written to the directory, so that its service
// may run as root. The service runs from the pin, an open directory that no other directory can replace. For any other
// directory it returns nil.
func (s *Service) openIfRootOwned(path string) (*fsutil.Dir, fsutil.ID, *os.File, error) {
	d, id, err := Open(path, false, fsutil.ProcessActor().WithPool(blocking.Foreign))
	if err != nil {
		return nil, fsutil.ID{}, nil, err
	}
	if what, owned := findWritableByOthers(d); what != "" {
		if owned {
			s.scanner.Say("%s: it is not run as root, because %s; only a directory that root alone can write is", path, what)
		}
		return nil, fsutil.ID{}, nil, d.Close()
	}
	pin, err := blocking.Get(blocking.Foreign, func() (*os.File, error) {
		return os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fsutil.ID{}, nil, errors.Join(err, d.Close())
	}
	if pinned, err := pin.Stat(); err != nil || id != fsutil.IDOf(pinned) {
		return nil, fsutil.ID{}, nil, errors.Join(errors.New("it was replaced while it was looked at"), err, d.Close(), pin.Close())
	}
	return d, id, pin, nil
}

// recheckOwner repeats the ownership check of a directory. If its service must now run as another user, it closes p and returns
// a new Directory. Otherwise it returns nil.
func (s *Service) recheckOwner(p *Directory) *Directory {
	if _, agent := s.scanner.Agent(); p.dir == nil || p.isSymlink || !agent.SwitchesIdentity() {
		return nil
	}
	what, _ := findWritableByOthers(p.dir)
	if (what == "") == p.Root {
		return nil
	}
	next, err := s.open(p.Path, false)
	switch {
	case err != nil && p.Root: // the service can't run as the agent, because the agent's user can't open the directory
		return &Directory{dir: p.dir, ID: p.ID, Path: p.Path, Complaint: p.Complaint, unregistered: true}
	case err != nil:
		return nil
	case next.ID != p.ID || next.Root == p.Root:
		next.close()
		return nil // another program is changing the directory: wait for the next check
	}
	p.close()
	next.Complaint = p.Complaint
	return next
}

// reopen opens the directory of p again after a re-execution. If another directory now has its name, p stays without an open
// directory. A symbolic link may have a new target.
func (p *Directory) reopen(link bool, agent *fsutil.Actor) {
	if p.Root {
		agent = fsutil.ProcessActor().WithPool(blocking.Foreign)
	}
	dir, id, err := Open(p.Path, link, agent)
	switch {
	case err != nil:
	case !link && id != p.ID:
		_ = dir.Close() // the name now leads to another directory
	default:
		p.dir, p.ID, p.isSymlink = dir, id, link
	}
}

// mayRecordDeaths reports whether hinit may write the record of ended runs into the directory. For root's service, it may not if
// other users can change the subdirectory supervise.
func (p *Directory) mayRecordDeaths() bool {
	if !p.Root {
		return true
	}
	for _, name := range []string{"", filepath.Dir(formats.TallyFile)} {
		info, err := p.dir.Lstat(name)
		if name != "" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || whyWritable(info) != "" {
			return false
		}
	}
	return true
}
