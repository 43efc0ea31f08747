package units

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"hinit/internal/config"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/profiles"
)

// isolator is the program that isolates a command: it is beside this one, where only root can have put it.
var isolator = sync.OnceValue(func() string {
	self, _ := os.Executable() // without /proc nothing starts
	return filepath.Join(filepath.Dir(self), isolation.Program)
})

// isolate has a process of a profile start as hinit-isolate, which becomes the command, where the configuration isolates the profile.
func (m *Maker) isolate(cfg *config.Config, p profiles.Profile, spec *proc.Spec) {
	own := cfg.IsolationOf(p.Name)
	if !own.On() {
		return
	}
	plan := isolation.Plan{
		Name: p.Name, Home: p.Home, Ports: own.Ports, User: own.Mode == config.IsolationUser, Control: own.Control, Degrade: own.Missing == config.MissingDegrade,
		Hide: append(m.agentPlaces(), filepath.Dir(cfg.Control.Socket), cfg.Logs.Dir),
	}
	if cfg.Path != "" {
		plan.Hide = append(plan.Hide, cfg.Path) // it may have the secrets of other profiles
	}
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
	spec.Argv = plan.Argv(isolator(), spec.Argv)
	if spec.Dir != p.Home && !strings.HasPrefix(spec.Dir, p.Home+"/") {
		spec.Dir = p.Home
	}
}
