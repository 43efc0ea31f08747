// Package identity updates the agent's user in /etc, as a job of the boot program. PID 1 starts this job if the container
// asks for other ids, or if the agent must join a group. The package owns no goroutine.
package identity

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"hinit/internal/account"
	"hinit/internal/account/db"
	"hinit/internal/boot"
)

// Options describe the agent's user and the container. User and Env are required.
type Options struct {
	User string // agent.user of the configuration: a name, a uid, or "uid:gid"
	Env  func(name string) (string, bool)

	Root        string   // directory that contains etc, for tests; "" for the real one
	Sockets     []string // where the Docker socket may be; the first existing one is used; nil for boot.DockerSockets
	GraphicsDir string   // directory of the graphics devices; "" for /dev/dri
}

// Main updates the agent's user, and writes a [boot.Identity] as JSON to out. It returns the exit code of the process.
func Main(user string, out io.Writer) int {
	a, err := updateUser(Options{User: user, Env: os.LookupEnv})
	if err != nil {
		a.Error = err.Error()
	}
	if json.NewEncoder(out).Encode(a) != nil {
		return 1
	}
	return 0
}

// agent is the agent's user during the update.
type agent boot.Identity

// updateUser gives the agent's user the ids in HERMES_UID and HERMES_GID (or PUID and PGID). It also adds the user to the
// groups of the Docker socket and of graphics devices (contract, section 2.1, steps 3 and 4). It changes only /etc/passwd and
// /etc/group. A second call changes nothing.
//
// If /etc can't be written, the result still has the wanted ids, and a message. An error means that the container must not
// start: a wanted uid belongs to another user, or the user does not exist ([account.ErrNotFound]). updateUser blocks only on
// /etc and /dev.
func updateUser(o Options) (agent, error) {
	user, err := account.Lookup(o.Root, o.User)
	if err != nil {
		return agent{}, err
	}
	a := agent{User: user}
	if user.UID == 0 {
		return a, nil // an agent with the uid of root keeps its ids
	}
	etc, err := db.Open(o.Root)
	if err != nil {
		a.logWarning("%v — continuing", err)
		return a, nil
	}
	if err := a.changeIDs(o, etc); err != nil {
		return agent{User: user}, err
	}
	if user.Name != "" {
		a.joinDocker(o, etc)
		a.joinGraphics(o, etc)
		a.User.Groups = etc.Groups(user.Name, a.User.GID)
	}
	if etc.Changed() {
		if err := etc.Save(); err != nil {
			a.logWarning("%v: the agent runs with the ids %d:%d, but tools that read /etc show others", err, a.User.UID, a.User.GID)
		}
	}
	return a, nil
}

// requestedID returns the id in one of two variables of the container. An invalid id is ignored with a warning.
func (a *agent) requestedID(o Options, names [2]string) (id uint32, ok bool) {
	id, name, text, ok := account.RequestedID(func(name string) string { return boot.EnvOf(o.Env, name) }, names)
	if !ok && text != "" {
		a.logWarning("%s=%q is ignored: it is not a number from 1 to 65534", name, text)
	}
	return id, ok
}

// changeIDs sets the requested ids in a and in etc. [db.DB.Save] writes them to /etc later.
func (a *agent) changeIDs(o Options, etc *db.DB) error {
	name := cmp.Or(a.User.Name, o.User)
	if uid, ok := a.requestedID(o, account.UIDVars); ok && uid != a.User.UID {
		if a.User.Name != "" {
			if err := etc.SetUID(a.User.Name, uid); errors.Is(err, db.ErrTaken) {
				return fmt.Errorf("%w; choose another number for HERMES_UID (or PUID)", err)
			} else if err != nil {
				return err
			}
		}
		a.logInfo("Changing %s UID to %d", name, uid)
		a.User.UID = uid
	}
	if gid, ok := a.requestedID(o, account.GIDVars); ok && gid != a.User.GID {
		if a.User.Name != "" {
			if err := etc.SetGID(a.User.Name, gid); err != nil {
				return err
			}
		}
		a.logInfo("Changing %s GID to %d", name, gid)
		a.User.GID, a.User.Groups = gid, []uint32{gid}
	}
	return nil
}

func (a *agent) logInfo(format string, args ...any) {
	a.LogLines = append(a.LogLines, boot.Info(fmt.Sprintf(format, args...)))
}

func (a *agent) logWarning(format string, args ...any) {
	a.LogLines = append(a.LogLines, boot.Warning(fmt.Sprintf(format, args...)))
}

// joinDocker adds the agent's user to the group of the Docker socket. This group has the power of root on the host.
func (a *agent) joinDocker(o Options, etc *db.DB) {
	sockets := o.Sockets
	if sockets == nil {
		sockets = boot.DockerSockets
	}
	switch path, gid, ok := boot.DockerSocket(sockets, o.Env); {
	case !ok:
	case slices.Contains(etc.Groups(a.User.Name, a.User.GID), gid):
		a.LogLines = append(a.LogLines, boot.AlreadyInGroupMessage(a.User.Name, gid, path))
	default:
		a.joinGroup(etc, gid, path, "hostdocker", "Docker socket")
	}
}

// joinGraphics adds the agent's user to the groups of graphics devices.
func (a *agent) joinGraphics(o Options, etc *db.DB) {
	dir := cmp.Or(o.GraphicsDir, boot.GraphicsDir)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if gid, ok := boot.DeviceGroup(e); ok && !slices.Contains(etc.Groups(a.User.Name, a.User.GID), gid) {
			a.joinGroup(etc, gid, filepath.Join(dir, e.Name()), "hostdri", "graphics device")
		}
	}
}

// joinGroup adds the agent's user to gid, the group of a device. newName is the name for a group without a name. Messages contain
// what, the device's path, and kind.
func (a *agent) joinGroup(etc *db.DB, gid uint32, what, newName, kind string) {
	name, ok := etc.GroupName(gid)
	if !ok {
		name = newName
		if _, exists := etc.Group(name); exists {
			name += strconv.FormatUint(uint64(gid), 10)
		}
		if err := etc.AddGroup(name, gid); err != nil {
			a.logWarning("%v — no access to %s", err, what)
			return
		}
		a.logInfo("Created group %s (GID %d) for %s", name, gid, kind)
	}
	if err := etc.AddMember(name, a.User.Name); err != nil {
		a.logWarning("%v — no access to %s", err, what)
		return
	}
	a.logInfo("Added %s to group %s (GID %d) for %s", a.User.Name, name, gid, what)
}
