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

// Agent is the user of the agent's processes. hinit also works on the data volume as this user. The ids are right even if hinit
// could not write them to /etc.
type Agent struct {
	User     account.User // Name is "" if the user is not in /etc/passwd
	InPasswd bool         // /etc/passwd has the user
	LogLines []LogLine    // log messages about changed ids

	Cred  *proc.Cred // user and groups for the agent's processes; nil to keep hinit's own
	Actor *fsutil.Actor
	// Tenants are the profiles that had their own users at the start of this program, see [Agent.WithTenants].
	Tenants Tenants
}

// WithTenants returns a copy of the agent with the tenants of a configuration: the profiles with their own users.
func (a Agent) WithTenants(cfg *config.Config) Agent {
	a.Tenants = TenantsOf(cfg, a.Actor)
	return a
}

// HomesActor returns the user for file operations in the homes of profiles: the tenant inside a tenant's home, otherwise the
// agent. home is the data directory.
func (a Agent) HomesActor(home string) *fsutil.Actor {
	if !a.Tenants.Enabled {
		return a.Actor
	}
	return a.Actor.WithHomesOf(home+"/"+ProfilesDir, a.Tenants.UIDs.First, a.Tenants.UIDs.Last)
}

// RunsAs reports whether a process with these credentials runs as the agent. Only the command of such a process may contain
// values that the agent can write.
func (a Agent) RunsAs(cred *proc.Cred) bool {
	return cred == nil && a.Cred == nil || cred != nil && a.Cred != nil && cred.UID == a.Cred.UID && cred.GID == a.Cred.GID
}

// PublishIDs writes two files to the runtime directory dir, for programs that can't read hinit.yaml, such as the exec shim and
// the status page. [account.AgentIDsFile] has agent.user, uid, gid and groups, each on its own line.
// [account.IsolatedProfilesFile] lists the isolated profiles. If the agent's user is hinit's own, PublishIDs writes no
// AgentIDsFile, and an IsolatedProfilesFile only while profiles are isolated. Only hinit's user can write dir and the files.
// PublishIDs does nothing if dir is "". It calls warn if the shim looks in another directory. It may block on the disk.
func (a Agent) PublishIDs(dir string, cfg *config.Config, warn func(format string, args ...any)) error {
	if dir == "" {
		return nil
	}
	d, err := fsutil.OpenNoLink(dir, fsutil.ProcessActor().WithPool(blocking.Runtime))
	if err != nil {
		return err
	}
	defer d.Close()
	replace := func(name, text string) error {
		return d.Replace(name, []byte(text), fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	}
	if a.Cred == nil && !cfg.AnyIsolated() { // a shim that runs as root would not trust a list that another user owns
		return d.RemoveAll(account.IsolatedProfilesFile)
	}
	if err := replace(account.IsolatedProfilesFile, isolatedText(cfg)); err != nil || a.Cred == nil {
		return err
	}
	if cfg.AnyIsolated() && dir != systemRuntimeDir {
		warn("docker exec … hermes -p PROFILE is not isolated: the exec shim looks in %s, and the control socket is in %s; leave control.socket and "+
			"HINIT_RUNTIME_DIR as they are by default — continuing", systemRuntimeDir, dir)
	}
	return replace(account.AgentIDsFile, fmt.Sprintf("%s\n%d\n%d\n%s\n", cfg.Agent.User, a.User.UID, a.User.GID, strings.Trim(fmt.Sprint(a.User.Groups), "[]")))
}

// isolatedText returns the content of [account.IsolatedProfilesFile].
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

// UnknownAgent returns an error for services that can't run, because the look-up of user has failed with err. If the user does
// not exist, the error says what to change.
func UnknownAgent(user string, err error) error {
	if errors.Is(err, account.ErrNotFound) {
		return fmt.Errorf("cannot run services as %q: %w; create the user in the image, or set agent.user in hinit.yaml to a name or uid:gid", user, err)
	}
	return fmt.Errorf("cannot run services as %q: %w", user, err)
}

// NewAgent returns the agent for a user that was already looked up. known means that /etc/passwd has this user.
func NewAgent(user account.User, ok bool) Agent { return Agent{User: user, InPasswd: ok}.withCred() }

// CallerAsAgent returns the user of this process as the agent, for a supervisor without an agent.
func CallerAsAgent() Agent {
	return Agent{User: account.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, InPasswd: true, Actor: fsutil.ProcessActor()}
}

// withCred sets Cred and Actor, according to the privileges of this process.
func (a Agent) withCred() Agent {
	if os.Geteuid() != 0 {
		if !a.InPasswd {
			a.User = CallerAsAgent().User
		}
		a.Actor = fsutil.ProcessActor()
		return a
	}
	id := fsutil.Identity{UID: a.User.UID, GID: a.User.GID, Groups: a.User.Groups}
	a.Actor = fsutil.NewActor(id)
	if a.User.UID != 0 { // set Cred even if root can't change users: a failed start is safer than an agent that runs as root
		a.Cred = &id
	}
	return a
}

// CredFor returns user and groups for a service of the user userName, or of the agent for ""; nil to keep hinit's own. It reads
// /etc, and may block there, unless the user is the agent.
func (a Agent) CredFor(cfg *config.Config, userName string) (*proc.Cred, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if userName == "" || userName == cfg.Agent.User {
		return a.Cred, nil // these are the requested ids, even if /etc could not be changed
	}
	user, err := blocking.Get(blocking.Foreign, func() (account.User, error) { return account.Lookup("", userName) })
	if err != nil {
		return nil, fmt.Errorf("cannot run a service as %q: %w", userName, err)
	}
	if user.UID == 0 {
		return nil, nil
	}
	return &proc.Cred{UID: user.UID, GID: user.GID, Groups: user.Groups}, nil
}

// ContainerEnv returns the environment of the container's programs, without the variables of an outer hinit. HERMES_HOME is
// always set, so that the agent uses the same directory as hinit. PATH has the order that the agent's programs need.
func ContainerEnv(home string) []string {
	env := InheritedEnv()
	if os.Getenv("HERMES_HOME") == "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	if path := proc.Getenv(env, "PATH"); path != "" {
		env = proc.SetEnv(env, map[string]string{"PATH": agentuser.AgentPath(path, home)})
	}
	return env
}

// InheritedEnv returns the environment of this process, without variables of an outer init. An outer hinit finds its processes by
// proc.TagVar. The variables for notifications would send messages to the program that started this container.
func InheritedEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == proc.TagVar || slices.Contains(notify.VarNames(), name)
	})
}
