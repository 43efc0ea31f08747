package archive

import (
	"cmp"
	"fmt"
	"io/fs"
	"path/filepath"

	"hinit/internal/fsutil"
)

// Dir is the log directory at Path. Every call opens the directory again, because it may have been replaced. Neither the
// directory nor a file in it may be a symbolic link. Links in the path above it are followed, with the permissions of Actor.
type Dir struct {
	Path  string
	Actor *fsutil.Actor // identity for opening files; nil is an error
}

// Do opens the parent of the log directory and passes it to fn, together with the name of the log directory in it.
func (d Dir) Do(fn func(parent *fsutil.Dir, name string) error) error {
	if d.Actor == nil {
		return fmt.Errorf("cannot open the log directory %q: no identity was given", d.Path)
	}
	dir, name := filepath.Split(filepath.Clean(d.Path))
	dir = cmp.Or(dir, ".")
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

// Names returns the base names of the archives, oldest first. An archive that exists both compressed and uncompressed is listed
// once.
func (d Dir) Names() ([]string, error) {
	names, err := d.all()
	return archivesIn(names), err
}

// maxNames is the maximum number of entries that a call reads from a log directory. A limit is needed because the agent can
// create any number of entries.
const maxNames = 64 << 10

// all returns the names of all entries of the directory, up to maxNames.
func (d Dir) all() ([]string, error) { return d.List(func(fs.FileMode) bool { return true }) }

// List returns the names of at most maxNames entries of the directory. The function wanted selects entries by their type.
func (d Dir) List(wanted func(kind fs.FileMode) bool) (names []string, err error) {
	err = d.Do(func(parent *fsutil.Dir, name string) error {
		return parent.EachName(name, func(entry string, kind fs.FileMode) bool {
			if wanted(kind) {
				names = append(names, entry)
			}
			return len(names) < maxNames
		})
	})
	return names, err
}
