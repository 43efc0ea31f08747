package gateways

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/container/bootstatus"
	"hinit/internal/container/initlog"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/registry"
	"hinit/internal/tuning"
	"hinit/profiles"
	"hinit/supervisor"
)

// profilesBudget is the maximum time that the boot waits for the profiles to be read. If the volume answers later, the
// gateways are started later.
const profilesBudget = 15 * time.Second

// BringUp registers the gateways of all profiles, starts the ones that are wanted, and begins to watch the volume. If that takes
// longer than profilesBudget, BringUp returns, and the remaining gateways are started in the background.
func (m *Manager) BringUp(ctx context.Context, b Boot) error {
	done := make(chan error, 1)
	read := make(chan struct{})
	m.boot.profilesRead = read
	guard.Go("bringing up the profiles", func() {
		defer close(read)
		if err := m.MayServe(); err != nil {
			b.OnProfilesKnown()
			done <- err
			return
		}
		if m.Route().Supervise {
			m.chooseProfile(&b)
		}
		m.ReadTopology()
		m.warnOfSlowStop(&b)
		known, err := m.RegisterProfiles(ctx, b)
		b.Admit(ctx)
		_ = m.Registry.MarkMet(ctx, registry.NeedProfiles) // fails only if the container has ended
		if !m.Route().DashboardOnly {                      // a dashboard container shares its volume with the gateways' container
			m.Start(ctx, known)
		}
		guard.Go("waiting for the boot log", func() { // a re-execution must wait for this, because the next program would not write the boot log
			<-m.boot.bootLogWritten
			b.OnProfilesKnown()
		})
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-time.After(profilesBudget):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p := b.Status.Profiles(m.BroughtUp()); p != nil && p.Done > 0 {
		b.Logger.Say("boot: profiles %s of %s after %s; the boot goes on while the others come up", show.Thousands(p.Done), show.Thousands(p.Profiles), profilesBudget)
		return nil
	}
	return fmt.Errorf("cannot read the profiles: %q did not answer within %s; their gateways start when it does", m.Config().Home, profilesBudget)
}

// chooseProfile determines the profile whose gateway the CMD asks for: the profile that the CMD names, or the agent's active
// profile.
func (m *Manager) chooseProfile(b *Boot) {
	if !m.Route().ProfileNamed {
		active, err := m.Store.Active()
		if err != nil {
			b.Logger.Warn("cannot tell which profile is selected, so it is the default one: %v", err)
		} else if _, err := m.Store.Profile(active); err == nil {
			route := *m.Route()
			route.Profile = active
			b.SetRoute(&route)
		}
	}
	for line := range strings.Lines(boot.GatewayRunNotice(m.Route().Profile)) {
		b.Logger.Line(strings.TrimSuffix(line, "\n"))
	}
	if len(m.Route().Ignored) > 0 {
		b.Logger.Warn("these words of the CMD have no effect on a supervised gateway: %s", strings.Join(m.Route().Ignored, " "))
	}
}

// ReadTopology reads the topology, which says which gateway serves each profile. Gateways get the topology at their next
// start.
func (m *Manager) ReadTopology() {
	if t, err := m.Store.Topology(os.Getenv, ""); err == nil { // errors are reported during the boot
		m.Registry.ReadTopology(t)
	}
}

// BroughtUp returns the number of profiles that have a gateway.
func (m *Manager) BroughtUp() int {
	n := 0
	for _, s := range m.Registry.Snapshot().Services {
		if s.Kind == supervisor.KindGateway {
			n++
		}
	}
	return n
}

const (
	// slotTime is the maximum time that the boot log waits for the s6 service directories (slots) on a slow file system.
	// Programs that read the log use the slots next.
	slotTime = 20 * time.Second
	// cmdSlotTime is the maximum time that the CMD waits for all s6 service directories.
	cmdSlotTime = time.Second
)

// writeBootLog writes the boot log in a goroutine. It first waits until the queued s6 service directories (slots) exist,
// because programs that wait for the log use the slots next.
func (m *Manager) writeBootLog(ctx context.Context, b *Boot, write func() error) {
	logged := make(chan struct{})
	m.boot.bootLogWritten = logged
	made := b.SlotsMade()
	guard.Go("writing the boot log", func() {
		defer close(logged)
		if made != nil {
			limited, cancel := context.WithTimeout(ctx, slotTime)
			defer cancel()
			if !pause.Until(limited, made) && ctx.Err() == nil {
				b.Logger.Warn("not all slots of gateways are made after %s, because the file system of the scan directory is slow; the others follow", slotTime)
			}
		}
		if err := write(); err != nil && !errors.Is(err, unix.EROFS) { // the boot has already reported a read-only volume
			b.Logger.Warn("cannot write the boot log: %v", err)
		}
	})
}

// AwaitSlots waits before the start of the CMD until the s6 slots exist and the boot log is written. It waits for at most
// cmdSlotTime, because there may be very many slots.
func (m *Manager) AwaitSlots(ctx context.Context, made <-chan struct{}) {
	if made == nil || m.boot.profilesRead == nil || m.Route().Supervise || m.Route().Foreground {
		return
	}
	select {
	case <-m.boot.profilesRead:
	default:
		return // the volume hangs: don't wait for it
	}
	ctx, done := context.WithTimeout(ctx, cmdSlotTime)
	defer done()
	_ = pause.Until(ctx, made) && pause.Until(ctx, m.boot.bootLogWritten) // the CMD starts even after a timeout
}

// warnOfSlowStop warns if the last stop of the container took almost all of its time limit. The warning contains the
// settings that give the stop more time.
func (m *Manager) warnOfSlowStop(b *Boot) {
	if took, budget := m.Store.SlowStop(); took > 0 {
		more := int(2 * max(took, budget) / time.Second)
		where := boot.AdviceFor(boot.InPod(os.LookupEnv), "compose.yaml `stop_grace_period: %ds`", "the pod `terminationGracePeriodSeconds: %d`")
		b.Logger.Warn("the last stop of the container took %s of the %s that it has, after which everything is killed; give it more: HINIT_STOP_TIMEOUT=%d, and in "+where,
			show.Duration(took), show.Duration(budget), more, more+2)
	}
}

// AwaitRead waits until the boot has read the profiles, or ctx ends. If the boot does not read profiles, it returns immediately.
func (m *Manager) AwaitRead(ctx context.Context) {
	if m.boot.profilesRead != nil {
		pause.Until(ctx, m.boot.profilesRead)
	}
}

// NoteStop records the duration of the container's stop on the volume, for warnOfSlowStop at the next start. The channel is
// closed when that is done.
func (m *Manager) NoteStop() <-chan struct{} {
	done := make(chan struct{})
	began := m.stopBegan()
	if began.IsZero() || !m.Route().HasProfiles() || m.MayServe() != nil {
		close(done)
		return done
	}
	took := time.Since(began)
	guard.Go("noting how long the stop took", func() {
		defer close(done)
		_ = m.Store.RecordStopDuration(took, m.Config().Shutdown.Budget) // without a record, the next start gives no advice
	})
	return done
}

// maxOrderedProfiles is the maximum number of profiles for which the boot reads all profiles before it starts the first gateway.
// Recently used gateways can then start first. With more profiles, each gateway starts as soon as its profile has been
// read.
const maxOrderedProfiles = 256

// Boot holds the inputs of [Manager.BringUp].
type Boot struct {
	Services        int                    // number of services that are not gateways
	SlotsMade       func() <-chan struct{} // returns a channel that is closed when all s6 slots exist; nil if hinit does not emulate s6
	SetRoute        func(*boot.RunPlan)    // replaces the run plan: what the CMD starts
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
		m.warn(w)
	}
	for _, line := range plan.Lines {
		m.Logger.Line(line)
	}
	for _, w := range tuning.LimitWarnings(len(plan.Profiles) + b.Services) {
		m.Logger.Warn("%s", w)
	}
	for _, answer := range answers {
		err = cmp.Or(err, answer())
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
