package fsutil

import (
	"io/fs"
	"os"
	"syscall"
)

const MaxRemoveNames = maxRemoveNames

var FSUID = fsuid

func (d *Dir) SetNoOpenat2(walk bool) { d.noOpenat2.Store(walk) }

func (d *Dir) LacksOpenat2() bool { return d.noOpenat2.Load() }

func (d *Dir) WriteTemp(name string, data []byte, mode fs.FileMode) (string, error) {
	return writeTemp(d.fd, name, data, uint32(mode), false)
}

func ActorWithoutSwitch(id Identity) *Actor { return &Actor{id: id} }

func OwnerUID(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }
