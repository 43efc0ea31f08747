package gateways

import (
	"context"
	"fmt"
	"os"
	"time"

	"hinit/internal/boot"
	"hinit/internal/container/bootstatus"
	"hinit/internal/container/initlog"
	"hinit/internal/registry"
	"hinit/internal/tuning"
	"hinit/profiles"
)

// maxOrderedProfiles is the maximum number of profiles for which the boot reads all profiles before it starts the first gateway.
// Recently used gateways can then start first. With more profiles, each gateway starts as soon as its profile has been
// read.
const maxOrderedProfiles = 256

// Boot holds the inputs of [Manager.BringUp].
type Boot struct {
	Services        int                    // number of services that are not gateways
	SlotsMade       func() <-chan struct{} // returns a channel that is closed when all s6 slots exist; nil if hinit does not emulate s6
	SetRoute        func(*boot.RunPlan)    // replaces the route: the program that the CMD asks for
	OnProfilesKnown func()                 // called when all profiles are known
	Status          *bootstatus.Status
	Admit           func(ctx context.Context) // keeps registered gateways down if there is no room for them; may block
	Logger          *initlog.Logger           // for messages that no agent can cause
}

// RegisterProfiles reads the profiles. It registers the gateway of each profile as soon as the boot has decided whether the
// gateway starts. It returns the profiles that it has read.
func (m *Manager) RegisterProfiles(ctx context.Context, b Boot) (read []profiles.Profile, err error) {
	route, known := m.Route(), false
	record := func() error { return nil } // completes the record that the CMD asks for a gateway
	var answers []func() error
	writeLog := func() error { return nil }
	defer b.Status.SetProfiles(0)
	plan := m.Store.Reconcile(profiles.BootOptions{
		Dashboard: route.DashboardOnly, GatewayRun: route.LegacyGatewayRun, Foreground: m.isCmdGateway(profiles.Default), Getenv: os.Getenv,
		Log: func(write func() error) { writeLog = write },
		Found: func(n int) {
			b.Status.SetProfiles(n)
			m.Registry.SetOrderedStart(n <= maxOrderedProfiles)
		},
		Decided: func(d profiles.Decision) {
			name := d.Profile.Name
			supervised := route.Supervise && name == route.Profile
			if supervised {
				known = true
				record = m.recordWanted(name)
			}
			read = append(read, d.Profile)
			m.Registry.AddProfile(name)
			m.noteNotStarted(d)
			start := supervised || d.Start && !m.isCmdGateway(name)
			answers = append(answers, m.Registry.RegisterGateway(ctx, registry.Gateway{Profile: d.Profile, Start: start, Down: !start, LastUsed: d.Used}))
		},
	})
	m.writeBootLog(ctx, &b, writeLog)
	m.expectLate(plan)
	for _, w := range plan.Warnings {
		m.Logger.Warn("%s", w)
	}
	for _, line := range plan.Lines {
		m.Logger.Line(line)
	}
	for _, w := range tuning.LimitWarnings(len(plan.Profiles) + b.Services) {
		m.Logger.Warn("%s", w)
	}
	for _, answer := range answers {
		if failed := answer(); err == nil {
			err = failed
		}
	}
	switch {
	case err != nil || !route.Supervise:
	case !known:
		err = fmt.Errorf("cannot supervise the gateway of profile %q: there is no such profile; create it with: hinit profile create %s", route.Profile, route.Profile)
	default:
		if err := record(); err != nil {
			m.Logger.Warn("cannot record that the gateway of %q is wanted: %v", route.Profile, err)
		}
	}
	return read, err
}

// recordWanted records that the CMD asks for the gateway of a profile. It must be called before that gateway starts, because the
// gateway writes to the same file. The returned function completes the record; it blocks on the disk.
func (m *Manager) recordWanted(profile string) (record func() error) {
	if st, err := m.Store.ReadState(profile); err == nil && st.HasDesired && st.Desired == profiles.Running {
		m.Intents.RecordExternal(profile, profiles.Running)
		return func() error { return nil }
	}
	record, err := m.Intents.Record(profile, profiles.Running)
	if err != nil {
		return func() error { return err }
	}
	return record
}

// isCmdGateway reports whether the container's CMD itself is the gateway of a profile. If so, hinit must not start a second
// gateway.
func (m *Manager) isCmdGateway(profile string) bool {
	r := m.Route()
	return r.Foreground && profile == r.Profile
}

// unreadProfiles are profiles whose files could not be read in time during the boot. When such a profile appears, its gateway is
// started if it ran in an earlier container.
type unreadProfiles struct {
	all   bool // no profile could be read
	names map[string]bool
}

// expectLate stores the profiles that the boot could not read. For these, the boot could not decide whether to start their
// gateways.
func (m *Manager) expectLate(plan profiles.Plan) {
	m.serving.Store(&serving{Topology: plan.Topology})
	if plan.Topology.Multiplexed {
		m.say("gateways that are down are " + servedNote)
		return
	}
	names := make(map[string]bool, len(plan.Silent))
	for _, name := range plan.Silent {
		names[name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = unreadProfiles{plan.Unread, names}
}

// shouldStart reports whether to start the gateway of a late profile that has just appeared, because it ran in an earlier
// container. started is the time when this container was started. A profile in l.names is started at most once. If l.all is set,
// a profile is started each time it appears, as long as its state file is older than the container.
func (l *unreadProfiles) shouldStart(profile string, state profiles.State, started time.Time) bool {
	if !l.names[profile] && !l.all {
		return false
	}
	delete(l.names, profile)
	return state.Prior() == profiles.Running && state.Written.Before(started)
}
