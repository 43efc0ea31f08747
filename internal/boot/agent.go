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
	"hinit/internal/notify"
	"hinit/internal/proc"
	"hinit/shim/agentuser"
)

// Agent describes the agent's user. The agent's processes run as this user, and hinit does its own work on the data volume
// as this user. The ids are valid even if /etc could not be changed.
type Agent struct {
	User  account.User // Name is "" if the user is not in /etc/passwd
	Known bool         // /etc/passwd has the user
	Lines []Line       // messages for the log about changed ids

	// [ResolveAgent], [NewAgent] and [CallerAsAgent] set Cred and Actor. Package identity leaves both empty, because it only changes
	// /etc.
	Cred  *proc.Cred // credentials for the agent's processes; nil: don't change the user
	Actor *fsutil.Actor
	// Tenants are the profiles that had their own users when this program started. [Agent.WithTenants] sets the field.
	Tenants Tenants
}

// WithTenants returns a copy of the agent with the tenants (profiles that have their own users) of a configuration.
func (a Agent) WithTenants(cfg *config.Config) Agent {
	a.Tenants = TenantsOf(cfg, a.Actor)
	return a
}

// Homes returns the actor for file operations in the homes of profiles. It acts as the agent, except inside the home of a
// tenant, where it acts as the tenant's user.
func (a Agent) Homes(home string) *fsutil.Actor {
	if !a.Tenants.On {
		return a.Actor
	}
	return a.Actor.OwnHomes(home+"/"+ProfilesDir, a.Tenants.UIDs.First, a.Tenants.UIDs.Last)
}

// RunsAs reports whether a process with these credentials runs as the agent. Only the command of such a process may contain
// values that the agent can write.
func (a Agent) RunsAs(cred *proc.Cred) bool {
	return cred == nil && a.Cred == nil || cred != nil && a.Cred != nil && cred.UID == a.Cred.UID && cred.GID == a.Cred.GID
}

// PublishIDs writes two files to dir, the runtime directory. Programs that can't read the configuration, such as the exec shim
// and the status page, read these files. [account.IDsFile] holds agent.user of the configuration, uid, gid and groups, each on
// its own line. [account.IsolatedFile] lists the isolated profiles. If the agent's user is hinit's own user, IDsFile is not
// written, and IsolatedFile exists only while profiles are isolated. Only hinit's user can write dir and the files. If dir is "",
// PublishIDs does nothing. It calls warn if the shim looks in another directory. It may block on the disk.
func (a Agent) PublishIDs(dir string, cfg *config.Config, warn func(format string, args ...any)) error {
	if dir == "" {
		return nil
	}
	d, err := fsutil.OpenNoLink(dir, fsutil.Self().Limited(blocking.Runtime))
	if err != nil {
		return err
	}
	defer d.Close()
	replace := func(name, text string) error {
		return d.Replace(name, []byte(text), fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	}
	if a.Cred == nil && !cfg.AnyIsolation() { // an exec shim that runs as root would distrust a list that root does not own
		return d.RemoveAll(account.IsolatedFile)
	}
	if err := replace(account.IsolatedFile, isolatedText(cfg)); err != nil || a.Cred == nil {
		return err
	}
	if cfg.AnyIsolation() && dir != systemRuntimeDir {
		warn("docker exec … hermes -p PROFILE is not isolated: the exec shim looks in %s, and the control socket is in %s; leave control.socket and "+
			"HINIT_RUNTIME_DIR as they are by default — continuing", systemRuntimeDir, dir)
	}
	return replace(account.IDsFile, fmt.Sprintf("%s\n%d\n%d\n%s\n", cfg.Agent.User, a.User.UID, a.User.GID, strings.Trim(fmt.Sprint(a.User.Groups), "[]")))
}

// isolatedText returns the content of [account.IsolatedFile].
func isolatedText(cfg *config.Config) string {
	lines := []string{}
	if cfg.Isolation.IsIsolated() {
		lines = append(lines, "*\n-default\n")
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Profiles.Overrides)) {
		switch on, all := cfg.IsolationOf(name).IsIsolated(), cfg.Isolation.IsIsolated(); {
		case on && !all:
			lines = append(lines, name+"\n")
		case all && !on:
			lines = append(lines, "-"+name+"\n")
		}
	}
	return strings.Join(lines, "")
}

// UnknownAgent returns the error for services that can't run, because their user was not found. The argument who is that user,
// and err is the error of the lookup. If the user does not exist, the error advises what to change.
func UnknownAgent(who string, err error) error {
	if errors.Is(err, account.ErrNotFound) {
		return fmt.Errorf("cannot run services as %q: %w; create the user in the image, or set agent.user in hinit.yaml to a name or uid:gid", who, err)
	}
	return fmt.Errorf("cannot run services as %q: %w", who, err)
}

// NewAgent returns the agent for a user that the caller has already looked up. known reports whether /etc/passwd has this user.
func NewAgent(user account.User, known bool) Agent { return Agent{User: user, Known: known}.withCred() }

// CallerAsAgent returns this process's own user in place of the agent. It is used when hinit supervises services without an agent.
func CallerAsAgent() Agent {
	return Agent{User: account.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, Known: true, Actor: fsutil.Self()}
}

// withCred sets Cred and Actor according to what this process may do.
func (a Agent) withCred() Agent {
	if os.Geteuid() != 0 { // this process can't change users, so everything runs as the current user
		if !a.Known {
			a.User = CallerAsAgent().User
		}
		a.Actor = fsutil.Self()
		return a
	}
	a.Actor = fsutil.NewActor(fsutil.Identity{UID: a.User.UID, GID: a.User.GID, Groups: a.User.Groups})
	if a.User.UID != 0 { // set Cred even if root can't change users: a failed start is safer than an agent with root's rights
		a.Cred = &proc.Cred{UID: a.User.UID, GID: a.User.GID, Groups: a.User.Groups}
	}
	return a
}

// CredFor returns the credentials for a service. The argument who is the service's user, or "" for the agent. A nil result means
// no change of user. CredFor blocks on /etc unless the user is the agent.
func (a Agent) CredFor(cfg *config.Config, who string) (*proc.Cred, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if who == "" || who == cfg.Agent.User {
		return a.Cred, nil // a.Cred is valid even if /etc could not be changed
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

// ContainerEnv returns the environment for programs of the container, without the variables of an outer hinit. HERMES_HOME is
// always set, so that the agent uses the same directory as hinit. PATH is in the order that the agent's programs need.
func ContainerEnv(home string) []string {
	env := OuterEnv()
	if os.Getenv("HERMES_HOME") == "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	if path := proc.Getenv(env, "PATH"); path != "" {
		env = proc.SetEnv(env, map[string]string{"PATH": agentuser.Path(path, home)})
	}
	return env
}

// OuterEnv returns this process's environment without two kinds of variables that a service must not inherit. The first is
// proc.TagVar, by which an outer hinit recognizes the processes that it supervises. The others are the variables for
// notifications. With them, a service would send its notifications to the program that started this container.
func OuterEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == proc.TagVar || slices.Contains(notify.Vars(), name)
	})
}
