package reader

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
)

// open opens the regular file base in the log directory d. It doesn't block on a named pipe.
func open(d archive.Dir, base string) (f *os.File, err error) {
	err = d.Do(func(parent *fsutil.Dir, name string) error {
		f, err = parent.Open(filepath.Join(name, base))
		return err
	})
	return f, err
}

// openArchive opens the archive called name, without the [archive.Packed] suffix, in whichever form exists. The result packed
// tells whether the opened file is compressed.
func openArchive(d archive.Dir, name string) (f *os.File, packed bool, err error) {
	for i, form := range archive.Forms(name) {
		f, err = open(d, form)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, i > 0, err
		}
	}
	return nil, false, err
}
