package units

import (
	"slices"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/tuning"
)

// cgroupState holds the container's control group after hinit has prepared it for child groups, or the reason why that failed.
type cgroupState struct {
	cgroups *proc.Cgroups // nil if the preparation failed
	why     error
}

// PrepareCgroup prepares the container's control group for child groups, if a service of the configuration needs its own
// group. It prepares the group only once, and only the call that does so can return an error. Units that are made
// afterwards use child groups. PrepareCgroup must not be called from two goroutines at the same time.
func (m *Maker) PrepareCgroup(cfg *config.Config) (why error) {
	wanted := cfg.Agent.NeedsCgroup()
	for _, p := range cfg.Profiles.Overrides {
		wanted = wanted || p.NeedsCgroup()
	}
	for _, s := range cfg.Services {
		wanted = wanted || s.NeedsCgroup()
	}
	if !wanted || m.groups.Load() != nil {
		return nil
	}
	g := &cgroupState{}
	g.cgroups, g.why = blocking.Get(blocking.Foreign, proc.DivideCgroup)
	m.groups.Store(g)
	return g.why
}

// cgroupsOrNil returns the container's control group for child groups, or nil if PrepareCgroup has not prepared it.
func (m *Maker) cgroupsOrNil() *proc.Cgroups {
	if g := m.groups.Load(); g != nil {
		return g.cgroups
	}
	return nil
}

// limitByCgroup limits a service with a control group for this service only. Without child groups, internal/container/health
// measures the memory instead, and the CPU weight becomes a nice value. If the profile has its own user (ownUser), the process
// limit becomes a limit of that user, which counts all the user's processes on the machine.
func (m *Maker) limitByCgroup(own *config.ProcessSettings, service string, ownUser bool, spec *proc.Spec) {
	if !own.NeedsCgroup() {
		return
	}
	g := m.cgroupsOrNil()
	if g != nil {
		g.Set(&spec.Setup, service, proc.CgroupLimits{High: uint64(own.Memory.High), Max: uint64(own.Memory.Max), Weight: own.Priority.CPUWeight, PIDs: own.Priority.MaxPIDs})
	}
	if own.Priority.CPUWeight > 0 && !g.Has("cpu") {
		spec.Setup.Nice = max(spec.Setup.Nice, proc.NiceOf(own.Priority.CPUWeight))
	}
	if _, set := own.Limits["nproc"]; own.Priority.MaxPIDs > 0 && !g.Has("pids") && ownUser && !set {
		n := uint64(own.Priority.MaxPIDs)
		spec.Limits = append(slices.Clone(spec.Limits), proc.Limit{Resource: unix.RLIMIT_NPROC, Soft: n, Hard: n})
	}
}

// EnforcedBy returns the mechanism that enforces the limit of a controller ("memory", "cpu" or "pids") on a service, as a word of
// the API. pid is the service's process, or 0 for the process that starts next. ownUser reports whether the profile has its own
// user.
func (m *Maker) EnforcedBy(service, controller string, pid int, ownUser bool) string {
	g := m.cgroupsOrNil()
	in := g.Has(controller)
	if in && pid != 0 {
		blocking.Run(blocking.Short, func() { in = proc.InServiceCgroup(pid, service) })
		if !in {
			return client.LimitedLater
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

// RemoveCgroup removes the control group of a service that the supervisor has forgotten. It does not block.
func (m *Maker) RemoveCgroup(service string) {
	if g := m.cgroupsOrNil(); g != nil {
		guard.Go("removing a control group", func() {
			_ = blocking.Do(blocking.Short, func() error { return g.Remove(service) }) // after an error an empty group stays, which costs little
		})
	}
}
