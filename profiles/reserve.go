package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

const (
	// reserveFile has blocks in the home of a profile that become the next state file when the disk is full.
	reserveFile = ".hinit-reserve"
	// reserveSize is more than state files have.
	reserveSize = 8 << 10
)

// full reports whether an error says that the disk, or a quota on it, is full.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// spend makes the reserve of a home the file rel, with data. No process can take the blocks meanwhile, because they are never free.
func spend(d *fsutil.Dir, home, rel string, data []byte, mode fs.FileMode) error {
	from := filepath.Join(home, reserveFile)
	if err := d.Overwrite(from, data, mode); err != nil {
		return err
	}
	return d.Rename(from, rel)
}

// reserve takes the reserve of a home, if it has none. Without space there is none until a later order.
func reserve(d *fsutil.Dir, home string) {
	rel := filepath.Join(home, reserveFile)
	if _, err := d.Lstat(rel); errors.Is(err, fs.ErrNotExist) {
		_ = d.Replace(rel, make([]byte, reserveSize), fsutil.ReplaceOptions{Mode: 0o600, Volatile: true})
	}
}
