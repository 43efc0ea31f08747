package fsutil

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// Identity contains the ids that the kernel checks for access to files: uid, gid and supplementary groups.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}

// Equal reports whether two identities are the same.
func (id Identity) Equal(o Identity) bool {
	return id.UID == o.UID && id.GID == o.GID && slices.Equal(id.Groups, o.Groups)
}

// Actor does file operations with an [Identity]. Any number of goroutines may share it.
type Actor struct {
	id               Identity
	switchesIdentity bool
	usesPool         bool // each Do counts against the limit of share, see WithPool
	pool             blocking.Pool
	ownedHomes       *ownedHomes // homes in which the actor acts as their owners, see WithHomesOf; nil for none
}

// ProcessActor returns an actor with the identity of the process.
func ProcessActor() *Actor {
	return &Actor{id: Identity{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}}
}

// NewActor returns an actor for id. The actor switches to id only if the process is root, id is another user, and a trial
// succeeds. The trial fails without CAP_SETUID or CAP_SETGID, and in a user namespace that lacks id. Otherwise the actor keeps
// the identity of the process; [Actor.SwitchesIdentity] then returns false.
func NewActor(id Identity) *Actor {
	id.Groups = append([]uint32(nil), id.Groups...)
	a := &Actor{id: id}
	if euid := unix.Geteuid(); euid != 0 || id.UID == 0 {
		return a
	}
	a.switchesIdentity = true
	if err := a.Do(func() error { return nil }); err != nil {
		a.switchesIdentity = false
	}
	return a
}

// WithPool returns a copy of a that limits how many operations run at a time. Each Do, and each operation of a [Dir] with this
// actor, runs through [blocking.Do] with share. A call of Do inside another Do of this actor could wait for itself for ever.
func (a *Actor) WithPool(share blocking.Pool) *Actor {
	bounded := *a
	bounded.usesPool, bounded.pool = true, share
	return &bounded
}

// Identity returns the identity that was asked for, even if the actor doesn't switch to it. The caller must not change Groups.
func (a *Actor) Identity() Identity { return a.id }

// SwitchesIdentity reports whether Do switches to another identity.
func (a *Actor) SwitchesIdentity() bool { return a.switchesIdentity }

// Do calls fn with the actor's identity and returns its error. fn may block, and may panic. Do may be called inside Do, unless
// the actor comes from [Actor.WithPool].
//
// While fn runs, the goroutine is locked to its thread. Only the file-system uid and gid and the supplementary groups of this
// thread change (setfsuid(2)). The thread also lacks root's capabilities for files (capabilities(7), "Effect of user ID changes on
// capabilities"). So fn must not hand file operations to another goroutine, which has the identity of the process. It must not
// start a process.
//
// If the kernel refuses the switch, fn isn't called. If the kernel refuses to switch back, Do returns an error and leaves the
// thread locked. The Go runtime then destroys the thread at the end of the goroutine. No known kernel refuses that.
func (a *Actor) Do(fn func() error) error {
	if a.usesPool {
		return blocking.Do(a.pool, func() error { return a.doSwitched(fn) })
	}
	return a.doSwitched(fn)
}

// doSwitched calls fn with the identity of the actor, on a locked thread, and then restores the identity. If that fails, the
// thread ends with the goroutine, so that no other code runs with the wrong identity.
func (a *Actor) doSwitched(fn func() error) (err error) {
	if !a.switchesIdentity {
		return fn()
	}
	runtime.LockOSThread()
	old, err := threadIdentity()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("cannot read the identity of the thread: %w", err)
	}
	defer func() {
		if restoreErr := setThreadIdentity(old); restoreErr != nil {
			err = errors.Join(err, fmt.Errorf("cannot switch back from uid %d: %w", a.id.UID, restoreErr))
			return
		}
		runtime.UnlockOSThread()
	}()
	if err := setThreadIdentity(a.id); err != nil {
		return fmt.Errorf("cannot act as uid %d: %w", a.id.UID, err)
	}
	return fn()
}

func threadIdentity() (Identity, error) {
	gids, err := unix.Getgroups()
	if err != nil {
		return Identity{}, fmt.Errorf("getgroups: %w", err)
	}
	id := Identity{UID: fsuid(), GID: fsgid()}
	for _, g := range gids {
		id.Groups = append(id.Groups, uint32(g))
	}
	return id, nil
}

// setThreadIdentity changes the identity of the calling thread only, with functions of x/sys. The functions of package syscall
// would change all threads. The uid comes last in both directions, because setfsuid keeps CAP_SETGID.
func setThreadIdentity(id Identity) error {
	gids := make([]int, len(id.Groups))
	for i, g := range id.Groups {
		gids[i] = int(g)
	}
	if err := unix.Setgroups(gids); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	// setfsgid and setfsuid return the old id even after a failure, so read the new id back
	if err := unix.Setfsgid(int(id.GID)); err != nil {
		return fmt.Errorf("setfsgid: %w", err)
	}
	if fsgid() != id.GID {
		return fmt.Errorf("setfsgid %d: %w", id.GID, unix.EPERM)
	}
	if err := unix.Setfsuid(int(id.UID)); err != nil {
		return fmt.Errorf("setfsuid: %w", err)
	}
	if fsuid() != id.UID {
		return fmt.Errorf("setfsuid %d: %w", id.UID, unix.EPERM)
	}
	return nil
}

func fsuid() uint32 {
	id, _ := unix.SetfsuidRetUid(-1)
	return uint32(id)
}

func fsgid() uint32 {
	id, _ := unix.SetfsgidRetGid(-1)
	return uint32(id)
}

// ownedHomes describes home directories whose owners are not the actor's user, see [Actor.WithHomesOf].
type ownedHomes struct {
	dir         string // directory with the homes, with a slash at the end
	first, last uint32 // range of the uids of these users
}

// WithHomesOf returns a copy of a that acts as the owner inside homes in the directory dir, if the owner's uid is from first to
// last. That is safe, because only root can give a home to such a user. The home itself is created, removed and renamed as a.
func (a *Actor) WithHomesOf(dir string, first, last uint32) *Actor {
	own := *a
	if a.switchesIdentity {
		own.ownedHomes = &ownedHomes{dir: strings.TrimSuffix(dir, "/") + "/", first: first, last: last}
	}
	return &own
}

// WithoutSwitch returns an actor for use inside [Actor.Do]. It keeps the identity from Do, except in the homes of
// [Actor.WithHomesOf].
func (a *Actor) WithoutSwitch() *Actor { return &Actor{id: a.id, ownedHomes: a.ownedHomes} }

// readDirVerb is the verb of operations that read a directory. Unlike other operations, they work inside the directory that they
// name.
const readDirVerb = "read directory"

// asOwner calls fn. Inside a home of [Actor.WithHomesOf], it acts as the owner of the home. names is the path of the operation.
func (d *Dir) asOwner(verb string, names []string, fn func() error) error {
	owner := d.owner
	if owner == nil && d.actor.ownedHomes != nil {
		if up, is := d.actor.ownedHomes.findHome(d.path, names); is && (up < len(names) || verb == readDirVerb) {
			owner = d.ownerOf(names[:up])
		}
	}
	if owner == nil {
		return fn()
	}
	return owner.doSwitched(fn)
}

// findHome reports whether the path names, relative to dir, leads to a home or into a home. names[:up] is the path of the home
// itself.
func (h *ownedHomes) findHome(dir string, names []string) (up int, is bool) {
	rest, is := strings.CutPrefix(path.Join(dir, path.Join(names...)), h.dir)
	up = len(names) - strings.Count(rest, "/")
	return up, is && up >= 0
}

// ownerOf returns an actor for the owner of the home with the path names, or nil if the owner's uid is not in the range.
func (d *Dir) ownerOf(names []string) *Actor {
	fd, err := d.open(names, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer closeFD(fd)
	return d.actor.ownedHomes.ownerOfFD(fd)
}

// ownerOfFD returns the actor for the owner of a home that is open as fd, see ownerOf.
func (h *ownedHomes) ownerOfFD(fd int) *Actor {
	st, err := Fstat(fd)
	if err != nil || st.Uid < h.first || st.Uid > h.last {
		return nil
	}
	return &Actor{id: Identity{UID: st.Uid, GID: st.Uid}, switchesIdentity: true}
}
