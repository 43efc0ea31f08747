package units

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// PrepareCgroup prepares the container's control group, so that services can have child groups with limits. It does nothing if
// no service in cfg has a limit that needs a child group, or after an earlier attempt. The error says why the container can't
// have child groups; only the attempt returns it. Do not call PrepareCgroup from two goroutines at the same time.
func (m *Maker) PrepareCgroup(cfg *config.Config) (why error) {
	if m.cgroupsTried || !cfg.AnySettings((*config.ProcessSettings).NeedsCgroup) {
		return nil
	}
	m.cgroupsTried = true
	groups, why := blocking.Get(blocking.Foreign, proc.DivideCgroup)
	m.cgroups.Store(groups)
	return why
}

// limitByCgroup gives a service a control group with its limits. If child groups lack a controller (memory, cpu or pids),
// another mechanism replaces it. Package health measures the memory. The CPU weight becomes a nice value. For a profile with
// its own user (ownUser), the maximum number of processes becomes RLIMIT_NPROC, which counts all processes of that user on the
// machine.
func (m *Maker) limitByCgroup(own *config.ProcessSettings, service string, ownUser bool, spec *proc.Spec) {
	if !own.NeedsCgroup() {
		return
	}
	g := m.cgroups.Load()
	if g != nil {
		g.Assign(&spec.Setup, service, proc.CgroupLimits{High: uint64(own.Memory.High), Max: uint64(own.Memory.Max), Weight: own.Priority.CPUWeight, PIDs: own.Priority.MaxPIDs})
	}
	if own.Priority.CPUWeight > 0 && !g.HasController("cpu") {
		spec.Setup.Nice = max(spec.Setup.Nice, proc.NiceOf(own.Priority.CPUWeight))
	}
	if _, set := own.Limits["nproc"]; own.Priority.MaxPIDs > 0 && !g.HasController("pids") && ownUser && !set {
		n := uint64(own.Priority.MaxPIDs)
		spec.Limits = append(slices.Clone(spec.Limits), proc.Limit{Resource: unix.RLIMIT_NPROC, Soft: n, Hard: n})
	}
}

// EnforcedBy returns the API's word for the mechanism that enforces a limit of a service. controller is "memory", "cpu" or
// "pids". pid is the service's main process. If pid is 0, the result is for the next start of the service. ownUser means that
// the service belongs to a profile with its own user.
func (m *Maker) EnforcedBy(service, controller string, pid int, ownUser bool) string {
	g := m.cgroups.Load()
	in := g.HasController(controller)
	if in && pid != 0 {
		blocking.Run(blocking.ShortCalls, func() { in = proc.InServiceCgroup(pid, service) })
		if !in {
			return client.LimitedFromNextStart
		}
	}
	switch {
	case in:
		return client.LimitedByGroup
	case controller == "memory", controller == "cpu" && ownUser && tuning.Processors() > 1:
		return client.LimitedByHinit
	case controller == "cpu":
		return client.LimitedByNice
	case ownUser:
		return client.LimitedByUser
	}
	return client.LimitedByNothing
}

// SettingsOf returns the process settings in hinit.yaml of a gateway or a service. A command of a profile, such as a worker of
// the task board, has only memory limits, and hinit ends it when it exceeds them. For any other service all settings are zero.
func SettingsOf(cfg *config.Config, v *supervisor.Service) config.ProcessSettings {
	switch v.Kind {
	case supervisor.KindGateway:
		return cfg.ProfileOf(v.Profile).ProcessSettings
	case supervisor.KindService:
		return cfg.Services[v.Name].ProcessSettings
	case supervisor.KindRun:
		if own := cfg.ProfileOf(v.Profile).Memory; v.Profile != "" {
			return config.ProcessSettings{Memory: config.Memory{RestartAbove: own.RestartAbove, Max: own.Max}}
		}
	default:
	}
	return config.ProcessSettings{}
}

// RemoveCgroup removes the control group of a service that the supervisor has forgotten, without blocking.
func (m *Maker) RemoveCgroup(service string) {
	if g := m.cgroups.Load(); g != nil {
		guard.Go("removing a control group", func() {
			_ = blocking.Do(blocking.ShortCalls, func() error { return g.Remove(service) }) // an empty group costs little
		})
	}
}

// limitsOf converts the resource limits of hinit.yaml for setrlimit(2).
func limitsOf(limits map[string]config.ResourceLimit) (out []proc.Limit) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if resource, known := proc.LimitOf(name); known {
			out = append(out, proc.Limit{Resource: resource, Soft: limits[name].Soft, Hard: limits[name].Hard})
		}
	}
	return out
}

// ioClasses maps words of hinit.yaml to classes of ioprio_set(2).
var ioClasses = map[string]int{config.IORealtime: proc.IORealtime, config.IOBestEffort: proc.IOBestEffort, config.IOIdle: proc.IOIdle}

// processSetup returns the Setup for the process settings s. files are environment files, which can't override the variables in
// own. agents means that users other than root and the process's own user may change these files. sealed means that programs with
// the set-user-id bit give the process no privileges.
func processSetup(s *config.ProcessSettings, files []string, own map[string]string, agents, sealed bool) proc.Setup {
	setup := proc.Setup{
		Nice: s.Priority.Nice, IOClass: ioClasses[s.Priority.IONice.Class], IOLevel: s.Priority.IONice.Level, CPUs: s.Priority.CPUAffinity, Umask: s.Umask, NoNewPrivs: sealed,
	}
	if len(files) > 0 {
		setup.EnvFiles, setup.ProtectedVars, setup.RefuseForeignFiles = slices.Clone(files), slices.Sorted(maps.Keys(own)), !agents
	}
	return setup
}

// envFiles returns the environment files of a service: the files of hinit.yaml (own). For a service of the agent (agents), the
// container's secret files come first.
func (m *Maker) envFiles(own []string, agents bool) []string {
	if agents {
		return append(config.SecretFiles(m.Env()), own...)
	}
	return own
}

// oomAdjOf returns the number to add to hinit's oom_score_adj for a service; 0 means the default of its kind. A configured
// oom_score overrides the priority class. With a class, the result is between the values of the CMD (700) and of hooks (900).
func oomAdjOf(p config.Priority, kind supervisor.Kind) int {
	shift := map[string]int{config.PriorityLow: 45, config.PriorityHigh: -20, config.PriorityCritical: -45}[p.Class]
	if p.OOMScore == 0 && shift != 0 {
		return kind.OOMAdj() + shift
	}
	return p.OOMScore
}
