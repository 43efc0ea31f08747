package units

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/internal/trust"
	"hinit/profiles"
)

// isolateArgs are the arguments of hinit-isolate that all isolated profiles have in common, for one configuration and one home.
type isolateArgs struct {
	cfg  *config.Config
	home string
	args []string
}

// isolate makes a spec start hinit-isolate, which confines itself and then executes the original command. It does nothing for a
// profile without isolation.
func (m *Maker) isolate(cfg *config.Config, p profiles.Profile, spec *proc.Spec) {
	own := cfg.IsolationOf(p.Name)
	if !own.IsIsolated() {
		return
	}
	shared := m.cachedIsolateArgs.Load()
	if home := m.Home(); shared == nil || shared.cfg != cfg || shared.home != home {
		shared = &isolateArgs{cfg, home, m.sharedArguments(cfg, "rules=")}
		m.cachedIsolateArgs.Store(shared)
	}
	plan := []string{"name=" + p.Name, "home=" + p.Home}
	if i := slices.IndexFunc(spec.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=/") }); i >= 0 {
		// with HOME in the plan, all profiles can share one environment
		plan, spec.Env = append(plan, spec.Env[i]), slices.Delete(spec.Env, i, i+1)
	}
	for _, path := range own.SharedPaths {
		path = cfg.ExpandString(path, placeholders(p))
		if read, only := strings.CutSuffix(path, config.ShareReadOnly); only {
			plan = append(plan, "read="+filepath.Clean(read))
		} else {
			plan = append(plan, "share="+filepath.Clean(path))
		}
	}
	for _, port := range own.Ports {
		plan = append(plan, "port="+strconv.Itoa(port))
	}
	switch {
	case own.MayUseControlSocket:
		plan = append(plan, "control", "share="+cfg.Control.Socket)
	case own.Mode == config.IsolationFiles:
		plan = append(plan, "marked")
	}
	if own.OnMissingFeature == config.MissingDegrade {
		plan = append(plan, "degrade")
	}
	if own.Mode == config.IsolationUser {
		var refused string
		if spec.Cred, refused = m.profileUser(cfg, p); refused != "" {
			plan = append(plan, "refused="+refused)
		}
		// The agent could put a program with the name of any tool into its own directories, and this user would run it. So
		// remove the agent's directories from PATH, except those in the home of this profile.
		dirs := slices.DeleteFunc(filepath.SplitList(proc.Getenv(spec.Env, "PATH")), func(dir string) bool { return m.pointsToAgent(dir) && !trust.ContainsPath(dir, p.Home) })
		spec.Env = proc.SetEnv(spec.Env, map[string]string{"PATH": strings.Join(dirs, ":")})
	}
	spec.Argv = isolation.Argv(isolation.ProgramPath(), shared.args, plan, spec.Argv)
	// the agent could link an environment file to a secret file, which the process reads before it is confined
	spec.Setup.RefuseLinks = true
	if spec.Dir != p.Home && !strings.HasPrefix(spec.Dir, p.Home+"/") {
		spec.Dir = p.Home
	}
}

// sharedArguments returns the common arguments of hinit-isolate for all isolated profiles: the files and directories to hide.
// The last argument is key, followed by the path of the rules file. Root writes the isolation rules into that file once, for
// all profiles.
func (m *Maker) sharedArguments(cfg *config.Config, key string) (words []string) {
	hide := append(m.agentDirs(), filepath.Dir(cfg.Control.Socket), cfg.Logs.Dir)
	if cfg.Path != "" {
		hide = append(hide, cfg.Path) // the configuration may contain secrets of other profiles
	}
	slices.Sort(hide)
	for _, path := range slices.Compact(hide) {
		words = append(words, "hide="+path)
	}
	return append(words, key+filepath.Join(filepath.Dir(cfg.Control.Socket), "isolation"))
}

// SaveRulesHook returns a boot step that writes the rules file (see sharedArguments). It is nil if no profile is isolated, or
// if hinit does not run as root.
func (m *Maker) SaveRulesHook(cfg *config.Config) *boot.Hook {
	if m.agent.Cred == nil || !cfg.AnyIsolated() {
		return nil
	}
	return &boot.Hook{Name: "isolation", Command: isolation.Argv(isolation.ProgramPath(), m.sharedArguments(cfg, "save="), nil, []string{"true"}), User: "root"}
}

// profileUser returns the user that runs a profile: the owner of the home if the profile has its own user, otherwise the
// agent's user. refused is the reason why the profile can't have its own user, or "".
func (m *Maker) profileUser(cfg *config.Config, p profiles.Profile) (cred *proc.Cred, refused string) {
	switch {
	case m.agent.Cred == nil:
		return nil, "isolation: user needs root to change users; start the container without --user, or set isolation to files"
	case cfg.UIDRange().Contains(m.agent.User.UID) || cfg.UIDRange().Contains(m.agent.User.GID):
		return m.agent.Cred, fmt.Sprintf("isolation.uids has the agent's own uid %d or gid %d in it; choose another range", m.agent.User.UID, m.agent.User.GID)
	case !m.agent.Tenants.Enabled:
		return m.agent.Cred, "isolation: user begins with the next start of the container; restart it"
	}
	info, err := fsutil.WithParentDir(p.Home, m.agent.Actor.WithPool(blocking.Volume), (*fsutil.Dir).Lstat)
	if err != nil {
		return m.agent.Cred, err.Error()
	}
	tenants, uid := boot.Tenants{UIDs: cfg.UIDRange(), AgentUID: m.agent.User.UID}, fsutil.UID(info)
	if !tenants.HasUID(uid) {
		return m.agent.Cred, fmt.Sprintf("its home %s belongs to uid %d, and to no user of isolation.uids yet; move it with: hinit isolate apply %s", p.Home, uid, p.Name)
	}
	return &proc.Cred{UID: uid, GID: uid, Groups: []uint32{tenants.UIDs.First}}, ""
}
