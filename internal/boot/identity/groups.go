package identity

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"hinit/internal/account/db"
	"hinit/internal/boot"
)

// joinDocker adds the agent's user to the group of the Docker socket, which is equivalent to root on the host.
func (a *agent) joinDocker(o Options, etc *db.DB) {
	sockets := o.Sockets
	if sockets == nil {
		sockets = boot.DockerSockets
	}
	switch path, gid, ok := boot.DockerSocket(sockets, o.Env); {
	case !ok:
	case slices.Contains(etc.Groups(a.User.Name, a.User.GID), gid):
		a.Lines = append(a.Lines, boot.AlreadyInGroup(a.User.Name, gid, path))
	default:
		a.join(etc, gid, path, "hostdocker", "Docker socket")
	}
}

// joinDRI adds the agent's user to the groups of the graphics devices.
func (a *agent) joinDRI(o Options, etc *db.DB) {
	dir := cmp.Or(o.DRI, boot.GraphicsDir)
	entries, _ := os.ReadDir(dir) // without the directory there are no devices
	for _, e := range entries {
		if gid, ok := boot.DeviceGroup(e); ok && !slices.Contains(etc.Groups(a.User.Name, a.User.GID), gid) {
			a.join(etc, gid, filepath.Join(dir, e.Name()), "hostdri", "graphics device")
		}
	}
}

// join adds the agent's user to the group gid. If the group does not exist, join creates it and names it newName. Messages
// describe the device by its path (what) and its kind.
func (a *agent) join(etc *db.DB, gid uint32, what, newName, kind string) {
	name, ok := etc.GroupName(gid)
	if !ok {
		name = newName
		if _, taken := etc.Group(name); taken {
			name += strconv.FormatUint(uint64(gid), 10)
		}
		if err := etc.AddGroup(name, gid); err != nil {
			a.warn("%v — no access to %s", err, what)
			return
		}
		a.say("Created group %s (GID %d) for %s", name, gid, kind)
	}
	if err := etc.AddMember(name, a.User.Name); err != nil {
		a.warn("%v — no access to %s", err, what)
		return
	}
	a.say("Added %s to group %s (GID %d) for %s", a.User.Name, name, gid, what)
}
