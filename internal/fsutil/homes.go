package fsutil

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// homes describes directories that belong to users other than the actor's.
type homes struct {
	dir         string // the parent of the homes
	first, last uint32 // range of the users
}

// OwnHomes returns an actor like a for a directory dir of homes. Within a home whose owner's uid is from first to last, its Dirs
// act as that owner; only root can have given the home to such a user. The home itself is still created, removed and renamed as
// a.
func (a *Actor) OwnHomes(dir string, first, last uint32) *Actor {
	own := *a
	if a.switches {
		own.homes = &homes{dir: strings.TrimSuffix(dir, "/") + "/", first: first, last: last}
	}
	return &own
}

// Inside returns an actor for use within the function of [Actor.Do]. It keeps the identity that Do has set, except as
// [Actor.OwnHomes] says.
func (a *Actor) Inside() *Actor { return &Actor{id: a.id, homes: a.homes} }

// listing is the verb of operations that read the directory they name.
const listing = "read directory"

// asOwner calls fn as the owner of the home that the operation on names is within, if there is such a home.
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

// within reports whether names, relative to dir, lead to a home or into one. up is how many of the names lead to the home itself.
func (h *homes) within(dir string, names []string) (up int, is bool) {
	rest, is := strings.CutPrefix(path.Join(append([]string{dir}, names...)...), h.dir)
	up = len(names) - strings.Count(rest, "/")
	return up, is && up >= 0
}

// ownerOf returns an actor for the owner of a home, nil if that is not a user in the range.
func (d *Dir) ownerOf(names []string) *Actor {
	fd, err := d.open(names, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil // the operation itself reports the error
	}
	defer closeFD(fd)
	return d.actor.homes.owner(fd)
}

// owner is ownerOf for an open home.
func (h *homes) owner(fd int) *Actor {
	st, err := Fstat(fd)
	if err != nil || st.Uid < h.first || st.Uid > h.last {
		return nil
	}
	return &Actor{id: Identity{UID: st.Uid, GID: st.Uid}, switches: true}
}
