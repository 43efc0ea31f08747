package units

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/profiles"
)

// isolator returns the path of the program that isolates a command. It is in this program's directory, where only root can have
// put it.
var isolator = sync.OnceValue(func() string {
	self, _ := os.Executable() // without /proc no process can be started anyway
	return filepath.Join(filepath.Dir(self), isolation.Program)
})

// isolate makes a process of a profile start by hinit-isolate, which then executes the command, if the profile is isolated.
func (m *Maker) isolate(cfg *config.Config, p profiles.Profile, spec *proc.Spec) {
	own := cfg.IsolationOf(p.Name)
	if !own.On() {
		return
	}
	plan := isolation.Plan{
		Name: p.Name, Home: p.Home, Ports: own.Ports, Control: own.Control, Marked: own.Mode == config.IsolationFiles && !own.Control, Degrade: own.Missing == config.MissingDegrade,
		Hide: append(m.agentPlaces(), filepath.Dir(cfg.Control.Socket), cfg.Logs.Dir),
	}
	if cfg.Path != "" {
		plan.Hide = append(plan.Hide, cfg.Path) // the file may have secrets of other profiles
	}
	slices.Sort(plan.Hide)
	plan.Hide = slices.Compact(plan.Hide) // remove duplicates, because PID 1 keeps this list for each profile
	if own.Control {
		plan.Share = append(plan.Share, cfg.Control.Socket)
	}
	for _, path := range cfg.Expand(own.Share, placeholders(p)) {
		if read, only := strings.CutSuffix(path, config.ShareReadOnly); only {
			plan.Read = append(plan.Read, filepath.Clean(read))
		} else {
			plan.Share = append(plan.Share, filepath.Clean(path))
		}
	}
	if own.Mode == config.IsolationUser {
		spec.Cred, plan.Refused = m.tenant(cfg, p)
	}
	spec.Argv = plan.Argv(isolator(), spec.Argv)
	spec.Setup.NoLinks = true // needed because the files of variables are read before the process is confined
	if spec.Dir != p.Home && !strings.HasPrefix(spec.Dir, p.Home+"/") {
		spec.Dir = p.Home
	}
}

// tenant returns the own user of a profile, which is the owner of its home. It returns the reason if the profile has none.
func (m *Maker) tenant(cfg *config.Config, p profiles.Profile) (cred *proc.Cred, refused string) {
	switch {
	case m.agent.Cred == nil:
		return nil, "isolation: user needs root to change users; start the container without --user, or set isolation to files"
	case cfg.UIDRange().Has(m.agent.User.UID):
		return m.agent.Cred, fmt.Sprintf("isolation.uids has the agent's own uid %d in it; choose another range", m.agent.User.UID)
	}
	if !m.agent.Tenants.On {
		return m.agent.Cred, "isolation: user begins with the next start of the container; restart it"
	}
	uid := uint32(0)
	d, err := fsutil.OpenReal(filepath.Dir(p.Home), m.agent.Actor.In(blocking.Volume))
	if err == nil {
		defer d.Close()
		var info fs.FileInfo
		if info, err = d.Lstat(filepath.Base(p.Home)); err == nil {
			uid = info.Sys().(*syscall.Stat_t).Uid
		}
	}
	tenants := boot.TenantsOf(cfg, m.agent.Actor)
	switch {
	case err != nil:
		return m.agent.Cred, err.Error()
	case !tenants.Has(uid):
		return m.agent.Cred, fmt.Sprintf("its home %s belongs to uid %d, and to no user of isolation.uids yet; move it with: hinit isolate apply %s", p.Home, uid, p.Name)
	}
	return &proc.Cred{UID: uid, GID: uid, Groups: []uint32{tenants.UIDs.First}}, ""
}
