package boot

import (
	"cmp"
	"errors"
	"fmt"

	"hinit/internal/account"
	"hinit/internal/account/db"
)

// IdentityOptions describe the agent's user. User and Env are required.
type IdentityOptions struct {
	User string // agent.user: a name, a uid, or "uid:gid"
	UID  int    // effective user of this process; only root changes anything
	Env  func(name string) (string, bool)

	Root    string   // directory that holds another etc, for tests; "" for the real one
	Sockets []string // candidates for the Docker socket, of which the first existing one counts; nil: the image's
	DRI     string   // directory of the graphics devices; "": /dev/dri
}

// Identity settles the agent's user before any other work of root. It applies HERMES_UID and HERMES_GID (PUID and PGID where they
// are empty). The user joins the groups of the Docker socket and of the graphics devices (contract, section 2.1, steps 3 and 4).
// It changes only /etc/passwd and /etc/group; a second call changes nothing.
//
// If /etc can't be written, the result has the wanted ids all the same and a line says so. A process that is not root changes
// nothing.
//
// An error means that the container should not start: a wanted uid belongs to somebody else, or the user does not exist
// ([account.ErrNotFound]; only for root). Identity blocks on /etc and /dev only.
func Identity(o IdentityOptions) (Agent, error) {
	user, err := account.Lookup(o.Root, o.User)
	if o.UID != 0 {
		return unprivileged(o, user, err == nil), nil
	}
	if err != nil {
		return Agent{}, err
	}
	a := Agent{User: user, Known: true}
	if user.UID == 0 {
		return a, nil // the agent runs as root: it has every right and no ids to change
	}
	etc, err := db.Open(o.Root)
	if err != nil {
		a.Lines = append(a.Lines, Warning(err.Error()+" — continuing"))
		return a, nil
	}
	if err := a.remap(o, etc); err != nil {
		return Agent{User: user, Known: true}, err
	}
	if user.Name != "" {
		a.joinDocker(o, etc)
		a.joinDRI(o, etc)
		a.User.Groups = etc.Groups(user.Name, a.User.GID)
	}
	if etc.Changed() {
		if err := etc.Save(); err != nil {
			a.Lines = append(a.Lines, Warning(fmt.Sprintf("%v: the agent runs with the ids %d:%d, but tools that read /etc show others", err, a.User.UID, a.User.GID)))
		}
	}
	return a, nil
}

func unprivileged(o IdentityOptions, user account.User, known bool) Agent {
	a := Agent{User: user, Known: known}
	for _, names := range [][2]string{account.UIDVars, account.GIDVars} {
		if _, name, text, _ := account.Asked(func(name string) string { return Value(o.Env, name) }, names); text != "" {
			a.Lines = append(a.Lines, Warning(name+" has no effect in a container that is not started as root"))
		}
	}
	return a
}

// asked returns the id that the container asks for by one of two variables. A text that is no id is reported and ignored.
func (a *Agent) asked(o IdentityOptions, names [2]string) (id uint32, ok bool) {
	id, name, text, ok := account.Asked(func(name string) string { return Value(o.Env, name) }, names)
	if !ok && text != "" {
		a.Lines = append(a.Lines, Warning(fmt.Sprintf("%s=%q is ignored: it is not a number from 1 to 65534", name, text)))
	}
	return id, ok
}

// remap changes the ids of the agent's user in memory.
func (a *Agent) remap(o IdentityOptions, etc *db.DB) error {
	name := cmp.Or(a.User.Name, o.User)
	if uid, ok := a.asked(o, account.UIDVars); ok && uid != a.User.UID {
		if a.User.Name != "" {
			if err := etc.SetUID(a.User.Name, uid); errors.Is(err, db.ErrTaken) {
				return fmt.Errorf("%w; choose another number for HERMES_UID (or PUID)", err)
			} else if err != nil {
				return err
			}
		}
		a.say("Changing %s UID to %d", name, uid)
		a.User.UID, a.Remapped = uid, true
	}
	if gid, ok := a.asked(o, account.GIDVars); ok && gid != a.User.GID {
		if a.User.Name != "" {
			if err := etc.SetGID(a.User.Name, gid); err != nil {
				return err
			}
		}
		a.say("Changing %s GID to %d", name, gid)
		a.User.GID, a.Remapped = gid, true
		a.User.Groups = []uint32{gid}
	}
	return nil
}

func (a *Agent) say(format string, args ...any) {
	a.Lines = append(a.Lines, Info(fmt.Sprintf(format, args...)))
}
