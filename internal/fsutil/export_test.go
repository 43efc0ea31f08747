package fsutil

import (
	"io/fs"
	"os"
	"syscall"
)

// Limits, resolving without openat2, and states that the kernel here can't have.
const MaxRemoveNames = maxRemoveNames

var FSUID = fsuid

func (d *Dir) SetWalk(walk bool) { d.noOpenat2.Store(walk) }

func (d *Dir) Walks() bool { return d.noOpenat2.Load() }

func (d *Dir) WriteTemp(name string, data []byte, mode fs.FileMode, o ReplaceOptions) (string, error) {
	return writeTemp(d.fd, name, data, uint32(mode), o)
}

// ActorThatStays acts as the process, whatever its own identity is.
func ActorThatStays(id Identity) *Actor { return &Actor{id: id} }

// OwnerUID is the owner of a file.
func OwnerUID(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }
