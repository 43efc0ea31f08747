package registry

import (
	"fmt"
	"os"
	"strconv"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// Limits lists the limits of a service that need a control group, and the mechanism that enforces each limit in this container.
func (r *Registry) Limits(v *supervisor.Service) (out []client.Limit) {
	cfg := r.options.Config()
	own := units.SettingsOf(cfg, v)
	user := v.Kind == supervisor.KindGateway && cfg.IsolationOf(v.Profile).Mode == config.IsolationUser
	for _, l := range []struct{ controller, key, value string }{
		{"memory", "memory.high", own.Memory.High.Text()},
		{"memory", "memory.max", own.Memory.Max.Text()},
		{"cpu", "cpu.weight", strconv.Itoa(own.Priority.CPUWeight)},
		{"pids", "pids.max", strconv.Itoa(own.Priority.MaxPIDs)},
	} {
		if l.value != "0" {
			out = append(out, client.Limit{Key: l.key, Value: l.value, EnforcedBy: r.options.Units.EnforcedBy(v.Name, l.controller, v.PID, user)})
		}
	}
	return out
}

// PrepareCgroups prepares the container's control group for child groups, if a service needs one. It logs the error, the reason
// why services have no child groups. The caller holds ChangeLock.
func (r *Registry) PrepareCgroups(cfg *config.Config) {
	if why := r.options.Units.PrepareCgroup(cfg); why != nil {
		r.options.Logger.Say("limits: services have no control groups of their own: %v; hinit measures memory itself, see: hinit doctor", why)
	}
}

// readConfinements returns the kernel's restrictions of the process pid (theirs) and of hinit (own).
func readConfinements(pid int) (theirs, own proc.Confinement, err error) {
	err = blocking.Do(blocking.ShortCalls, func() (err error) {
		if own, err = proc.ReadConfinement(os.Getpid()); err == nil {
			theirs, err = proc.ReadConfinement(pid)
		}
		return err
	})
	return theirs, own, err
}

// Isolation returns the isolation of a gateway with the parts that the kernel confirms; nil for a gateway without isolation. A
// seccomp filter proves Landlock too, because the filter is set up last (internal/isolation/confine).
func (r *Registry) Isolation(v *supervisor.Service) *client.Isolation {
	cfg := r.options.Config()
	if v.Kind != supervisor.KindGateway || !cfg.IsolationOf(v.Profile).IsIsolated() {
		return nil
	}
	out := &client.Isolation{Mode: cfg.IsolationOf(v.Profile).Mode, Restrictions: []string{}}
	if v.PID == 0 {
		return out
	}
	theirs, own, err := readConfinements(v.PID)
	switch {
	case err != nil || theirs.Filters <= own.Filters:
		return out
	case theirs.UID != r.options.AgentUID:
		out.Restrictions = append(out.Restrictions, fmt.Sprintf("uid %d", theirs.UID))
	}
	if abi := isolation.LandlockABI(); abi > 0 {
		out.Restrictions = append(out.Restrictions, fmt.Sprintf("Landlock ABI %d", abi))
	}
	out.Restrictions = append(out.Restrictions, "seccomp")
	if theirs.NoNewPrivs {
		out.Restrictions = append(out.Restrictions, "no_new_privs")
	}
	return out
}

// DeniesSocket reports whether a client may not use the control socket, because it belongs to an isolated profile. A client
// that has ended is denied too, because its profile is unknown.
func (r *Registry) DeniesSocket(pid int, uid uint32, gone func() bool) bool {
	cfg := r.options.Config()
	if uid == 0 || pid == 0 || !cfg.AnyIsolated() { // pid 0 is a process outside this PID namespace
		return false
	}
	theirs, own, err := readConfinements(pid)
	switch filters := theirs.Filters - own.Filters; {
	case err != nil, gone(), filters > isolation.SeccompFilterCount:
		return true
	case filters == isolation.SeccompFilterCount:
		return false
	}
	return cfg.UIDRange().Contains(uid) // the client has no seccomp filter of its own, so its user decides
}
