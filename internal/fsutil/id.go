package fsutil

import (
	"io/fs"
	"syscall"
)

// ID identifies a file independently of its name, by device and inode. The zero value identifies no file.
type ID struct {
	Dev uint64 `reexec:"dev"`
	Ino uint64 `reexec:"ino"`
}

// IDOf returns the ID of the file with the metadata info.
func IDOf(info fs.FileInfo) (id ID) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id = ID{st.Dev, st.Ino}
	}
	return id
}
