package profiles

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/procstat"
)

// profilesDir is the directory in the volume's root with the homes of all profiles except the default profile (contract, section
// 4).
const profilesDir = "profiles"

// ActiveFile is the file in the volume's root that names the active profile (contract, section 4).
const ActiveFile = "active_profile"

// Profile is one agent profile.
type Profile struct {
	Name string // "default" or the name of the directory.
	Home string // Absolute path of the home, for the configuration of other programs and for messages.
}

// Warning tells an operator that something has failed or was left out. The operation itself has continued.
type Warning struct {
	Profile string // Profile that the warning is about; "" for a warning about several or none.
	Message string // Sentence that names the path or the profile, without a full stop.
}

// String returns the message.
func (w Warning) String() string { return w.Message }

// Store reads and writes the profiles of one data volume. It keeps no cache and no open files. Each method opens the volume
// again, because another volume may have replaced it. All methods may be called from several goroutines. They block on the disk
// unless the comment says otherwise, so the supervisor's loop must not call them.
type Store struct {
	// CheckRoot is called with the root of the volume when a scan opens it. After an error, the scan can't use the volume. nil accepts
	// every root. Set it before any call.
	CheckRoot func(root *fsutil.Dir) error

	root        string
	marker      string
	actor       *fsutil.Actor
	maxProfiles int // Maximum number of named profiles, and of remembered directories without the marker file.
	now         func() time.Time
	uptime      func() time.Duration // Time since the machine booted; unlike now, it never jumps.

	mu           sync.Mutex              // Guards the fields below; never held during disk operations.
	locks        map[string]*profileLock // Locks of profiles that are being written.
	silentDirs   map[string]bool         // Directories, relative to the root, in which a call has timed out and still hangs.
	hangingCalls int                     // Number of calls that hang in a silent directory.
}

// NoLimit is the default for [Store.SetMaxProfiles], a number that no volume reaches.
const NoLimit = 1 << 29

// Open returns the store of the volume at home, the container's HERMES_HOME. If home is VOLUME/profiles/NAME, the home of a named
// profile, the store is for VOLUME (contract, section 4). Files are opened with the identity of actor; nil means the identity of
// this process. [blocking.Volume] limits how many calls may block on the volume at once. marker is the name of the file that
// makes a directory a profile; "" means SOUL.md.
//
// Open does no I/O and can't fail: the methods report a missing volume.
func Open(home string, actor *fsutil.Actor, marker string) *Store {
	root := filepath.Clean(home)
	if parent := filepath.Dir(root); filepath.Base(parent) == profilesDir {
		root = filepath.Dir(parent)
	}
	marker = cmp.Or(marker, "SOUL.md")
	actor = cmp.Or(actor, fsutil.ProcessActor())
	return &Store{root: root, marker: marker, actor: actor.WithPool(blocking.Volume), maxProfiles: NoLimit, now: time.Now, uptime: procstat.SinceBoot, locks: make(map[string]*profileLock), silentDirs: make(map[string]bool)}
}

// SetMaxProfiles limits the number of named profiles, and of directories without the marker, that the store keeps in memory. It
// returns the store itself. Call it before any other method.
func (s *Store) SetMaxProfiles(most int) *Store {
	s.maxProfiles = most
	return s
}

// Marker returns the name of the file that makes a directory a profile, such as SOUL.md.
func (s *Store) Marker() string { return s.marker }

// Root returns the root of the volume, which is the home of the default profile. It doesn't block.
func (s *Store) Root() string { return s.root }

// Profile returns the name and home of a profile, which need not exist. The error wraps [ErrInvalidName]. It doesn't block.
func (s *Store) Profile(name string) (Profile, error) {
	if _, err := homeOf(name); err != nil {
		return Profile{}, err
	}
	return s.profile(name), nil
}

// Exists reports whether a profile has a home directory, with or without the marker. An error means that the name or the volume
// can't be used.
func (s *Store) Exists(name string) (bool, error) {
	err := s.WithHome(name, homeExists)
	if errors.Is(err, ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (s *Store) open() (*fsutil.Dir, error) {
	d, err := fsutil.OpenDir(s.root, s.actor)
	if err == nil && s.CheckRoot != nil {
		if err = s.CheckRoot(d); err != nil {
			_ = d.Close()
		}
	}
	return d, err
}

// withVolume opens the volume and calls fn with the agent's identity, so that several operations need only one change of
// identity. fn must not use d in another goroutine, see [fsutil.Dir.WithIdentity].
func (s *Store) withVolume(fn func(d *fsutil.Dir) error) error {
	return s.actor.Do(func() error {
		d, err := fsutil.OpenDir(s.root, s.actor.WithoutSwitch())
		if err != nil {
			return err
		}
		defer d.Close()
		return fn(d)
	})
}

// profile is [Store.Profile] for a valid name.
func (s *Store) profile(name string) Profile {
	return Profile{Name: name, Home: filepath.Join(s.root, homeOfValidName(name))}
}

// homeOf validates the name of a profile and returns its home, relative to the root. Every name from outside the package must
// pass through it.
func homeOf(profile string) (string, error) {
	if err := ValidServiceName(profile); err != nil {
		return "", err
	}
	return homeOfValidName(profile), nil
}

// homeOfValidName is homeOf for a valid name.
func homeOfValidName(profile string) string {
	if profile == Default {
		return "."
	}
	return filepath.Join(profilesDir, profile)
}

// removeIfExists removes a file. It ignores a missing file.
func removeIfExists(d *fsutil.Dir, rel string) error {
	if err := d.Remove(rel); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// WithHome opens the volume and calls fn, with the identity of the store's actor. home is the profile's home, relative to d.
func (s *Store) WithHome(profile string, fn func(d *fsutil.Dir, home string) error) error {
	home, err := homeOf(profile)
	if err != nil {
		return err
	}
	return s.withVolume(func(d *fsutil.Dir) error { return fn(d, home) })
}

// readHome is WithHome for a function that returns a result.
func readHome[T any](s *Store, profile string, fn func(d *fsutil.Dir, home string) (T, error)) (result T, err error) {
	err = s.WithHome(profile, func(d *fsutil.Dir, home string) (err error) {
		result, err = fn(d, home)
		return err
	})
	return result, err
}

// profileLock excludes concurrent writers of one profile. It exists only while a goroutine holds it or waits for it.
type profileLock struct {
	sync.Mutex

	users int // Number of goroutines that hold the lock or wait for it; guarded by Store.mu.
}

// lock waits until no other goroutine of this process writes to a profile. Other writers must wait until unlock is called.
func (s *Store) lock(profile string) (unlock func()) {
	s.mu.Lock()
	l := s.locks[profile]
	if l == nil {
		l = new(profileLock)
		s.locks[profile] = l
	}
	l.users++
	s.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		l.users--
		if l.users == 0 {
			delete(s.locks, profile)
		}
	}
}

// IsWriting reports whether a goroutine of this process is writing to a profile, or is waiting to write. It doesn't block.
func (s *Store) IsWriting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks) > 0
}

// stamp is the part of a file's metadata that changes whenever the file's content changes.
type stamp struct {
	fsutil.ID

	size  int64
	mtime time.Time
	ctime syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	return stamp{fsutil.IDOf(info), info.Size(), info.ModTime(), fsutil.Stat(info).Ctim}
}

// stampAt returns the stamp of the file rel in d. It is zero if the file is missing or can't be examined.
func stampAt(d *fsutil.Dir, rel string) stamp {
	info, err := d.Lstat(rel)
	if err != nil {
		return stamp{}
	}
	return stampOf(info)
}

// settledBefore reports whether the file last changed well before t. Only then does an equal stamp prove that the file is
// unchanged: timestamps are coarse, so a change within timestampSlack of t may be invisible.
func (s stamp) settledBefore(t time.Time) bool {
	t = t.Add(-timestampSlack)
	return s.mtime.Before(t) && time.Unix(s.ctime.Unix()).Before(t)
}

// HomeID identifies the home directory of a profile. Unlike an inode number, it is never used again for another directory of the
// volume.
type HomeID struct {
	dir  fsutil.ID
	born int64
}

// HomeID returns the identity of a profile's home, which changes if another directory replaces the home. It blocks on the disk.
// If the file system doesn't record when directories were created, the error wraps errors.ErrUnsupported.
func (s *Store) HomeID(profile string) (HomeID, error) {
	return readHome(s, profile, func(d *fsutil.Dir, home string) (HomeID, error) {
		info, err := d.Lstat(home)
		if err == nil && !info.IsDir() {
			err = ErrNotExist
		}
		if err != nil {
			return HomeID{}, err
		}
		born, err := d.CreatedAt(home)
		return HomeID{fsutil.IDOf(info), born}, err
	})
}
