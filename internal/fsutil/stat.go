package fsutil

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stat is an fs.FileInfo made from the result of one stat(2) call. Package os would have to open the file first.
type stat struct {
	name string
	sys  syscall.Stat_t // the same type that package os returns from Sys
}

func newStat(name string, st unix.Stat_t) *stat {
	return &stat{name: name, sys: syscall.Stat_t{
		Dev: st.Dev, Ino: st.Ino, Nlink: st.Nlink, Mode: st.Mode, Uid: st.Uid, Gid: st.Gid, Rdev: st.Rdev, Size: st.Size,
		Blksize: st.Blksize, Blocks: st.Blocks,
		Atim: syscall.Timespec(st.Atim), Mtim: syscall.Timespec(st.Mtim), Ctim: syscall.Timespec(st.Ctim),
	}}
}

func (s *stat) Name() string       { return s.name }
func (s *stat) Size() int64        { return s.sys.Size }
func (s *stat) ModTime() time.Time { return time.Unix(s.sys.Mtim.Unix()) }
func (s *stat) IsDir() bool        { return s.Mode().IsDir() }
func (s *stat) Sys() any           { return &s.sys }

func (s *stat) Mode() fs.FileMode {
	mode, _ := entryMode(uint8(s.sys.Mode & unix.S_IFMT >> 12)) // these bits are the DT_ value
	mode |= fs.FileMode(s.sys.Mode & 0o777)
	if s.sys.Mode&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if s.sys.Mode&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if s.sys.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// Stat returns the kernel's status of a file. info must come from package os or from this package.
func Stat(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// UID returns the owner of a file. info must come from package os or from this package.
func UID(info fs.FileInfo) uint32 { return Stat(info).Uid }
