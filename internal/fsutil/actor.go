package fsutil

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// Identity is the file-system identity of a user: uid, gid and supplementary groups.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}

// Actor runs file operations as an [Identity]. It has no state that changes, so any number of goroutines may share it.
type Actor struct {
	id       Identity
	switches bool
	bounded  bool // takes a turn of share
	share    blocking.Share
}

// Self returns the actor that runs everything as the process itself.
func Self() *Actor {
	return &Actor{id: Identity{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}}
}

// NewActor returns an actor for id. It switches identity only when this process is root, id is another user, and the
// kernel really lets it: NewActor tries it once, so that without CAP_SETUID or CAP_SETGID, or in a user namespace that
// doesn't map id, it returns an actor that runs everything as the process itself. [Actor.Switches] tells.
func NewActor(id Identity) *Actor {
	id.Groups = append([]uint32(nil), id.Groups...)
	a := &Actor{id: id}
	if euid := unix.Geteuid(); euid != 0 || id.UID == 0 {
		return a
	}
	a.switches = true
	if err := a.Do(func() error { return nil }); err != nil {
		a.switches = false
	}
	return a
}

// In returns an actor that does the same as a and takes a turn of share for it: each Do, and so each operation of a [Dir] that
// was opened with it, counts as one call that may wait, see [blocking.Do]. Its Do must not be nested.
func (a *Actor) In(share blocking.Share) *Actor {
	bounded := *a
	bounded.bounded, bounded.share = true, share
	return &bounded
}

// Identity returns whom the actor was made for, also when it doesn't switch. The caller must not change Groups.
func (a *Actor) Identity() Identity { return a.id }

// Switches reports whether Do really changes identity.
func (a *Actor) Switches() bool { return a.switches }

// Do runs fn as the actor's identity and returns fn's error. A panic in fn goes on to the caller, after the identity has
// been put back. fn may block. Do may be nested, unless the actor takes turns, see [Actor.In].
//
// While fn runs, the goroutine is tied to one thread and only that thread has changed: its file-system uid and gid and its
// supplementary groups (credentials are per thread in Linux, see setfsuid(2)). The kernel then drops the thread's
// CAP_DAC_OVERRIDE, CAP_CHOWN, CAP_FOWNER and the other file capabilities by itself and gives them back afterwards, see
// capabilities(7), "Effect of user ID changes on capabilities". So fn must do its file operations itself: a goroutine it
// starts runs as the process, and it must not start a process.
//
// When the kernel refuses to switch, fn isn't run. When it refuses to switch back, which no known kernel does, Do returns
// an error and never releases the thread: the goroutine keeps the wrong identity until it ends, and the Go runtime then
// destroys the thread instead of giving it to another goroutine.
func (a *Actor) Do(fn func() error) error {
	if a.bounded {
		return blocking.Do(a.share, func() error { return a.do(fn) })
	}
	return a.do(fn)
}

func (a *Actor) do(fn func() error) (err error) {
	if !a.switches {
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
			return // the thread stays locked, see above
		}
		runtime.UnlockOSThread()
	}()
	if err := setThreadIdentity(a.id); err != nil {
		return fmt.Errorf("cannot act as uid %d: %w", a.id.UID, err)
	}
	return fn()
}

// threadIdentity returns the file-system identity of the calling thread.
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

// setThreadIdentity changes the calling thread alone; x/sys makes these three calls without the runtime's all-threads
// machinery. Groups and gid come first and the uid last in both directions: CAP_SETGID isn't one of the capabilities that
// setfsuid takes away.
func setThreadIdentity(id Identity) error {
	gids := make([]int, len(id.Groups))
	for i, g := range id.Groups {
		gids[i] = int(g)
	}
	if err := unix.Setgroups(gids); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	// setfsgid and setfsuid have no error result: they return the old id, changed or not. Read it back.
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

// An impossible id changes nothing and returns the present one, see setfsuid(2).
func fsuid() uint32 {
	id, _ := unix.SetfsuidRetUid(-1)
	return uint32(id)
}

func fsgid() uint32 {
	id, _ := unix.SetfsgidRetGid(-1)
	return uint32(id)
}
