// Package units makes the supervisor's units: program, environment, user and policy of each gateway, service and hook, and of
// the CMD.
//
// A program that runs as root gets no variable, directory or PATH entry that leads to files that the agent can write. The
// package owns a goroutine while it removes a control group. Before it reads a disk, it takes a turn of internal/blocking,
// which limits how many calls wait.
package units

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/backoff"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// CmdName is the name of the service that is the container's CMD. No profile or service may have it.
	CmdName = "cmd"
	// HookPrefix is the prefix of the names of services that run hooks of the boot.
	HookPrefix = "hook-"
)

const (
	// cmdRetryDelay is the delay before a new attempt to start the CMD, if the kernel lacked memory or PIDs.
	cmdRetryDelay = time.Second
	// hookGrace is the time between SIGTERM and SIGKILL for a hook that takes too long.
	hookGrace = 2 * time.Second
)

// Maker makes the supervisor's units. Any goroutine may call its methods.
type Maker struct {
	agent        boot.Agent
	dataHome     string
	servicesOnly bool

	env               atomic.Pointer[[]string] // environment of the container
	home              atomic.Pointer[string]
	ownGatewayAllowed sync.Map                          // profiles with their own gateway besides the multiplexer, see SetOwnGatewayAllowed
	topology          atomic.Pointer[profiles.Topology] // last topology from SetTopology; nil before its first call
	cgroups           atomic.Pointer[proc.Cgroups]      // control cgroups from PrepareCgroup; nil before its call, and if the container can't have child cgroups
	cgroupsTried      bool                              // PrepareCgroup has tried to prepare the control group
	venv              atomic.Pointer[venv]              // virtual environment of the agent's program at the last call of venvOf

	gatewayEnv        atomic.Pointer[[]string] // environment of the last gateway, for sharing
	cachedIsolateArgs atomic.Pointer[isolateArgs]
}

// NewMaker returns a Maker for the agent whose data volume is at dataHome. env is the environment of the container. servicesOnly
// means that there is no agent, but only services that run as the caller.
func NewMaker(agent boot.Agent, dataHome string, env []string, servicesOnly bool) *Maker {
	m := &Maker{agent: agent, dataHome: dataHome, servicesOnly: servicesOnly}
	m.SetEnv(env)
	m.SetHome("")
	return m
}

// Env returns the environment of the container.
func (m *Maker) Env() []string { return *m.env.Load() }

// SetEnv replaces the environment of the container. The boot uses it to add variables.
func (m *Maker) SetEnv(env []string) { m.env.Store(&env) }

// Home returns the HOME of all programs that run as the agent; "" if the HOME in hinit.yaml applies.
func (m *Maker) Home() string { return *m.home.Load() }

// SetHome sets the result of Home. The boot calls it before any process starts.
func (m *Maker) SetHome(home string) { m.home.Store(&home) }

// SetTopology stores the topology, which says which gateway serves each profile. If an operator has chosen it, gateways get
// it in their environment.
func (m *Maker) SetTopology(t profiles.Topology) { m.topology.Store(&t) }

// Topology returns the topology that was last stored, or nil.
func (m *Maker) Topology() *profiles.Topology { return m.topology.Load() }

// Handover is the state of a Maker for the next program of a re-execution, so that gateways start with the same environment.
type Handover struct {
	Env      []string
	Home     string
	Topology *profiles.Topology `reexec:"Asked"` // last stored topology; may be nil
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (m *Maker) HandOver() Handover { return Handover{m.Env(), m.Home(), m.Topology()} }

// TakeOver restores the state from the previous program.
func (m *Maker) TakeOver(old Handover) {
	m.SetHome(old.Home)
	m.SetEnv(old.Env)
	m.topology.Store(old.Topology)
}

// SetOwnGatewayAllowed says whether a profile may have its own gateway although the default profile's gateway serves it. The
// agent starts such a gateway only with the option --force, which hinit then adds.
func (m *Maker) SetOwnGatewayAllowed(profile string, on bool) {
	if on {
		m.ownGatewayAllowed.Store(profile, true)
	} else {
		m.ownGatewayAllowed.Delete(profile)
	}
}

// MayRunOwnGateway returns the value of SetOwnGatewayAllowed.
func (m *Maker) MayRunOwnGateway(profile string) bool {
	_, on := m.ownGatewayAllowed.Load(profile)
	return on
}

// ProfilesWithOwnGateway returns the profiles for which SetOwnGatewayAllowed is on.
func (m *Maker) ProfilesWithOwnGateway() map[string]bool {
	all := make(map[string]bool)
	m.ownGatewayAllowed.Range(func(profile, _ any) bool {
		name, _ := profile.(string)
		all[name] = true
		return true
	})
	return all
}

// AgentCred returns the user and groups of the agent; nil if hinit runs as that user.
func (m *Maker) AgentCred() *proc.Cred { return m.agent.Cred }

// AgentEnv returns the environment of programs that run as the agent and are not services.
func (m *Maker) AgentEnv(cfg *config.Config) []string { return proc.SetEnv(m.Env(), m.agentVars(cfg)) }

func (m *Maker) agentVars(cfg *config.Config) map[string]string {
	return m.withHome(map[string]string{"HOME": cfg.ExpandString(cfg.Agent.Env["HOME"], nil)})
}

// Gateway returns the unit of a profile's gateway (contract, section 4). exports are the variables that the run script of its
// s6 service directory exports. Variables of hinit.yaml and of hinit override them.
func (m *Maker) Gateway(cfg *config.Config, p profiles.Profile, exports map[string]string) supervisor.Unit {
	vars := placeholders(p)
	command := cfg.Agent.GatewayCommand
	if p.Name == profiles.Default {
		command = cfg.Agent.DefaultGatewayCommand
	}
	if m.MayRunOwnGateway(p.Name) {
		command = append(slices.Clone(command), "--force")
	}
	own := cfg.ProfileOf(p.Name)
	if cfg.IsolationOf(p.Name).Mode == config.IsolationUser {
		exports = nil // the agent's user makes the slots, and must not choose the environment of another user's process
	}
	policy := policyOf(own.Restart, own.Stop)
	policy.StopCommand = cfg.Expand(own.Operator.StopCommand, vars)
	policy.Needs, policy.RestartOn = needsOf(own.Needs), own.RestartOn
	if board := config.KanbanName; cfg.Services[board].Enabled && !slices.ContainsFunc(policy.Needs, func(n supervisor.Need) bool { return n.Name == board }) {
		// The board service must take the lock of the board before a gateway can.
		policy.Needs = append(policy.Needs, supervisor.Need{Name: board, Until: supervisor.UntilTried, Optional: true})
	}
	policy.Sheddable = own.Priority.Class != config.PriorityCritical
	policy.ReportsReadiness = cfg.Agent.ReadyWhen == config.ReadyByStateFile
	policy.LimitedStarts = true
	spec := m.profileSpec(cfg, p, cfg.Expand(command, vars), cfg.ExpandString(cfg.Agent.Cwd, vars), own.Limits, exports, m.gatewayVars(cfg, p))
	spec.Env, spec.OOMIncrease = reuseIfEqual(&m.gatewayEnv, spec.Env), oomAdjOf(own.Priority, supervisor.KindGateway)
	if len(policy.StopCommand) > 0 {
		policy.StopCommand = isolation.Wrap(spec.Argv, policy.StopCommand)
	}
	return supervisor.Unit{
		Name: profiles.SlotName(p.Name), Profile: p.Name, Group: own.Operator.Group, Kind: supervisor.KindGateway, Policy: policy, Spec: spec,
		LogFile: cfg.Logs.Dir + "/" + p.Name + "/current",
	}
}

// profileSpec returns the spec of a command of a profile. User, isolation, control group and process settings are the same as
// for the profile's gateway; only the resource limits are those in limits. Variables in exports have the lowest priority, then
// come environment files, and then the variables in set.
func (m *Maker) profileSpec(cfg *config.Config, p profiles.Profile, argv []string, dir string, limits map[string]config.ResourceLimit, exports, set map[string]string) proc.Spec {
	own := cfg.ProfileOf(p.Name).ProcessSettings
	own.Limits = limits
	spec := proc.Spec{
		Argv: argv, Env: proc.SetEnv(proc.SetEnv(m.venvEnv(cfg, dir), exports), set), Dir: dir, Cred: m.agent.Cred, Limits: limitsOf(limits),
		Setup: processSetup(&own, m.envFiles(cfg.Expand(own.EnvFile, placeholders(p)), true), set, true, cfg.NoNewPrivs(own.NoNewPrivs)),
	}
	m.isolate(cfg, p, &spec)
	m.limitByCgroup(&own, profiles.SlotName(p.Name), cfg.IsolationOf(p.Name).Mode == config.IsolationUser, &spec)
	return spec
}

// reuseIfEqual returns the list at place if it equals list. Otherwise it stores list there and returns it. So all gateways
// share one environment. Hundreds of copies would take a tenth of the heap.
func reuseIfEqual(place *atomic.Pointer[[]string], list []string) []string {
	if last := place.Load(); last != nil && slices.Equal(*last, list) {
		return *last
	}
	place.Store(&list)
	return list
}

// GatewayVars returns the variables that the gateway of a profile gets besides the environment of the container, if it starts
// in dir.
func (m *Maker) GatewayVars(cfg *config.Config, p profiles.Profile, dir string) map[string]string {
	return mergeVars(m.venvVars(cfg, dir), m.gatewayVars(cfg, p))
}

func (m *Maker) gatewayVars(cfg *config.Config, p profiles.Profile) map[string]string {
	vars := placeholders(p)
	env := make(map[string]string, len(cfg.Agent.Env))
	for name, value := range mergeVars(cfg.Agent.Env, cfg.ProfileOf(p.Name).Env) {
		env[name] = cfg.ExpandString(value, vars)
	}
	if t := m.topology.Load(); t != nil {
		maps.Copy(env, t.Vars())
	}
	if _, own := cfg.ProfileOf(p.Name).Env["HOME"]; cfg.IsolationOf(p.Name).IsIsolated() && !own {
		env["HOME"] = p.Home // the configured HOME contains the homes of other profiles
		return env
	}
	return m.withHome(env)
}

// placeholders returns the values of the placeholders that settings of a profile may contain.
func placeholders(p profiles.Profile) map[string]string {
	return map[string]string{"profile": p.Name, "profile_home": p.Home}
}

// loginRefusal begins the line of a dashboard that refuses to listen on an address without a login. Before version 0.18, the
// dashboard's exit code does not show the refusal.
const loginRefusal = "Refusing to bind"

// Service returns the unit of a service of hinit.yaml, or of the dashboard.
func (m *Maker) Service(cfg *config.Config, s config.Service) (supervisor.Unit, error) {
	cred, err := m.agent.CredFor(cfg, s.User)
	if err != nil {
		return supervisor.Unit{}, err
	}
	env, dir := []string(nil), s.Cwd
	switch {
	case m.runsAsRoot(cred):
		env = m.rootEnv(s.Env)
		if m.agentCanWrite(dir) { // many programs use files that they find in their working directory
			dir = "/"
		}
	case m.servicesOnly:
		if env, err = m.servicesOnlyEnv(s); err != nil {
			return supervisor.Unit{}, err
		}
	case s.Name == config.DashboardName:
		env = proc.SetEnv(m.venvEnv(cfg, s.Cwd), m.withHome(s.Env))
	default:
		env = proc.SetEnv(m.Env(), m.withHome(s.Env))
	}
	policy := policyOf(s.Restart, s.Stop)
	policy.StopCommand = s.Operator.StopCommand
	policy.Needs, policy.RestartOn = needsOf(s.Needs), s.RestartOn
	policy.IsConfiguredTask, policy.RunBeforeEachStart = s.IsTask(), s.Task.Once == config.OnceEachStart
	policy.ReportsReadiness, policy.Sheddable = s.Notify.IsSet(), s.Priority.Class != config.PriorityCritical
	if s.Name == config.DashboardName && !m.servicesOnly {
		policy.ParkOnOutput = loginRefusal
	}
	if s.Name == config.LeaseName && !m.servicesOnly { // the lease must not be released while a gateway may be alive
		policy.DrainsInput, policy.DrainSignal = true, int(unix.SIGPWR)
	}
	agents := !m.servicesOnly && m.agent.RunsAs(cred)
	u := supervisor.Unit{
		Name: s.Name, Group: s.Operator.Group, Kind: supervisor.KindService, Policy: policy, NotifyFD: s.Notify.FD,
		Spec: proc.Spec{
			Argv: s.Command, Env: env, Dir: dir, Cred: cred, Limits: limitsOf(s.Limits), OOMIncrease: oomAdjOf(s.Priority, supervisor.KindService),
			Setup: processSetup(&s.ProcessSettings, m.envFiles(s.EnvFile, agents), s.Env, m.servicesOnly || agents, s.NoNewPrivs == config.On || agents && cfg.NoNewPrivs(s.NoNewPrivs)),
		},
	}
	m.limitByCgroup(&s.ProcessSettings, s.Name, false, &u.Spec)
	if s.HasLogFile {
		u.LogFile = cfg.Logs.Dir + "/" + s.Name + "/current"
	}
	return u, nil
}

// ServiceVars returns the variables that a service of hinit.yaml gets besides the environment of the container.
func (m *Maker) ServiceVars(cfg *config.Config, s config.Service) map[string]string {
	if cred, err := m.agent.CredFor(cfg, s.User); err == nil && m.runsAsRoot(cred) {
		return mergeVars(s.Env, map[string]string{"HOME": proc.Getenv(m.rootEnv(s.Env), "HOME")})
	}
	if s.Name == config.DashboardName {
		return mergeVars(m.venvVars(cfg, s.Cwd), m.withHome(s.Env))
	}
	return m.withHome(s.Env)
}

// Services returns the units of all services of hinit.yaml, by name.
func (m *Maker) Services(cfg *config.Config) (map[string]supervisor.Unit, error) {
	units := make(map[string]supervisor.Unit, len(cfg.Services))
	for _, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		var err error
		if units[name], err = m.Service(cfg, cfg.Services[name]); err != nil {
			return nil, err
		}
	}
	return units, nil
}

// servicesOnlyEnv returns the environment of a service under hinit run: the caller's, with the HOME of the service's user.
func (m *Maker) servicesOnlyEnv(s config.Service) ([]string, error) {
	env := m.Env()
	if s.User == "" {
		return proc.SetEnv(env, s.Env), nil
	}
	user, err := blocking.Get(blocking.Foreign, func() (account.User, error) { return account.Lookup("", s.User) })
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot run service %q as %q: %w", s.Name, s.User, err)
	case user.UID == m.agent.User.UID:
		return proc.SetEnv(env, s.Env), nil
	case os.Geteuid() != 0:
		return nil, fmt.Errorf("cannot run service %q as %q: hinit is not root; start it as root, or remove services.%s.user", s.Name, s.User, s.Name)
	}
	theirs := map[string]string{"HOME": user.Home}
	if user.Name != "" {
		theirs["USER"], theirs["LOGNAME"] = user.Name, user.Name
	}
	return proc.SetEnv(proc.SetEnv(env, theirs), s.Env), nil
}

// Cmd returns the unit of the container's CMD, which runs in the directory in which the container was started. tty means that
// standard input is a terminal, which becomes the CMD's controlling terminal.
func (m *Maker) Cmd(cfg *config.Config, route *boot.RunPlan, tty bool) supervisor.Unit {
	dir := os.Getenv("HERMES_ORIG_CWD")
	pwd := dir
	if wd, err := blocking.Get(blocking.Foreign, os.Getwd); err == nil && !filepath.IsAbs(dir) {
		pwd = filepath.Join(wd, dir)
	}
	return supervisor.Unit{
		Name: CmdName, Kind: supervisor.KindCmd,
		Policy: supervisor.Policy{IsCMD: true, SpawnRetry: cmdRetryDelay, StopSignal: int(unix.SIGTERM), Grace: cfg.Shutdown.Budget},
		Spec: proc.Spec{
			Path: route.Path, Argv: route.Argv, Env: proc.SetEnv(m.venvEnv(cfg, pwd), m.agentVars(cfg)), Dir: dir, Cred: m.agent.Cred, ForegroundTTY: tty, Setup: m.agentSetup(cfg),
		},
		Stdio: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	}
}

// Hook returns the unit of a hook of the boot.
func (m *Maker) Hook(cfg *config.Config, h boot.Hook) (supervisor.Unit, error) {
	cred, err := m.agent.CredFor(cfg, h.User)
	if err != nil {
		return supervisor.Unit{}, err
	}
	spec := proc.Spec{Argv: h.Command, Env: m.Env(), Cred: cred}
	switch {
	case m.runsAsRoot(cred):
		spec.Env, spec.Dir = m.rootEnv(nil), "/"
	case !m.servicesOnly:
		spec.Env = m.AgentEnv(cfg)
		if m.agent.RunsAs(cred) {
			spec.Setup = m.agentSetup(cfg)
		}
	}
	return supervisor.Unit{
		Name: fmt.Sprintf("%s%d", HookPrefix, h.Number), Kind: supervisor.KindHook,
		// A user's script may start a process that continues after the script.
		Policy: supervisor.Policy{SingleRun: true, LeaveDescendants: h.ContInit, StopSignal: int(unix.SIGTERM), Grace: hookGrace},
		Spec:   spec,
	}, nil
}

// RunSpec returns the spec of a command that a client runs once, as the agent's user. home is the home of the command's
// profile, or "" without a profile. With a profile, the command gets the environment and the limits of the profile's gateway,
// and shares its control group. template, a command of hinit.yaml, can add limits and variables, and the client can add
// variables.
func (m *Maker) RunSpec(cfg *config.Config, template config.Run, r client.RunRequest, home string) proc.Spec {
	vars := map[string]string{"task": r.Task, "profile": r.Profile, "profile_home": home}
	dir, argv, set := cmp.Or(r.Dir, cfg.ExpandString(cfg.Agent.Cwd, vars)), cfg.ExpandRun(template.Command, vars, r.Options), mergeVars(template.Env, r.Env)
	if home == "" {
		env := proc.SetEnv(m.venvEnv(cfg, dir), mergeVars(m.agentVars(cfg), set))
		return proc.Spec{Argv: argv, Env: env, Dir: dir, Cred: m.agent.Cred, Limits: limitsOf(template.Limits), Setup: m.agentSetup(cfg)}
	}
	p := profiles.Profile{Name: r.Profile, Home: home}
	own := mergeVars(m.gatewayVars(cfg, p), map[string]string{"HERMES_HOME": home})
	return m.profileSpec(cfg, p, argv, dir, mergeVars(cfg.ProfileOf(p.Name).Limits, template.Limits), nil, mergeVars(own, set))
}

// ForeignServiceSpec returns the user and environment of a service whose s6 directory another program has made. If root is set,
// the service runs as root, otherwise as the agent.
func (m *Maker) ForeignServiceSpec(cfg *config.Config, root bool) proc.Spec {
	if root && m.runsAsRoot(nil) {
		return proc.Spec{Env: m.rootEnv(nil)}
	}
	return proc.Spec{Cred: m.agent.Cred, Env: m.AgentEnv(cfg), Setup: m.agentSetup(cfg)}
}

// agentSetup returns the Setup of a process that runs as the agent and has no settings in hinit.yaml.
func (m *Maker) agentSetup(cfg *config.Config) proc.Setup {
	return proc.Setup{NoNewPrivs: !m.servicesOnly && cfg.NoNewPrivs(config.Auto)}
}

// withHome replaces HOME in env by the home of SetHome. If that is "", env is unchanged.
func (m *Maker) withHome(env map[string]string) map[string]string {
	home := m.Home()
	if _, set := env["HOME"]; home == "" || !set {
		return env
	}
	return mergeVars(env, map[string]string{"HOME": home})
}

// mergeVars returns the entries of a and b. If both have a key, the entry of b counts.
func mergeVars[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		return b
	}
	maps.Copy(all, b)
	return all
}

func policyOf(r config.Restart, s config.Stop) supervisor.Policy {
	bad := func(codes []int) []int { // exit codes that count as success neither park nor restart the service
		return slices.DeleteFunc(slices.Clone(codes), func(code int) bool { return slices.Contains(r.SuccessCodes, code) })
	}
	after := supervisor.RestartAfter(r.Policy)
	if r.Policy == config.RestartAlways {
		after = supervisor.RestartAlways
	}
	return supervisor.Policy{
		Backoff:    backoff.Policy{Initial: r.InitialDelay, Max: r.MaxDelay, Factor: r.DelayFactor, Jitter: r.Jitter},
		ResetAfter: r.ResetAfter, CrashLoopExits: r.CrashLoopCount, CrashLoopWindow: r.CrashLoopWindow,
		ParkCodes: bad(r.ParkCodes), NoDelayCodes: bad(r.ImmediateCodes), SuccessCodes: r.SuccessCodes,
		StopSignal: int(s.Signal), Grace: s.Grace,
		RestartAndNeeds: supervisor.RestartAndNeeds{RestartPolicy: after, MaxRestarts: r.MaxRestarts, RestartsWindow: r.MaxRestartsWindow},
	}
}

func needsOf(needs []config.Need) []supervisor.Need {
	var out []supervisor.Need
	for _, n := range needs {
		out = append(out, supervisor.Need{Name: n.Name, Until: supervisor.Until(n.Until), Optional: n.Optional})
	}
	return out
}
