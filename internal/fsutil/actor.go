package fsutil

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// Identity is a user's file-system identity: uid, gid and supplementary groups.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}

// Actor runs file operations as an [Identity]. Any number of goroutines may share it.
type Actor struct {
	id       Identity
	switches bool
	bounded  bool // takes a turn of share
	share    blocking.Share
	homes    *homes // see OwnHomes
}

// Self returns the actor that runs everything as the process itself.
func Self() *Actor {
	return &Actor{id: Identity{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}}
}

// NewActor returns an actor for id. It switches identity only if this process is root, id is another user, and a trial succeeds.
// Otherwise everything runs as the process itself, see [Actor.Switches]. The trial fails without CAP_SETUID or CAP_SETGID, and in
// a user namespace without id.
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

// In returns an actor like a whose every Do, and so every operation of its [Dir], takes a turn of share, see [blocking.Do]. Its Do
// must not be nested.
func (a *Actor) In(share blocking.Share) *Actor {
	bounded := *a
	bounded.bounded, bounded.share = true, share
	return &bounded
}

// Identity returns the identity the actor was made for, also when it doesn't switch. The caller must not change Groups.
func (a *Actor) Identity() Identity { return a.id }

// Switches reports whether Do changes identity.
func (a *Actor) Switches() bool { return a.switches }

// Do runs fn as the actor's identity and returns fn's error. fn may block, and may panic. Do may be nested, unless the actor takes
// turns, see [Actor.In].
//
// While fn runs, the goroutine is locked to its thread, and only that thread's file-system uid, gid and supplementary groups change
// (see setfsuid(2)). The kernel drops the thread's file capabilities meanwhile, see capabilities(7), "Effect of user ID changes on
// capabilities". So fn must not leave file operations to a goroutine, which would run as the process, and must not start a process.
//
// If the kernel refuses to switch, fn isn't run. If it refuses to switch back, Do returns an error and keeps the thread locked.
// The Go runtime then destroys the thread when the goroutine ends. No known kernel refuses that.
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

// setThreadIdentity changes the calling thread alone; these calls of x/sys don't use the runtime's all-threads machinery. The uid
// comes last in both directions: setfsuid keeps CAP_SETGID.
func setThreadIdentity(id Identity) error {
	gids := make([]int, len(id.Groups))
	for i, g := range id.Groups {
		gids[i] = int(g)
	}
	if err := unix.Setgroups(gids); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	// setfsgid and setfsuid return the old id whether they succeed or not, so it is read back.
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
