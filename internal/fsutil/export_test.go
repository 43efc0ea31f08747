package fsutil

import (
	"io/fs"
	"os"
	"syscall"
)

// These names give tests the limits, the path resolution without openat2, and states that the present kernel can't
// have.
const MaxRemoveNames = maxRemoveNames

var FSUID = fsuid

func (d *Dir) SetWalk(walk bool) { d.noOpenat2.Store(walk) }

func (d *Dir) Walks() bool { return d.noOpenat2.Load() }

func (d *Dir) WriteTemp(name string, data []byte, mode fs.FileMode) (string, error) {
	return writeTemp(d.fd, name, data, uint32(mode), false)
}

// ActorThatStays returns an actor whose calls run as the process itself, whatever id is.
func ActorThatStays(id Identity) *Actor { return &Actor{id: id} }

// OwnerUID returns the uid of a file's owner.
func OwnerUID(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }
