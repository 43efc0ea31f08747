package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

const (
	// reserveFile is a file in a profile's home that occupies disk blocks. When the disk is full, the next state file is written
	// over these blocks.
	reserveFile = ".hinit-reserve"
	// reserveFileSize is the size of the reserve file in bytes. State files are usually smaller.
	reserveFileSize = 8 << 10
)

// isDiskFull reports whether an error means that the disk, or a quota on it, is full.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// writeOverReserve writes data over the reserve file of a home and renames that file to rel. The blocks are never free in
// between, so no other process can take them.
func writeOverReserve(d *fsutil.Dir, home, rel string, data []byte, mode fs.FileMode) error {
	from := filepath.Join(home, reserveFile)
	if err := d.Overwrite(from, data, mode); err != nil {
		return err
	}
	return d.Rename(from, rel)
}

// makeReserve creates the reserve file of a home if it is missing. The watcher calls it when it first scans the home, and
// setDesiredIn after each order. An error is ignored, because the next order tries again.
func makeReserve(d *fsutil.Dir, home string) {
	rel := filepath.Join(home, reserveFile)
	if _, err := d.Lstat(rel); errors.Is(err, fs.ErrNotExist) {
		_ = d.Replace(rel, make([]byte, reserveFileSize), fsutil.ReplaceOptions{Mode: 0o600, NoSync: true})
	}
}
