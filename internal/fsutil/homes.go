package fsutil

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// homes says which directories belong to users of their own.
type homes struct {
	dir         string // that they are in
	first, last uint32 // uids
}

// OwnHomes returns an actor like a for the homes in dir. Within a home, its Dirs act as the owner of the home, if the uid is from first
// to last. Only root can have given a directory to such a user. The home itself is made, removed and renamed as a.
func (a *Actor) OwnHomes(dir string, first, last uint32) *Actor {
	own := *a
	if a.switches {
		own.homes = &homes{dir: strings.TrimSuffix(dir, "/") + "/", first: first, last: last}
	}
	return &own
}

// Inside returns an actor for the function of [Actor.Do]: it changes the identity no more, except for what [Actor.OwnHomes] says.
func (a *Actor) Inside() *Actor { return &Actor{id: a.id, homes: a.homes} }

// listing is the operation that reads the directory it names.
const listing = "read directory"

// asOwner runs fn as the owner of the home that an operation on names is within, if there is one.
func (d *Dir) asOwner(verb string, names []string, fn func() error) error {
	owner := d.owner
	if owner == nil && d.actor.homes != nil {
		if up, is := d.actor.homes.within(d.path, names); is && (up < len(names) || verb == listing) {
			owner = d.ownerOf(names[:up])
		}
	}
	if owner == nil {
		return fn()
	}
	return owner.do(fn)
}

// within reports whether names lead from a directory to a home or into one, and how many of them lead to the home.
func (h *homes) within(dir string, names []string) (up int, is bool) {
	rest, is := strings.CutPrefix(path.Join(append([]string{dir}, names...)...), h.dir)
	up = len(names) - strings.Count(rest, "/")
	return up, is && up >= 0
}

// ownerOf returns an actor for the owner of a home, nil where the home has no user of its own.
func (d *Dir) ownerOf(names []string) *Actor {
	fd, err := d.open(names, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil // what follows fails in the same way
	}
	defer closeFD(fd)
	return d.actor.homes.owner(fd)
}

// owner is ownerOf for an open home.
func (h *homes) owner(fd int) *Actor {
	st, err := fstat(fd)
	if err != nil || st.Uid < h.first || st.Uid > h.last {
		return nil
	}
	return &Actor{id: Identity{UID: st.Uid, GID: st.Uid}, switches: true}
}
