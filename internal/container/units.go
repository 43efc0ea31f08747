package container

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/backoff"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

// cmdName is the service that the container's CMD is. Profiles and configured services can't have the name.
const cmdName = "cmd"

// What services wait for (contract, section 2).
const (
	needBoot     = "boot"     // the hooks have run, and the profiles have been read or do not answer
	needProfiles = "profiles" // the profiles have been read, and what their last gateways have left is removed
)

// met is what has come about of it. It is set before the supervisor is told.
type met struct{ boot, profiles atomic.Bool }

func (m *met) of(need string) *atomic.Bool {
	if need == needBoot {
		return &m.boot
	}
	return &m.profiles
}

// meet lets everything start that waits for a need.
func (c *container) meet(ctx context.Context, need string) error {
	c.met.of(need).Store(true)
	return c.loop.Do(ctx, supervisor.Met{Need: need})
}

// unmet returns what a service has to wait for: a gateway for the boot's decision about its profile, any other service for the
// boot. Its hooks wait for nothing.
func (c *container) unmet(u supervisor.Unit) []string {
	switch {
	case u.Kind == supervisor.KindService && !c.met.boot.Load():
		return []string{needBoot}
	case u.Kind == supervisor.KindGateway && !c.met.profiles.Load() && !c.keeper.exists(u.Profile):
		return []string{needProfiles}
	}
	return nil
}

// meetLate tells the supervisor again of needs that were met while a service was registered.
func (c *container) meetLate(u supervisor.Unit) {
	for _, need := range u.Needs {
		if c.met.of(need).Load() {
			c.loop.Post(supervisor.Met{Need: need})
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func policyOf(r config.Restart, s config.Stop) supervisor.Policy {
	return supervisor.Policy{
		Backoff:    backoff.Policy{Initial: r.Initial, Max: r.Max, Factor: r.Factor, Jitter: r.Jitter},
		ResetAfter: r.ResetAfter, LoopCount: r.CrashLoopCount, LoopWindow: r.CrashLoopWindow,
		ParkOn: r.ParkOn, ImmediateOn: r.ImmediateOn,
		StopSignal: int(s.Signal), Grace: s.Grace,
	}
}

// exports is what the slot of a profile exports if somebody has registered it.
func (c *container) exports(profile string) map[string]string {
	if scanner := c.s6.Load(); scanner != nil {
		return scanner.Exports(profiles.SlotName(profile))
	}
	return nil
}

// gatewayUnit is the gateway of a profile (contract, section 4), with more variables for its environment. Those that hinit.yaml
// sets, or hinit itself, keep their values.
func (c *container) gatewayUnit(cfg *config.Config, p profiles.Profile, exports map[string]string) supervisor.Unit {
	vars := gatewayVars(p)
	command := cfg.Agent.Gateway
	if p.Name == profiles.Default {
		command = cfg.Agent.GatewayDefault
	}
	policy := policyOf(cfg.Restart, cfg.Stop)
	policy.Announces = cfg.Agent.Ready == config.ReadyState
	dir := cfg.ExpandString(cfg.Agent.Cwd, vars)
	return supervisor.Unit{
		Name: profiles.SlotName(p.Name), Profile: p.Name, Kind: supervisor.KindGateway, Policy: policy,
		Spec: proc.Spec{
			Argv: cfg.Expand(command, vars), Env: proc.SetEnv(proc.SetEnv(c.activated(cfg, dir), exports), c.gatewayEnv(cfg, p)),
			Dir: dir, Cred: c.agent.Cred,
		},
		Log: cfg.Logs.Dir + "/" + p.Name + "/current",
	}
}

// gatewayVars are the placeholders that stand for something of a profile.
func gatewayVars(p profiles.Profile) map[string]string {
	return map[string]string{"profile": p.Name, "profile_home": p.Home}
}

// gatewayEnv is what the gateway of a profile has in its environment beside that of the container.
func (c *container) gatewayEnv(cfg *config.Config, p profiles.Profile) map[string]string {
	vars := gatewayVars(p)
	env := make(map[string]string, len(cfg.Agent.Env))
	for name, value := range cfg.Agent.Env {
		env[name] = cfg.ExpandString(value, vars)
	}
	return c.withHome(env)
}

// serviceUnit is a service of hinit.yaml, the dashboard among them.
func (c *container) serviceUnit(cfg *config.Config, s config.Service) (supervisor.Unit, error) {
	cred, err := c.agent.CredFor(cfg, s.User)
	if err != nil {
		return supervisor.Unit{}, err
	}
	limits, err := limitsOf(s.Limits)
	if err != nil {
		return supervisor.Unit{}, fmt.Errorf("cannot define service %q: %w", s.Name, err)
	}
	env, dir := *c.env.Load(), s.Cwd
	if s.Name == config.DashboardName && !c.route.Load().Plain {
		env = c.activated(cfg, s.Cwd)
	}
	env = proc.SetEnv(env, c.withHome(s.Env))
	if c.route.Load().Plain {
		if env, err = c.plainEnv(s); err != nil {
			return supervisor.Unit{}, err
		}
	}
	if c.isRoots(cred) {
		env, dir = c.rootEnv(s.Env), c.rootDir(s.Cwd)
	}
	u := supervisor.Unit{
		Name: s.Name, Kind: supervisor.KindService, Policy: policyOf(s.Restart, s.Stop),
		Spec: proc.Spec{
			Argv: s.Command, Env: env, Dir: dir, Cred: cred, Limits: limits,
		},
	}
	if s.Log {
		u.Log = cfg.Logs.Dir + "/" + s.Name + "/current"
	}
	return u, nil
}

// sayRootsDir warns of a configured directory that a service isn't started in.
func (c *container) sayRootsDir(cfg *config.Config, u supervisor.Unit) {
	s := cfg.Services[u.Name]
	if u.Spec.Dir != s.Cwd && cfg.Origin("services."+s.Name+".cwd") != "default" {
		c.warn("%s runs as root, so it starts in / and not in %s, which the agent's user can write", s.Name, s.Cwd)
	}
}

func limitsOf(limits map[string]uint64) ([]proc.Limit, error) {
	var out []proc.Limit
	for _, name := range sortedKeys(limits) {
		resource, known := proc.LimitOf(name)
		if !known {
			return nil, fmt.Errorf("cannot limit %q: no such resource", name)
		}
		out = append(out, proc.Limit{Resource: resource, Soft: limits[name], Hard: limits[name]})
	}
	return out, nil
}

// cmdRetry is how long after a try the CMD is started again when the kernel had no memory or no process number for it.
const cmdRetry = time.Second

// cmdUnit is the container's CMD: its argv as given, the directory the container was started in, its terminal.
func (c *container) cmdUnit() supervisor.Unit {
	cfg := c.cfg.Load()
	dir := ""
	if v, ok := os.LookupEnv("HERMES_ORIG_CWD"); ok {
		dir = v
	}
	pwd := dir
	look(func() {
		if wd, err := os.Getwd(); err == nil && !filepath.IsAbs(dir) {
			pwd = filepath.Join(wd, dir)
		}
	})
	return supervisor.Unit{
		Name: cmdName, Kind: supervisor.KindCmd,
		Policy: supervisor.Policy{Once: true, SpawnRetry: cmdRetry, StopSignal: int(unix.SIGTERM), Grace: cfg.Shutdown.Budget},
		Spec: proc.Spec{
			Path: c.route.Load().Path, Argv: c.route.Load().Argv, Env: proc.SetEnv(c.activated(cfg, pwd), c.agentHome(cfg)),
			Dir: dir, Cred: c.agent.Cred, TTY: controls(os.Stdin),
		},
		Stdio: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	}
}

// withHome puts the home that the boot found in the place of the configured one, if it found one.
func (c *container) withHome(env map[string]string) map[string]string {
	home := *c.home.Load()
	if _, set := env["HOME"]; home == "" || !set {
		return env
	}
	env = maps.Clone(env)
	env["HOME"] = home
	return env
}

// agentHome is what is set for whatever runs as the agent without being a gateway.
func (c *container) agentHome(cfg *config.Config) map[string]string {
	return c.withHome(map[string]string{"HOME": cfg.ExpandString(cfg.Agent.Env["HOME"], nil)})
}
