package fsutil

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// homes describes the home directories that belong to their own users, and not to the actor's user.
type homes struct {
	dir         string // the directory that contains the homes, with a slash at the end
	first, last uint32 // range of the uids of these users
}

// OwnHomes returns an actor that works like a, except within the homes in the directory dir. Within a home whose owner's uid
// is from first to last, Dirs of the new actor act as this owner. That is safe because only root can have given the home to
// such a user. To create, remove or rename the home itself, the new actor acts like a.
func (a *Actor) OwnHomes(dir string, first, last uint32) *Actor {
	own := *a
	if a.switches {
		own.homes = &homes{dir: strings.TrimSuffix(dir, "/") + "/", first: first, last: last}
	}
	return &own
}

// WithoutSwitch returns an actor for use within a function that runs in [Actor.Do]. It keeps the identity that Do has set, except
// in the homes that [Actor.OwnHomes] describes.
func (a *Actor) WithoutSwitch() *Actor { return &Actor{id: a.id, homes: a.homes} }

// listing is the verb in errors of operations that read the contents of a directory. Such an operation works inside the
// directory.
const listing = "read directory"

// asOwner calls fn. If the operation on names takes place within a home of [Actor.OwnHomes], fn runs as the owner of that home.
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

// within reports whether a path leads to a home or into one. The argument names holds the path's components, relative to the
// directory dir. The result up is the number of components that lead to the home itself.
func (h *homes) within(dir string, names []string) (up int, is bool) {
	rest, is := strings.CutPrefix(path.Join(append([]string{dir}, names...)...), h.dir)
	up = len(names) - strings.Count(rest, "/")
	return up, is && up >= 0
}

// ownerOf returns an actor for the owner of the home whose path has the components names. It returns nil if the owner's uid is
// not in the range.
func (d *Dir) ownerOf(names []string) *Actor {
	fd, err := d.open(names, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil // the operation itself reports the error
	}
	defer closeFD(fd)
	return d.actor.homes.owner(fd)
}

// owner works like ownerOf, for a home that is open as fd.
func (h *homes) owner(fd int) *Actor {
	st, err := Fstat(fd)
	if err != nil || st.Uid < h.first || st.Uid > h.last {
		return nil
	}
	return &Actor{id: Identity{UID: st.Uid, GID: st.Uid}, switches: true}
}
