package boot

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"hinit/internal/account"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
)

// Agent is the user of the agent's processes, and of the init's work on the data volume. It is valid even if /etc could not be
// changed.
type Agent struct {
	User  account.User // Name is "" if the user is not in /etc/passwd
	Known bool         // /etc/passwd has the user
	Lines []Line       // messages about changed ids

	// [SettleAgent], [LookupAgent] and [NewAgent] set these fields. In the boot program they are empty.
	Cred  *proc.Cred // nil: don't change the user
	Actor *fsutil.Actor
	// Tenants are the profiles that had their own users when this program started. [Agent.WithTenants] sets the field.
	Tenants Tenants
}

// WithTenants returns the agent with the tenants of a configuration.
func (a Agent) WithTenants(cfg *config.Config) Agent {
	a.Tenants = TenantsOf(cfg, a.Actor)
	return a
}

// Homes returns the actor for file operations in the homes of profiles. It acts as the agent, but as the tenant inside the home
// of a tenant.
func (a Agent) Homes(home string) *fsutil.Actor {
	if !a.Tenants.On {
		return a.Actor
	}
	return a.Actor.OwnHomes(home+"/"+ProfilesDir, a.Tenants.UIDs.First, a.Tenants.UIDs.Last)
}

// RunsAs reports whether a process with these credentials runs as the agent. Only then may its command contain values that the agent
// writes.
func (a Agent) RunsAs(cred *proc.Cred) bool {
	return cred == nil && a.Cred == nil || cred != nil && a.Cred != nil && cred.UID == a.Cred.UID && cred.GID == a.Cred.GID
}

// PublishIDs writes the agent's ids to a file for programs such as the exec shim, because /etc may be read-only and have other ids.
// Only root can write dir and the file. It has agent.user of the configuration, uid, gid and groups, a line each. If dir is "" or
// the agent's user is hinit's, PublishIDs does nothing. warn is called if the shim uses another directory. It may block on the disk.
func (a Agent) PublishIDs(dir string, cfg *config.Config, warn func(format string, args ...any)) error {
	if dir == "" || a.Cred == nil {
		return nil
	}
	if cfg.Isolates() && dir != systemRuntimeDir {
		warn("docker exec … hermes -p PROFILE is not isolated: the exec shim looks in %s, and the control socket is in %s; leave control.socket and "+
			"HINIT_RUNTIME_DIR as they are by default — continuing", systemRuntimeDir, dir)
	}
	d, err := fsutil.OpenReal(dir, fsutil.Self().In(blocking.Runtime))
	if err != nil {
		return err
	}
	defer d.Close()
	text := fmt.Sprintf("%s\n%d\n%d\n%s\n", cfg.Agent.User, a.User.UID, a.User.GID, strings.Trim(fmt.Sprint(a.User.Groups), "[]"))
	replace := func(name, text string) error {
		return d.Replace(name, []byte(text), fsutil.ReplaceOptions{Mode: 0o644, Volatile: true})
	}
	return errors.Join(replace(account.IDsFile, text), replace(account.IsolatedFile, isolatedText(cfg)))
}

// isolatedText lists the isolated profiles for the exec shim, see [account.IsolatedFile].
func isolatedText(cfg *config.Config) string {
	var text strings.Builder
	if cfg.Isolation.On() {
		text.WriteString("*\n-default\n")
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Profiles.Own)) {
		switch on, all := cfg.IsolationOf(name).On(), cfg.Isolation.On(); {
		case on && !all:
			text.WriteString(name + "\n")
		case all && !on:
			text.WriteString("-" + name + "\n")
		}
	}
	return text.String()
}

// UnknownAgent returns the error for services that cannot run because their user is unknown. It advises what to change.
func UnknownAgent(who string, err error) error {
	if errors.Is(err, account.ErrNotFound) {
		return fmt.Errorf("cannot run services as %q: %w; create the user in the image, or set agent.user in hinit.yaml to a name or uid:gid", who, err)
	}
	return fmt.Errorf("cannot run services as %q: %w", who, err)
}

// NewAgent returns the agent for a user that is already determined. known says that /etc/passwd has the user.
func NewAgent(user account.User, known bool) Agent { return Agent{User: user, Known: known}.withCred() }

// Caller returns this process's own user as an agent, for a plain supervisor.
func Caller() Agent { return Agent{User: currentUser(), Known: true, Actor: fsutil.Self()} }

func currentUser() account.User {
	return account.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// withCred sets Cred and Actor.
func (a Agent) withCred() Agent {
	if os.Geteuid() != 0 { // this process can't change users, so everything runs as the current user
		if !a.Known {
			a.User = currentUser()
		}
		a.Actor = fsutil.Self()
		return a
	}
	a.Actor = fsutil.NewActor(fsutil.Identity{UID: a.User.UID, GID: a.User.GID, Groups: a.User.Groups})
	if a.User.UID != 0 { // set even if root cannot change users: then the start fails, and the agent never runs as root by accident
		a.Cred = &proc.Cred{UID: a.User.UID, GID: a.User.GID, Groups: a.User.Groups}
	}
	return a
}

// CredFor returns the credentials of a service whose user is who, "" for the agent's; nil means no change of user. It blocks on
// /etc unless the user is the agent.
func (a Agent) CredFor(cfg *config.Config, who string) (*proc.Cred, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if who == "" || who == cfg.Agent.User {
		return a.Cred, nil // these ids count even if /etc could not be changed
	}
	user, err := blocking.Get(blocking.Foreign, func() (account.User, error) { return account.Lookup("", who) })
	if err != nil {
		return nil, fmt.Errorf("cannot run a service as %q: %w", who, err)
	}
	if user.UID == 0 {
		return nil, nil
	}
	return &proc.Cred{UID: user.UID, GID: user.GID, Groups: user.Groups}, nil
}
