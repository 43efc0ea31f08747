package archive

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"hinit/internal/fsutil"
)

// Dir is the directory of a log. Every call opens it anew, because it may be replaced. Neither the directory nor a file in it may
// be a symbolic link. Links in the path before it are followed, with the permissions of Actor.
type Dir struct {
	Path  string
	Actor *fsutil.Actor // identity for opening files; nil is an error
}

// Do calls fn with the parent of the directory, and the name of the directory there.
func (d Dir) Do(fn func(parent *fsutil.Dir, name string) error) error {
	if d.Actor == nil {
		return fmt.Errorf("cannot open the log directory %q: no identity was given", d.Path)
	}
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

// Names returns the base names of the archives, oldest first, each once even if it exists in both forms.
func (d Dir) Names() ([]string, error) {
	names, err := d.all()
	return among(names), err
}

// mostNames limits how many entries of a log directory are read, because the agent can create any number.
const mostNames = 64 << 10

// all returns the names of everything in the directory.
func (d Dir) all() ([]string, error) { return d.List(func(fs.FileMode) bool { return true }) }

// List returns the names of the entries whose type is wanted.
func (d Dir) List(wanted func(kind fs.FileMode) bool) (names []string, err error) {
	err = d.Do(func(parent *fsutil.Dir, name string) error {
		return parent.EachName(name, func(entry string, kind fs.FileMode) bool {
			if wanted(kind) {
				names = append(names, entry)
			}
			return len(names) < mostNames
		})
	})
	return names, err
}
