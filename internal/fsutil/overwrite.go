package fsutil

import (
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

// Overwrite replaces the content and the permission bits of the existing regular file rel, in place, and syncs it. If the file
// was at least as large as data, and the file system overwrites in place, this needs no new disk blocks. After a crash, the file
// may contain parts of both the old and the new content. Errors are as for [Dir.ReadFile]. It blocks as long as the disk takes.
func (d *Dir) Overwrite(rel string, data []byte, mode fs.FileMode) error {
	return d.do("overwrite", rel, func(names []string) error {
		fd, _, err := d.openRegular(names, unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		name := filepath.Base(rel)
		if err := setModeAndWrite(fd, name, data, uint32(mode.Perm())); err != nil {
			return err
		}
		if err := call(faultinject.Write, name, func() error { return unix.Ftruncate(fd, int64(len(data))) }); err != nil {
			return err
		}
		return fsync(fd, name)
	})
}
