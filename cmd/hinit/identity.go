package main

import (
	"errors"
	"fmt"
	"os"

	"hinit/internal/account"
	"hinit/internal/blocking"
	"hinit/internal/boot"
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
	lines []boot.Line // what settling it had to say
}

// settleAgent decides who the agent is, as the init does once, before anything else: it may change /etc (contract, section
// 2.1, steps 3 and 4).
func settleAgent(cfg *config.Config) (identity, error) {
	a, err := boot.Identity(boot.IdentityOptions{User: cfg.Agent.User, UID: os.Geteuid(), Env: os.LookupEnv})
	if err != nil {
		return identity{}, unknownAgent(cfg.Agent.User, err)
	}
	id := newIdentity(a.User, a.Known)
	id.lines = a.Lines
	return id, nil
}

// lookupAgent finds the agent's user, as the command line does: it changes nothing.
func lookupAgent(cfg *config.Config) (identity, error) {
	user, err := account.Lookup("", cfg.Agent.User)
	if err != nil && os.Geteuid() == 0 {
		return identity{}, unknownAgent(cfg.Agent.User, err)
	}
	return newIdentity(user, err == nil), nil
}

func unknownAgent(who string, err error) error {
	if errors.Is(err, account.ErrNotFound) {
		return fmt.Errorf("cannot run services as %q: %w; create the user in the image, or set agent.user in hinit.yaml to a name or uid:gid", who, err)
	}
	return fmt.Errorf("cannot run services as %q: %w", who, err)
}

func newIdentity(user account.User, known bool) identity {
	if os.Geteuid() != 0 { // no switch is possible, so everything is done as who we are
		if !known {
			user = account.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
		}
		return identity{user: user, known: known, actor: fsutil.Self()}
	}
	id := identity{
		user: user, known: known,
		actor: fsutil.NewActor(fsutil.Identity{UID: user.UID, GID: user.GID, Groups: user.Groups}),
	}
	if user.UID != 0 { // where root may not switch, nothing is started: the agent never runs as root by accident
		id.cred = &proc.Cred{UID: user.UID, GID: user.GID, Groups: user.Groups}
	}
	return id
}

// credFor returns the identity of a service that runs as somebody else than the agent.
func (id identity) credFor(cfg *config.Config, who string) (*proc.Cred, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if who == "" || who == cfg.Agent.User {
		return id.cred, nil // also when /etc could not be changed to say so
	}
	var user account.User
	err := blocking.Do(blocking.Foreign, func() (err error) {
		user, err = account.Lookup("", who)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot run a service as %q: %w", who, err)
	}
	if user.UID == 0 {
		return nil, nil
	}
	return &proc.Cred{UID: user.UID, GID: user.GID, Groups: user.Groups}, nil
}
