package boot

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"hinit/internal/account/db"
	"hinit/internal/config"
)

// joinDocker adds the agent's user to the group of the Docker socket, which means root on the host. With the sandbox service the
// agent does not need it.
func (a *Agent) joinDocker(o IdentityOptions, etc *db.DB) {
	if v, _ := o.Env("HINIT_SANDBOX"); config.ShellTruthy(v) {
		return
	}
	sockets := o.Sockets
	if sockets == nil {
		sockets = []string{"/var/run/docker.sock", "/run/docker.sock"}
	}
	for _, path := range sockets {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&fs.ModeSocket == 0 {
			continue
		}
		gid := info.Sys().(*syscall.Stat_t).Gid
		if slices.Contains(etc.Groups(a.User.Name, a.User.GID), gid) {
			a.say("%s already in group %d for %s", a.User.Name, gid, path)
			return
		}
		a.join(etc, gid, path, "hostdocker", "Docker socket")
		return
	}
}

// joinDRI adds the agent's user to the groups of the graphics devices, but not to root's: that would give far more than the device.
func (a *Agent) joinDRI(o IdentityOptions, etc *db.DB) {
	dir := o.DRI
	if dir == "" {
		dir = "/dev/dri"
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.IsDir() || info.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		gid := info.Sys().(*syscall.Stat_t).Gid
		if gid != 0 && !slices.Contains(etc.Groups(a.User.Name, a.User.GID), gid) {
			a.join(etc, gid, filepath.Join(dir, e.Name()), "hostdri", "graphics device")
		}
	}
}

// join adds the agent's user to the group with that gid, which is made if it is missing.
func (a *Agent) join(etc *db.DB, gid uint32, what, newName, kind string) {
	name, ok := etc.GroupName(gid)
	if !ok {
		name = newName
		if _, taken := etc.Group(name); taken {
			name += strconv.FormatUint(uint64(gid), 10)
		}
		if err := etc.AddGroup(name, gid); err != nil {
			a.Lines = append(a.Lines, Warning(fmt.Sprintf("%v — no access to %s", err, what)))
			return
		}
		a.say("Created group %s (GID %d) for %s", name, gid, kind)
	}
	if err := etc.AddMember(name, a.User.Name); err != nil {
		a.Lines = append(a.Lines, Warning(fmt.Sprintf("%v — no access to %s", err, what)))
		return
	}
	a.say("Added %s to group %s (GID %d) for %s", a.User.Name, name, gid, what)
}
