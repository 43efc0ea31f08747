package main

import (
	"errors"
	"fmt"
	"os"

	"hinit/internal/account"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
)

// identity is who services and the CMD run as, and as whom the init touches the data volume.
type identity struct {
	user  account.User
	known bool       // the configured user exists
	cred  *proc.Cred // nil: no switch, they run as the init does
	actor *fsutil.Actor
}

// lookupAgent finds the agent's user. An init that is not root can't switch, so there a missing user is no error.
func lookupAgent(cfg *config.Config) (identity, error) {
	who := cfg.Agent.User
	user, err := account.Lookup("", who)
	if os.Geteuid() != 0 {
		self := account.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Home: cfg.Home}
		id := identity{user: self, known: err == nil, actor: fsutil.Self()}
		if err == nil {
			id.user.Name = user.Name
		}
		if err == nil && user.UID != self.UID {
			id.user = user
		}
		return id, nil
	}
	if errors.Is(err, account.ErrNotFound) {
		return identity{}, fmt.Errorf("cannot run services as %q: %w; create the user in the image, or set agent.user in hinit.yaml to a name or uid:gid", who, err)
	}
	if err != nil {
		return identity{}, fmt.Errorf("cannot run services as %q: %w", who, err)
	}
	id := identity{
		user: user, known: true,
		actor: fsutil.NewActor(fsutil.Identity{UID: user.UID, GID: user.GID, Groups: user.Groups}),
	}
	if user.UID != 0 {
		id.cred = &proc.Cred{UID: user.UID, GID: user.GID, Groups: user.Groups}
	}
	return id, nil
}

// credFor returns the identity of a service that runs as somebody else than the agent.
func (id identity) credFor(who string) (*proc.Cred, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	user, err := account.Lookup("", who)
	if err != nil {
		return nil, fmt.Errorf("cannot run a service as %q: %w", who, err)
	}
	if user.UID == 0 {
		return nil, nil
	}
	return &proc.Cred{UID: user.UID, GID: user.GID, Groups: user.Groups}, nil
}

// admit refuses to be started as a user that is neither root nor the agent's: nothing on the volume would be writable,
// and nothing could be repaired (contract, section 3).
func (id identity) admit(env func(string) (string, bool)) error {
	uid := os.Geteuid()
	if uid == 0 || !id.known || id.user.UID == uint32(uid) {
		return nil
	}
	if v, _ := env("HINIT_ALLOW_ANY_UID"); config.ShellTruthy(v) {
		return nil
	}
	return fmt.Errorf(`[hermes] ERROR: container started with --user %d, but the data belongs to %s (uid %d)
start it as root and set HERMES_UID and HERMES_GID (or PUID and PGID) to the ids you want, or HINIT_ALLOW_ANY_UID=1 to run as %d`,
		uid, id.user.Name, id.user.UID, uid)
}
