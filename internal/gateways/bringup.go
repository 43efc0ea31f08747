package gateways

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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

// profilesTimeout is how long the boot waits for the volume to list the profiles. If the volume needs longer, the boot continues
// with the CMD, and the gateways start when the volume has answered.
const profilesTimeout = 15 * time.Second

// StartAtBoot registers the gateways of all profiles, starts those that should run, and begins to watch the volume. After
// profilesTimeout, StartAtBoot returns and the rest happens in the background.
func (m *Manager) StartAtBoot(ctx context.Context, b BootInput) error {
	done := make(chan error, 1)
	m.boot.profilesRead = guard.GoWithDone("bringing up the profiles", func() {
		if err := m.MayServe(); err != nil {
			b.OnProfilesKnown()
			done <- err
			return
		}
		if m.RunPlan().Supervise {
			m.chooseCmdProfile(&b)
		}
		m.ReadTopology()
		m.warnOfSlowStop(&b)
		known, err := m.RegisterProfiles(ctx, b)
		b.DelayForMemory(ctx)
		_ = m.Registry.MarkNeedMet(ctx, registry.NeedProfiles)
		// a dashboard container shares the volume with the container of the gateways, which watches the volume
		if !m.RunPlan().DashboardOnly {
			m.Start(ctx, known)
		}
		// a re-execution waits for OnProfilesKnown, and so for the boot log, because the next program would not write the log
		guard.Go("waiting for the boot log", func() {
			<-m.boot.bootLogWritten
			b.OnProfilesKnown()
		})
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-time.After(profilesTimeout):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p := b.Status.ProfilesProgress(m.CountGateways()); p != nil && p.Done > 0 {
		b.Logger.Say("boot: profiles %s of %s after %s; the boot continues while the others come up", show.FormatThousands(p.Done), show.FormatThousands(p.Profiles), profilesTimeout)
		return nil
	}
	return fmt.Errorf("cannot read the profiles: %q did not answer within %s; their gateways start when it does", m.Config().Home, profilesTimeout)
}

// chooseCmdProfile chooses the profile of the CMD's gateway, and stores it in the run plan: the profile in the CMD, or else the
// agent's active profile.
func (m *Manager) chooseCmdProfile(b *BootInput) {
	if !m.RunPlan().ProfileIsExplicit {
		active, err := m.Store.Active()
		if err != nil {
			b.Logger.Warn("cannot tell which profile is selected, so it is the default one: %v", err)
		} else if _, err := m.Store.Profile(active); err == nil {
			route := *m.RunPlan()
			route.Profile = active
			b.SetRunPlan(&route)
		}
	}
	for line := range strings.Lines(boot.GatewayRunNotice(m.RunPlan().Profile)) {
		b.Logger.Print(strings.TrimSuffix(line, "\n"))
	}
	if len(m.RunPlan().IgnoredWords) > 0 {
		b.Logger.Warn("these words of the CMD have no effect on a supervised gateway: %s", strings.Join(m.RunPlan().IgnoredWords, " "))
	}
}

// ReadTopology reads which gateway serves each profile. A gateway uses a changed topology from its next start.
func (m *Manager) ReadTopology() {
	if t, err := m.Store.Topology(os.Getenv, ""); err == nil {
		m.Registry.StoreTopology(t)
	}
}

// CountGateways returns how many profiles have a gateway.
func (m *Manager) CountGateways() int {
	n := 0
	for _, s := range m.Registry.Snapshot().Services {
		if s.Kind == supervisor.KindGateway {
			n++
		}
	}
	return n
}

const (
	// slotTimeout is how long the boot log waits for the s6 service directories (slots) on a slow file system. Programs that read
	// the log use the slots next.
	slotTimeout = 20 * time.Second
	// cmdSlotTimeout is how long the CMD waits for all s6 service directories.
	cmdSlotTimeout = time.Second
)

// writeBootLog writes the boot log in a goroutine, after all s6 service directories (slots) exist, because programs that wait
// for the log use the slots next.
func (m *Manager) writeBootLog(ctx context.Context, b *BootInput, write func() error) {
	made := b.SlotsMade()
	m.boot.bootLogWritten = guard.GoWithDone("writing the boot log", func() {
		if made != nil {
			limited, cancel := context.WithTimeout(ctx, slotTimeout)
			defer cancel()
			if !pause.Until(limited, made) && ctx.Err() == nil {
				b.Logger.Say("warning: not all slots of gateways are made after %s, because the file system of the scan directory is slow; the others follow", slotTimeout)
			}
		}
		if err := write(); err != nil && !errors.Is(err, unix.EROFS) { // the boot has already reported a read-only volume
			b.Logger.Warn("cannot write the boot log: %v", err)
		}
	})
}

// AwaitSlots delays the start of the CMD until all s6 slots exist and the boot log is written. Very many slots may take long,
// so it waits at most for cmdSlotTimeout.
func (m *Manager) AwaitSlots(ctx context.Context, made <-chan struct{}) {
	if made == nil || m.boot.profilesRead == nil || m.RunPlan().Supervise || m.RunPlan().ForegroundGateway {
		return
	}
	select {
	case <-m.boot.profilesRead:
	default:
		return // the volume hangs, so do not wait
	}
	ctx, done := context.WithTimeout(ctx, cmdSlotTimeout)
	defer done()
	_ = pause.Until(ctx, made) && pause.Until(ctx, m.boot.bootLogWritten) // the CMD starts even after a timeout
}

// warnOfSlowStop warns if the last stop of the container used almost all of its time, and names the settings for more time.
func (m *Manager) warnOfSlowStop(b *BootInput) {
	if took, budget := m.Store.LastSlowStop(); took > 0 {
		more := int(2 * max(took, budget) / time.Second)
		where := boot.ChooseAdvice(boot.InPod(os.LookupEnv), "compose.yaml `stop_grace_period: %ds`", "the pod `terminationGracePeriodSeconds: %d`")
		b.Logger.Warn("the last stop of the container took %s of the %s that it has, after which everything is killed; give it more: HINIT_STOP_TIMEOUT=%d, and in "+where,
			show.FormatDuration(took), show.FormatDuration(budget), more, more+2)
	}
}

// AwaitProfilesRead blocks until the boot has read the profiles, or ctx ends. It returns at once in a boot without profiles.
func (m *Manager) AwaitProfilesRead(ctx context.Context) {
	if m.boot.profilesRead != nil {
		pause.Until(ctx, m.boot.profilesRead)
	}
}

// RecordStopDuration writes the duration of the container's stop to the volume, for warnOfSlowStop at the next start. It closes
// the channel after the write.
func (m *Manager) RecordStopDuration() <-chan struct{} {
	began := m.stopStartedAt()
	took, known := time.Since(began), !began.IsZero() && m.RunPlan().HasProfiles() && m.MayServe() == nil
	return guard.GoWithDone("noting how long the stop took", func() {
		if known {
			_ = m.Store.RecordStopDuration(took, m.Config().Shutdown.Budget)
		}
	})
}

// maxSortedProfiles is the maximum number of profiles for which the boot starts recently used gateways first. That order needs
// all profiles before the first start. With more profiles, each gateway starts as soon as its profile is read.
const maxSortedProfiles = 256

// BootInput is the input of [Manager.StartAtBoot].
type BootInput struct {
	ServiceCount int // number of services that are not gateways
	// returns a channel that is closed when all s6 slots exist; nil if hinit does not emulate s6
	SlotsMade       func() <-chan struct{}
	SetRunPlan      func(*boot.RunPlan) // stores a changed run plan, the meaning of the CMD
	OnProfilesKnown func()              // called when all profiles are known
	Status          *bootstatus.Status
	// DelayForMemory holds back registered gateways that lack memory; it may block.
	DelayForMemory func(ctx context.Context)
	Logger         *initlog.Logger // logger for messages that no agent can cause
}

// RegisterProfiles reads the profiles and registers their gateways, and decides which gateways start. It returns the profiles
// that it has read.
func (m *Manager) RegisterProfiles(ctx context.Context, b BootInput) (read []profiles.Profile, err error) {
	route, known := m.RunPlan(), false
	record := func() error { return nil } // completes the record of the intent, because the CMD asks for this gateway
	var answers []func() error
	writeLog := func() error { return nil }
	defer b.Status.SetProfiles(0)
	plan := m.Store.Reconcile(profiles.BootOptions{
		OnlyDashboard: route.DashboardOnly, CMDAsksForGateway: route.LegacyGatewayRun, CMDIsGateway: m.isCmdGateway(profiles.Default), Getenv: os.Getenv,
		Log: func(write func() error) { writeLog = write },
		OnFound: func(n int) {
			b.Status.SetProfiles(n)
			m.Registry.SetOrderedStart(n <= maxSortedProfiles)
		},
		OnDecision: func(d profiles.Decision) {
			name := d.Profile.Name
			supervised := route.Supervise && name == route.Profile
			if supervised {
				known = true
				record = m.recordWanted(name)
			}
			read = append(read, d.Profile)
			m.Registry.AddProfile(name)
			m.recordNotStarted(d)
			start := supervised || d.Start && !m.isCmdGateway(name)
			answers = append(answers, m.Registry.RegisterGateway(ctx, registry.Gateway{Profile: d.Profile, Start: start, Down: !start, LastUsed: d.LastUsed}))
		},
	})
	m.writeBootLog(ctx, &b, writeLog)
	m.storeUnread(plan)
	for _, w := range plan.Warnings {
		m.Logger.Warn("%s", w)
	}
	for _, line := range plan.Lines {
		m.Logger.Print(line)
	}
	for _, w := range tuning.LimitWarnings(len(plan.Profiles) + b.ServiceCount) {
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
			m.Logger.Warn("the order of the CMD to run the gateway of %q %v", route.Profile, err)
		}
	}
	return read, err
}

// recordWanted records the intent of the CMD that the gateway of a profile runs. Call it before the start of the gateway,
// because the gateway writes to the same file. The returned function completes the record, and blocks on the disk.
func (m *Manager) recordWanted(profile string) (record func() error) {
	if st, err := m.Store.ReadState(profile); err == nil && st.HasDesired && st.Desired == profiles.Running {
		m.Intents.RecordExternal(profile, profiles.Running)
		return func() error { return nil }
	}
	record, err := m.Intents.Record(profile, profiles.Running)
	if err != nil {
		return func() error { return fmt.Errorf("%w: %w", profiles.ErrNotRecorded, err) }
	}
	return record
}

// isCmdGateway reports whether the container's CMD is the gateway of this profile. hinit must not start a second one.
func (m *Manager) isCmdGateway(profile string) bool {
	r := m.RunPlan()
	return r.ForegroundGateway && profile == r.Profile
}

// unreadProfiles are profiles that the boot could not read in time. When such a profile appears later, its gateway starts if it
// ran in the previous container.
type unreadProfiles struct {
	all   bool // no profile could be read
	names []string
}

// storeUnread stores the profiles that the boot could not read. Whether their gateways start is still undecided.
func (m *Manager) storeUnread(plan profiles.Plan) {
	m.servedProfiles.Store(&servedProfiles{Topology: plan.Topology})
	if plan.Topology.Multiplexed {
		m.logGateway("", "gateways that are down are %s", servedByText)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unreadProfiles = unreadProfiles{plan.ListingSilent, plan.SilentHomes}
}

// shouldStart reports whether to start the gateway of a new profile that the boot could not read. The state file must say that
// the gateway ran, and must be older than this container. started is the start of this container. A gateway in l.names is
// started only once. If l.all is set, any profile counts, each time it appears.
func (l *unreadProfiles) shouldStart(profile string, state profiles.State, started time.Time) bool {
	if !slices.Contains(l.names, profile) && !l.all {
		return false
	}
	l.names = slices.DeleteFunc(l.names, func(name string) bool { return name == profile })
	return state.PriorState() == profiles.Running && state.Written.Before(started)
}
