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

// Agent is the user of the agent's processes and of the init's work on the data volume. It is valid even if /etc could not be
// changed.
type Agent struct {
	User  account.User // Name is "" when the user has no line in /etc/passwd
	Known bool         // /etc/passwd has the user
	Lines []Line       // messages about the change of its ids

	// [SettleAgent], [LookupAgent] and [NewAgent] set these. The boot program leaves them empty.
	Cred  *proc.Cred // nil: no switch, they run as the init does
	Actor *fsutil.Actor
	// Tenants are the profiles with users of their own when the program began. [Agent.Serving] sets it.
	Tenants Tenants
}

// Serving returns the agent with the tenants of a configuration.
func (a Agent) Serving(cfg *config.Config) Agent {
	a.Tenants = TenantsOf(cfg, a.Actor)
	return a
}

// Homes returns the actor that works on the homes of profiles: as the agent, and as a tenant in the home of that.
func (a Agent) Homes(home string) *fsutil.Actor {
	if !a.Tenants.On {
		return a.Actor
	}
	return a.Actor.OwnHomes(home+"/"+ProfilesDir, a.Tenants.UIDs.First, a.Tenants.UIDs.Last)
}

// Is reports whether a process with these credentials is the agent. Only then may values that the agent writes be part of its command.
func (a Agent) Is(cred *proc.Cred) bool {
	return cred == nil && a.Cred == nil || cred != nil && a.Cred != nil && cred.UID == a.Cred.UID && cred.GID == a.Cred.GID
}

// Publish tells programs such as the exec shim which ids the agent has: /etc may be read-only and name others. dir is root's alone, and the
// file in it too: agent.user of the configuration, uid, gid and groups, a line each. Without a directory, or where all is the agent's, it
// does nothing. warn is told when the shim looks elsewhere. It may block on the disk.
func (a Agent) Publish(dir string, cfg *config.Config, warn func(format string, args ...any)) error {
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
	return errors.Join(replace(account.Published, text), replace(account.Isolated, isolatedText(cfg)))
}

// isolatedText lists the isolated profiles for the exec shim, see [account.Isolated].
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

// UnknownAgent says why services can't run as a user, and what to do about it.
func UnknownAgent(who string, err error) error {
	if errors.Is(err, account.ErrNotFound) {
		return fmt.Errorf("cannot run services as %q: %w; create the user in the image, or set agent.user in hinit.yaml to a name or uid:gid", who, err)
	}
	return fmt.Errorf("cannot run services as %q: %w", who, err)
}

// NewAgent returns an agent that was settled before. known says that /etc/passwd has the user.
func NewAgent(user account.User, known bool) Agent { return Agent{User: user, Known: known}.equipped() }

// Caller returns this process's own user as an agent. A plain supervisor runs services so.
func Caller() Agent { return Agent{User: currentUser(), Known: true, Actor: fsutil.Self()} }

func currentUser() account.User {
	return account.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// equipped adds the handle for file operations as the agent's user.
func (a Agent) equipped() Agent {
	if os.Geteuid() != 0 { // no switch is possible, so everything is done as the current user
		if !a.Known {
			a.User = currentUser()
		}
		a.Actor = fsutil.Self()
		return a
	}
	a.Actor = fsutil.NewActor(fsutil.Identity{UID: a.User.UID, GID: a.User.GID, Groups: a.User.Groups})
	if a.User.UID != 0 { // where root may not switch, nothing is started: the agent never runs as root by accident
		a.Cred = &proc.Cred{UID: a.User.UID, GID: a.User.GID, Groups: a.User.Groups}
	}
	return a
}

// CredFor returns the credentials of a service whose user is who, "" for the agent's; nil means no switch. It blocks on /etc for
// any other user than the agent.
func (a Agent) CredFor(cfg *config.Config, who string) (*proc.Cred, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if who == "" || who == cfg.Agent.User {
		return a.Cred, nil // also when /etc could not be changed to say so
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
