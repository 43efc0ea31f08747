package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
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

// needBoot holds services back until the profiles are reconciled (contract, section 2).
const needBoot = "boot"

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// containerEnv is the environment the container was started with, without what an outer hinit may have put there.
// HERMES_HOME is always in it, for the agent must look where hinit does.
func containerEnv(home string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, proc.TagVar+"=") })
	if os.Getenv("HERMES_HOME") == "" {
		env = withEnv(env, map[string]string{"HERMES_HOME": home})
	}
	return env
}

// withEnv returns env with the given variables set, those in the order of their names.
func withEnv(env []string, set map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := set[name]
		return replaced
	})
	for _, name := range sortedKeys(set) {
		out = append(out, name+"="+set[name])
	}
	return out
}

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
	return supervisor.Unit{
		Name: profiles.SlotName(p.Name), Profile: p.Name, Kind: supervisor.KindGateway, Policy: policy,
		Spec: proc.Spec{
			Argv: cfg.Expand(command, vars), Env: withEnv(withEnv(*c.env.Load(), exports), c.gatewayEnv(cfg, p)),
			Dir: cfg.ExpandString(cfg.Agent.Cwd, vars), Cred: c.agent.cred,
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
	cred, err := c.agent.credFor(cfg, s.User)
	if err != nil {
		return supervisor.Unit{}, err
	}
	limits, err := limitsOf(s.Limits)
	if err != nil {
		return supervisor.Unit{}, fmt.Errorf("cannot define service %q: %w", s.Name, err)
	}
	env := withEnv(*c.env.Load(), c.withHome(s.Env))
	if cred == nil {
		env = c.trustedPath(env)
	}
	u := supervisor.Unit{
		Name: s.Name, Kind: supervisor.KindService, Policy: policyOf(s.Restart, s.Stop),
		Spec: proc.Spec{
			Argv: s.Command, Env: env, Dir: s.Cwd, Cred: cred, Limits: limits,
		},
		Needs: []string{needBoot},
	}
	if s.Log {
		u.Log = cfg.Logs.Dir + "/" + s.Name + "/current"
	}
	return u, nil
}

// limitNames are the resource limits of hinit.yaml (getrlimit(2)).
var limitNames = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
	"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC,
	"rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

func limitsOf(limits map[string]uint64) ([]proc.Limit, error) {
	var out []proc.Limit
	for _, name := range sortedKeys(limits) {
		resource, known := limitNames[name]
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
	return supervisor.Unit{
		Name: cmdName, Kind: supervisor.KindCmd,
		Policy: supervisor.Policy{Once: true, SpawnRetry: cmdRetry, StopSignal: int(unix.SIGTERM), Grace: cfg.Shutdown.Budget},
		Spec: proc.Spec{
			Path: c.route.Path, Argv: c.route.Argv, Env: withEnv(*c.env.Load(), c.agentHome(cfg)),
			Dir: dir, Cred: c.agent.cred, TTY: controls(os.Stdin),
		},
		Stdio: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	}
}

// withHome puts the home that the boot found in the place of the configured one, if it found one.
func (c *container) withHome(env map[string]string) map[string]string {
	if _, set := env["HOME"]; c.home == "" || !set {
		return env
	}
	env = maps.Clone(env)
	env["HOME"] = c.home
	return env
}

// agentHome is what is set for whatever runs as the agent without being a gateway.
func (c *container) agentHome(cfg *config.Config) map[string]string {
	return c.withHome(map[string]string{"HOME": cfg.ExpandString(cfg.Agent.Env["HOME"], nil)})
}
