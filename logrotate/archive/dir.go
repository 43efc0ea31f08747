package archive

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"hinit/internal/fsutil"
)

// Dir is the directory of a log for everybody but its writer. It is opened anew for every call, because it may be replaced, and
// neither it nor what is in it may be a link.
type Dir struct {
	Path  string
	Actor *fsutil.Actor // nil is the process itself
}

// Do runs fn with the directory that the log's lies in, and the name of that there.
func (d Dir) Do(fn func(parent *fsutil.Dir, name string) error) error {
	dir, name := filepath.Split(filepath.Clean(d.Path))
	if dir == "" {
		dir = "."
	}
	if name == ".." || name == "." || name == "" {
		dir, name = d.Path, ""
	}
	parent, err := fsutil.OpenDir(dir, d.Actor)
	if err != nil {
		return err
	}
	defer parent.Close()
	return fn(parent, name)
}

// Open opens a regular file of the log; it waits for no FIFO.
func (d Dir) Open(base string) (f *os.File, err error) {
	err = d.Do(func(parent *fsutil.Dir, name string) error {
		f, err = parent.Open(filepath.Join(name, base))
		return err
	})
	return f, err
}

// OpenArchive opens an archive by its name without [Packed], in whichever form it is there.
func (d Dir) OpenArchive(name string) (f *os.File, packed bool, err error) {
	for i, form := range forms(name) {
		f, err = d.Open(form)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, i > 0, err
		}
	}
	return nil, false, err
}

// Names returns the base names of the archives, oldest first, each once.
func (d Dir) Names() ([]string, error) {
	names, err := d.all()
	return among(names), err
}

// mostNames is how many names of a log directory are looked at. Others can put any number there. Pruning never leaves behind for the
// next time what is to stay.
const mostNames = 64 << 10

// all returns the names of everything in the directory.
func (d Dir) all() (names []string, err error) {
	err = d.Do(func(parent *fsutil.Dir, name string) error {
		return parent.EachName(name, func(entry string, _ fs.FileMode) bool {
			names = append(names, entry)
			return len(names) < mostNames
		})
	})
	return names, err
}
