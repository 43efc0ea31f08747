package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"hinit/internal/fsutil"
)

// Names in the volume's root (contract, section 4).
const (
	profilesDir = "profiles"
	activeFile  = "active_profile"
)

// Profile is one agent profile.
type Profile struct {
	Name string // "default" or the name of the directory
	Home string // absolute path, for configuration given to others and for messages
}

// Warning is something that was skipped or couldn't be done and that an operator should know of. It never stops the pass
// that found it.
type Warning struct {
	Profile string // "" when it is about no profile in particular
	Path    string // absolute; what it is about
	Message string // whole sentence without a full stop; names the path or the profile
}

// String returns the message.
func (w Warning) String() string { return w.Message }

// Store is the profiles of one data volume. It holds no descriptor and no cache: each method opens the volume anew and
// shows what is there now. All methods may be called from several goroutines; unless one says otherwise it blocks for as
// long as the disk does, so the supervisor's loop never calls it.
type Store struct {
	root   string
	marker string
	actor  *fsutil.Actor
	now    func() time.Time

	mu     sync.Mutex          // guards what follows; never held while the disk is used
	locks  map[string]*writing // one per profile that is being written to
	silent map[string]bool     // directories, relative, that were asked whether they answer
}

// Open returns the store of the volume at home, the container's HERMES_HOME. Where home is itself the home of a named
// profile (its parent directory is called "profiles"), the store is that of the volume above it (contract, section 4). File
// operations run as actor; nil is the process itself. marker is the file that makes a directory a profile; "" is SOUL.md.
//
// Open touches no disk and can't fail: a volume that isn't there shows in the methods.
func Open(home string, actor *fsutil.Actor, marker string) *Store {
	root := filepath.Clean(home)
	if parent := filepath.Dir(root); filepath.Base(parent) == profilesDir {
		root = filepath.Dir(parent)
	}
	if marker == "" {
		marker = "SOUL.md"
	}
	if actor == nil {
		actor = fsutil.Self()
	}
	return &Store{root: root, marker: marker, actor: actor, now: time.Now, locks: make(map[string]*writing), silent: make(map[string]bool)}
}

// Root returns the volume's root, which is the home of the default profile. It doesn't block.
func (s *Store) Root() string { return s.root }

// Profile returns the profile called name, whether it exists or not. The error wraps [ErrName]. It doesn't block.
func (s *Store) Profile(name string) (Profile, error) {
	rel, err := homeOf(name)
	if err != nil {
		return Profile{}, err
	}
	return Profile{Name: name, Home: filepath.Join(s.root, rel)}, nil
}

// Exists says whether a profile has a home, with or without the marker. The error is about the name or the volume as a whole.
func (s *Store) Exists(name string) (bool, error) {
	err := s.in(name, homeExists)
	if errors.Is(err, ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Discover lists the profiles: the default one first, always, then in byte order each directory of profiles/ that has the
// marker. What has the marker and can't be a profile is skipped with a warning: profiles/default, a reserved or impossible
// name, a symbolic link. The error is about the volume as a whole (it can't be opened or listed); even then the default
// profile is in the list (contract, sections 4 and 5).
func (s *Store) Discover() ([]Profile, []Warning, error) {
	found := []Profile{s.root0()}
	d, err := s.open()
	if err != nil {
		return found, nil, err
	}
	defer d.Close()
	l, err := s.list(d)
	for _, name := range l.marked {
		found = append(found, s.named(name))
	}
	return found, l.warnings, err
}

// listing is what one look at profiles/ shows.
type listing struct {
	marked   []string // profiles
	unmarked []string // directories that would be profiles if they had the marker
	warnings []Warning
}

// list reads profiles/. A missing directory is an empty one.
func (s *Store) list(d *fsutil.Dir) (listing, error) {
	var l listing
	s.ask(profilesDir)
	if s.isSilent(profilesDir) {
		return l, &fs.PathError{Op: "read", Path: filepath.Join(s.root, profilesDir), Err: errSilent}
	}
	entries, err := d.ReadDir(profilesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	var homes []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			homes = append(homes, filepath.Join(profilesDir, e.Name()))
		}
	}
	answers := s.ask(homes...)
	for _, e := range entries {
		name := e.Name()
		if name[0] == '.' {
			continue // temporary directories, of ours and of others
		}
		warn := func(format string, args ...any) {
			path := filepath.Join(s.root, profilesDir, name)
			l.warnings = append(l.warnings, Warning{Profile: name, Path: path, Message: fmt.Sprintf(format, args...)})
		}
		if e.Type()&fs.ModeSymlink != 0 {
			warn("cannot use profile directory %q: it is a symbolic link, and links are never followed", name)
			continue
		}
		if !e.IsDir() {
			continue
		}
		rel := filepath.Join(profilesDir, name)
		if s.isSilent(rel) {
			warn("cannot use profile directory %q: it does not answer (a mount whose server is gone?); it is looked at again when it does", name)
			continue
		}
		err, answered := answers[rel]
		if !answered {
			_, err = d.Lstat(filepath.Join(rel, s.marker))
		}
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case err != nil && !missing:
			warn("cannot use profile directory %q: %v", name, err)
		case missing && usable(name) == nil:
			l.unmarked = append(l.unmarked, name)
		case missing:
		case name == Default:
			warn("cannot use profile directory %q: the name belongs to the root profile, whose home is %q", name, s.root)
		default:
			if err := usable(name); err != nil {
				warn("cannot use profile directory %q: %v", name, err)
				continue
			}
			l.marked = append(l.marked, name)
		}
	}
	return l, nil
}

// usable tells whether a directory on disk may be a profile. The 64 characters of the command line are no limit here:
// what an older agent made goes on working.
func usable(name string) error {
	switch {
	case name == Default:
		return nameError(name, "the name belongs to the root profile")
	case reserved(name):
		return nameError(name, "the name is reserved")
	}
	return ValidServiceName(name)
}

func (s *Store) open() (*fsutil.Dir, error) { return fsutil.OpenDir(s.root, s.actor) }

// together opens the volume for several things that are done in one go, as the agent once for all of them. The Dir is for fn
// and its goroutine alone: outside it would work as this process, see [fsutil.Dir.Together].
func (s *Store) together(fn func(d *fsutil.Dir) error) error {
	return s.actor.Do(func() error {
		d, err := fsutil.OpenDir(s.root, nil)
		if err != nil {
			return err
		}
		defer d.Close()
		return fn(d)
	})
}

func (s *Store) root0() Profile { return Profile{Name: Default, Home: s.root} }

func (s *Store) named(name string) Profile {
	return Profile{Name: name, Home: filepath.Join(s.root, profilesDir, name)}
}

// homeOf returns the home of profile relative to the root. It is the gate for names that come from outside.
func homeOf(profile string) (string, error) {
	if profile == Default {
		return ".", nil
	}
	if err := ValidServiceName(profile); err != nil {
		return "", err
	}
	return filepath.Join(profilesDir, profile), nil
}

// in opens the volume and runs fn with the home of profile relative to it.
func (s *Store) in(profile string, fn func(d *fsutil.Dir, home string) error) error {
	home, err := homeOf(profile)
	if err != nil {
		return err
	}
	return s.together(func(d *fsutil.Dir) error { return fn(d, home) })
}

// writing is a profile that somebody writes to.
type writing struct {
	sync.Mutex

	users int // guarded by the mutex of the store
}

// lock makes the caller the only one in this process that writes to profile, until it calls unlock.
func (s *Store) lock(profile string) (unlock func()) {
	s.mu.Lock()
	l := s.locks[profile]
	if l == nil {
		l = new(writing)
		s.locks[profile] = l
	}
	l.users++
	s.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(s.locks, profile)
		}
	}
}

// stamp tells one content of a file from another as well as its metadata can.
type stamp struct {
	dev, ino uint64
	size     int64
	mtime    time.Time
	ctime    syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	st := stamp{size: info.Size(), mtime: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.dev, st.ino, st.ctime = sys.Dev, sys.Ino, sys.Ctim
	}
	return st
}
