package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"hinit/internal/blocking"
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
	max    int // profiles, and as many directories without the marker
	now    func() time.Time

	mu     sync.Mutex          // guards what follows; never held while the disk is used
	locks  map[string]*writing // one per profile that is being written to
	silent map[string]bool     // directories, relative, that were asked and have not answered
	stuck  int                 // calls that were left behind there
}

// NoLimit is as many profiles as anybody can have.
const NoLimit = 1 << 29

// Open returns the store of the volume at home, the container's HERMES_HOME. Where home is itself the home of a named
// profile (its parent directory is called "profiles"), the store is that of the volume above it (contract, section 4). File
// operations run as actor, and each takes a turn of [blocking.Volume]; nil is the process itself. marker is the file that makes
// a directory a profile; "" is SOUL.md.
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
	return &Store{root: root, marker: marker, actor: actor.In(blocking.Volume), max: NoLimit, now: time.Now, locks: make(map[string]*writing), silent: make(map[string]bool)}
}

// Limit sets how many profiles beside the default one the store finds, and beside them as many directories that have no marker
// yet. It returns the store, and must be called before any other method.
func (s *Store) Limit(most int) *Store {
	s.max = most
	return s
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
// name, a symbolic link; so are those beyond the limit. The error is about the volume as a whole (it can't be opened or listed);
// even then the default profile is in the list (contract, sections 4 and 5).
func (s *Store) Discover() ([]Profile, []Warning, error) {
	found := []Profile{s.root0()}
	l, err := s.list(nil)
	for _, name := range l.marked {
		found = append(found, s.named(name))
	}
	return found, l.warnings, err
}

// listing is what one look at profiles/ shows. Each of the lists is in byte order and has at most as many names as the limit allows.
type listing struct {
	marked   []string // profiles
	unmarked []string // directories that would be profiles if they had the marker
	left     bool     // there are more profiles
	others   bool     // there are more directories without the marker
	silent   []string // directories that did not answer
	dir      stamp    // profiles/ before it was read; zero when it is missing
	warnings []Warning
	unnamed  bool // there are more warnings
}

// preference says which names come first when there are too many.
type preference func(d *fsutil.Dir, name string, marked bool) bool

// list reads profiles/. A missing directory is an empty one. Names that prefer likes come first when there are too many; so do
// profiles whose gateway ran before. However many names there are, only those are kept that are in the listing.
func (s *Store) list(prefer func(name string, marked bool) bool) (listing, error) {
	if prefer == nil {
		prefer = func(string, bool) bool { return false }
	}
	l, err := s.listPatiently(func(_ *fsutil.Dir, name string, marked bool) bool { return prefer(name, marked) })
	if err == nil && l.left {
		l, err = s.listPatiently(func(d *fsutil.Dir, name string, marked bool) bool {
			return prefer(name, marked) || marked && d.Has(filepath.Join(name, stateFile)) == nil
		})
	}
	if err == nil {
		l.warnRest(s)
	}
	return l, err
}

// listPatiently reads profiles/ without the directories that don't answer, and begins anew when one more of them shows.
func (s *Store) listPatiently(prefer preference) (listing, error) {
	for {
		if s.isSilent(profilesDir) {
			return listing{}, &fs.PathError{Op: "read", Path: filepath.Join(s.root, profilesDir), Err: errSilent}
		}
		l, err := attended(s, func(d *fsutil.Dir, at beat) (l listing, err error) {
			err = d.Together(func(d *fsutil.Dir) error {
				l, err = s.listIn(d, at, prefer)
				return err
			})
			return l, err
		})
		var silent *fs.PathError
		if !errors.Is(err, errSilent) || !errors.As(err, &silent) || filepath.Dir(silent.Path) != filepath.Join(s.root, profilesDir) {
			return l, err
		}
	}
}

// listIn looks once at each name in profiles/, beneath the root d.
func (s *Store) listIn(d *fsutil.Dir, at beat, prefer preference) (listing, error) {
	var l listing
	at(profilesDir)
	dir, err := d.Sub(profilesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	defer dir.Close()
	info, err := dir.Lstat(".")
	if err != nil {
		return l, err
	}
	l.dir = stampOf(info)
	careful := s.stuckCalls() >= mostStuck // there may be no more such calls, so mounts are not asked
	marked, unmarked := selection{most: s.max}, selection{most: s.max}
	warn := func(name, format string, args ...any) {
		path := filepath.Join(s.root, profilesDir, name)
		l.warnings = append(l.warnings, Warning{Profile: name, Path: path, Message: fmt.Sprintf(format, args...)})
		if len(l.warnings) > 2*mostWarnings {
			l.trimWarnings()
		}
	}
	err = dir.EachName(".", func(name string, kind fs.FileMode) bool {
		if name[0] == '.' {
			return at(profilesDir) // temporary directories, of ours and of others
		}
		if kind&fs.ModeSymlink != 0 {
			warn(name, "cannot use profile directory %q: it is a symbolic link, and links are never followed", name)
			return at(profilesDir)
		}
		if !kind.IsDir() {
			return at(profilesDir)
		}
		rel := filepath.Join(profilesDir, name)
		if s.isSilent(rel) || careful && isMount(dir, name) {
			l.silent = append(l.silent, name)
			warn(name, "cannot use profile directory %q: it does not answer (a mount whose server is gone?); it is looked at again when it does", name)
			return at(profilesDir)
		}
		if !at(rel) {
			return false
		}
		err := dir.Has(filepath.Join(name, s.marker))
		impossible := usable(name)
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case err != nil && !missing:
			warn(name, "cannot use profile directory %q: %v", name, err)
			if impossible == nil {
				unmarked.add(name, prefer(dir, name, false)) // it may be usable one day
			}
		case missing && impossible == nil:
			unmarked.add(name, prefer(dir, name, false))
		case missing:
		case name == Default:
			warn(name, "cannot use profile directory %q: the name belongs to the root profile, whose home is %q", name, s.root)
		case impossible != nil:
			warn(name, "cannot use profile directory %q: %v", name, impossible)
		default:
			marked.add(name, prefer(dir, name, true))
		}
		return true
	})
	l.trimWarnings()
	l.marked, l.left = marked.names()
	l.unmarked, l.others = unmarked.names()
	return l, err
}

// isMount reports whether something is mounted on a directory, without asking it.
func isMount(d *fsutil.Dir, name string) bool {
	sub, err := d.SubSame(name)
	if err == nil {
		sub.Close()
	}
	return errors.Is(err, fsutil.ErrMount)
}

// mostWarnings is how many directories that can't be used are named.
const mostWarnings = 40

// trimWarnings keeps the first warnings in byte order.
func (l *listing) trimWarnings() {
	slices.SortStableFunc(l.warnings, func(a, b Warning) int { return strings.Compare(a.Path, b.Path) })
	if len(l.warnings) > mostWarnings {
		l.warnings, l.unnamed = l.warnings[:mostWarnings], true
	}
}

// warnRest says what the warnings leave out, and what the limit does. The words are the same as long as something is left out, so that they are said once.
func (l *listing) warnRest(s *Store) {
	path := filepath.Join(s.root, profilesDir)
	if l.unnamed {
		l.warnings = append(l.warnings, Warning{Path: path, Message: fmt.Sprintf("%q has more directories that cannot be used", path)})
	}
	if l.left {
		l.warnings = append(l.warnings, Warning{Path: path, Message: limitError(path, s.max).Error()})
	}
	if l.others {
		l.warnings = append(l.warnings, Warning{Path: path, Message: fmt.Sprintf(
			"%q has more than %d directories without %s; one of the others that gets it is found when it is asked for by name, or after a rescan. Remove what is no profile, or raise profiles.max in hinit.yaml",
			path, s.max, s.marker,
		)})
	}
}

// limitError says that there are more profiles than the limit.
func limitError(path string, most int) error {
	return fmt.Errorf("%q has more than %d profiles, and the others are left out: raise profiles.max in hinit.yaml, or remove some", path, most)
}

// selection keeps the first names in byte order of any number, those first that somebody prefers.
type selection struct {
	most             int
	preferred, plain []string
	left             bool
}

func (s *selection) add(name string, preferred bool) {
	names := &s.plain
	if preferred {
		names = &s.preferred
	}
	if *names = append(*names, name); len(*names) >= 2*s.most+64 {
		s.trim(names, s.most)
	}
}

func (s *selection) trim(names *[]string, most int) {
	slices.Sort(*names)
	if len(*names) > most {
		*names, s.left = slices.Delete(*names, most, len(*names)), true
	}
}

// names returns what was kept, and whether something was not.
func (s *selection) names() (names []string, left bool) {
	s.trim(&s.preferred, s.most)
	s.trim(&s.plain, s.most-len(s.preferred))
	names = append(s.preferred, s.plain...)
	slices.Sort(names)
	return names, s.left
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

// Writing says whether somebody in this process writes to a profile, or waits for a turn to. It doesn't block.
func (s *Store) Writing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks) > 0
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

// stampAt is that of what is at rel; zero when nothing is, or it can't be told.
func stampAt(d *fsutil.Dir, rel string) stamp {
	info, err := d.Lstat(rel)
	if err != nil {
		return stamp{}
	}
	return stampOf(info)
}

// before reports whether what has the stamp was last changed so long before t that another change would have given it another
// stamp: time stamps of files are coarse.
func (s stamp) before(t time.Time) bool {
	t = t.Add(-clockSlack)
	return s.mtime.Before(t) && time.Unix(s.ctime.Unix()).Before(t)
}

// HomeID tells the directory that is the home of a profile from all others of the volume, by whatever name, also from one that is
// made later and gets the number of one that is gone.
type HomeID struct {
	dev, ino uint64
	born     int64
}

// HomeID returns the one of a profile. It reads the disk. The error wraps errors.ErrUnsupported where the file system does not tell when
// a directory was made.
func (s *Store) HomeID(profile string) (id HomeID, err error) {
	err = s.in(profile, func(d *fsutil.Dir, home string) error {
		info, err := d.Lstat(home)
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.IsDir() {
			born, err := d.Born(home)
			id = HomeID{st.Dev, st.Ino, born}
			return err
		}
		return ErrNotExist
	})
	return id, err
}
