package reader

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
)

// open opens a regular file of a log. It doesn't wait for a FIFO.
func open(d archive.Dir, base string) (f *os.File, err error) {
	err = d.Do(func(parent *fsutil.Dir, name string) error {
		f, err = parent.Open(filepath.Join(name, base))
		return err
	})
	return f, err
}

// openArchive opens an archive in the form that exists. name has no [archive.Packed] suffix. packed says that the file is
// compressed.
func openArchive(d archive.Dir, name string) (f *os.File, packed bool, err error) {
	for i, form := range archive.Forms(name) {
		f, err = open(d, form)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, i > 0, err
		}
	}
	return nil, false, err
}
