package profiles

import (
	"fmt"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"hinit/internal/fault"
)

// hints are the kernel's change notifications about a set of directories, not recursive. A nil one gives none. It belongs
// to one goroutine.
//
// Watches are put on paths that the agent can swap for a link at any moment, even though each was a directory right before.
// Nothing is read through them, so all that this gains is a look that finds nothing.
type hints struct {
	notify  *fsnotify.Watcher
	add1    func(path string) error // notify.Add; replaced in tests
	watched map[string]watched
	remotes map[uint64]bool // by device; nil before the first
}

// remote is [remote], asked once a file system.
func (h *hints) remote(path string, dev uint64) bool {
	is, known := h.remotes[dev]
	if !known {
		is = remote(path)
		if h.remotes == nil || len(h.remotes) > 1000 {
			h.remotes = make(map[uint64]bool)
		}
		h.remotes[dev] = is
	}
	return is
}

// watched is a directory with a watch.
type watched struct {
	dev, ino uint64
	remote   bool
}

func newHints() (*hints, error) {
	err := fault.Before(fault.Watch, "")
	var n *fsnotify.Watcher
	if err == nil {
		n, err = fsnotify.NewWatcher()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot get change notifications: %w", err)
	}
	return &hints{notify: n, add1: n.Add, watched: make(map[string]watched)}, nil
}

func (h *hints) changes() <-chan fsnotify.Event {
	if h == nil {
		return nil
	}
	return h.notify.Events
}

// lost tells when notifications may have been lost, with the reason.
func (h *hints) lost() <-chan error {
	if h == nil {
		return nil
	}
	return h.notify.Errors
}

func (h *hints) close() {
	if h != nil {
		_ = h.notify.Close() // it has no error that leaves anything open
	}
}

// add watches the directory at path, unless it does already. complete is false when the file system is one where other
// machines make changes that this kernel doesn't see.
func (h *hints) add(path string, id stamp) (complete bool, err error) {
	old, ok := h.watched[path]
	if ok && old.dev == id.dev && old.ino == id.ino {
		return !old.remote, nil
	}
	// Whatever was at that path before: its watch, if it still has one, would keep the new one from being made.
	_ = h.notify.Remove(path)
	delete(h.watched, path)
	err = fault.Before(fault.Watch, path)
	if err == nil {
		err = h.add1(path)
	}
	if err != nil {
		return false, fmt.Errorf("cannot watch %q for changes: %w", path, err)
	}
	w := watched{dev: id.dev, ino: id.ino, remote: h.remote(path, id.dev)}
	h.watched[path] = w
	return !w.remote, nil
}

// watches reports whether a directory has a watch, by whatever name.
func (h *hints) watches(id stamp) bool {
	if h == nil {
		return false
	}
	for _, w := range h.watched {
		if w.dev == id.dev && w.ino == id.ino {
			return true
		}
	}
	return false
}

// watchesAt reports whether the directory at path has a watch of that name.
func (h *hints) watchesAt(path string, id stamp) bool {
	if h == nil {
		return false
	}
	w, ok := h.watched[path]
	return ok && w.dev == id.dev && w.ino == id.ino
}

// forget removes the watch of a path, if it has one.
func (h *hints) forget(path string) {
	if h == nil {
		return
	}
	if _, ok := h.watched[path]; ok {
		_ = h.notify.Remove(path) // an error says that it is gone already
		delete(h.watched, path)
	}
}

// retain removes the watches of the paths that keep refuses.
func (h *hints) retain(keep func(path string) bool) {
	if h == nil {
		return
	}
	for path := range h.watched {
		if !keep(path) {
			_ = h.notify.Remove(path) // an error says that it is gone already
			delete(h.watched, path)
		}
	}
}

// gone takes note of an event: when a watched directory itself was removed or renamed, its watch went with it. It reports
// whether the event is about a watched directory itself.
func (h *hints) gone(ev fsnotify.Event) bool {
	path := filepath.Clean(ev.Name)
	if _, ok := h.watched[path]; !ok {
		return false
	}
	if ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) {
		delete(h.watched, path)
	}
	return true
}

// remote reports whether the file system of path is one that others change, too: a network one, or one that a daemon or a
// hypervisor hands through, as desktop versions of Docker do.
func remote(path string) bool {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return true
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC,
		unix.FUSE_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.CODA_SUPER_MAGIC:
		return true
	}
	return false
}
