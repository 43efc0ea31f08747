package container

import (
	"context"
	"io"
	"os"
	"sync/atomic"
	"time"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/bootstatus"
	"hinit/internal/container/health"
	"hinit/internal/container/initlog"
	"hinit/internal/container/leaseholder"
	"hinit/internal/container/logs"
	"hinit/internal/container/prepare"
	"hinit/internal/container/report"
	"hinit/internal/container/signals"
	"hinit/internal/container/units"
	"hinit/internal/control"
	"hinit/internal/gateways"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/internal/tuning"
	"hinit/profiles"
	"hinit/supervisor"
)

// container connects the packages of which PID 1 consists. The supervisor's loop runs in the goroutine that calls run. Work
// that may wait for a disk or a client runs in other goroutines.
type container struct {
	*initlog.Logger

	cfg   atomic.Pointer[config.Config]
	agent boot.Agent
	// meaning of the CMD: a supervised gateway, or a command; the boot may replace runPlan
	runPlan   atomic.Pointer[boot.RunPlan]
	startedAt time.Time
	// volumePrepared means that the data volume was volumePrepared and the boot hooks have run.
	volumePrepared atomic.Bool

	procs    *proc.Table
	loop     *supervisor.Loop
	logs     *logs.Logs
	health   *health.Health
	reporter *report.Reporter
	units    *units.Maker
	signals  *signals.Signals
	preparer *prepare.Preparer
	control  *control.Endpoint

	store    *profiles.Store
	intents  *profiles.Intents
	gateways *gateways.Manager
	lease    *leaseholder.Lease

	boot       *bootstatus.Status
	generation *reexec.Generation
	registry   *registry.Registry
	s6         *personality.Emulation
}

// newContainer makes all parts of a container and connects them. procs is a new process table, or the table of the previous
// program.
func newContainer(start prepare.Input, sig *signals.Signals, procs *proc.Table) *container {
	cfg, agent, route := start.Config, start.Agent.WithTenants(start.Config), start.RunPlan
	c := &container{
		agent: agent, startedAt: time.Now(), procs: procs, signals: sig, boot: bootstatus.New(),
		preparer: new(prepare.Preparer), // the code below fills in the stage, when the parts that it needs exist
	}
	c.cfg.Store(cfg)
	c.runPlan.Store(&route)
	env := boot.ContainerEnv(cfg.Home)
	if route.ServicesOnly {
		env = boot.InheritedEnv()
	} else if personality.ActsAsS6() {
		env = proc.SetEnv(env, map[string]string{"PATH": personality.AgentPath(cfg.Home)})
	}
	c.units = units.NewMaker(agent, cfg.Home, env, route.ServicesOnly)
	c.store = profiles.Open(cfg.Home, agent.HomesActor(cfg.Home), cfg.Profiles.Marker).SetMaxProfiles(cfg.Profiles.Max)
	c.Logger = initlog.New(func() io.Writer { return c.logs.Console(2) }, c.boot.AddWarning, initlog.NewTerminationLog())
	// agents logs messages that an agent can cause. The status keeps its warnings in a separate list, so that they can't
	// displace other warnings.
	agents := c.WithWarningStore(c.boot.AddAgentWarning)
	c.logs = logs.New(logs.Options{
		Config: c.cfg.Load, Actor: agent.Actor, ReadSecrets: c.store.Secrets, Say: c.Say, Warn: agents.Warn, OnOutput: func() { c.health.ResumeDeafSearch() },
		CompressArchives: c.preparer.CompressArchives,
	})
	sig.Configure(route.HasCommand(), prepare.IsControllingTerminal(os.Stdin), func() { c.registry.ReloadAndLog() }, c.boot.HookText)
	turns, spare := tuning.ParallelStarts(cfg.Start.Parallel)
	c.loop = supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: c.logs, ShutdownBudget: cfg.Shutdown.Budget, MaxStarting: turns, ExtraStarting: spare,
		SIGCHLD: sig.SIGCHLD, MuteSIGCHLD: proc.SIGCHLDSilencer(), Signals: sig.Incoming, OnSignal: sig.Event, OOMKills: proc.OOMKillCounter(),
		OnPanic: c.loopPanicked, CheckStart: func(name string, kind supervisor.Kind) error { return c.lease.CheckStart(name, kind) },
	})
	c.reporter = report.New(report.Options{
		Loop: c.loop, Say: c.Say, Observe: c.handleRecord, OnStopping: func() { c.gateways.Stop() },
		OnRecordsLost: func() {
			// a service that the supervisor does not know may still have a log, if the record of its removal was lost
			c.logs.DropUnknown(func(service string) bool { return c.loop.Snapshot().Find(service) != nil })
			c.gateways.CatchUp()
		},
	})
	c.health = health.New(health.Options{
		Config: c.cfg.Load, Loop: c.loop, Store: c.store, Agent: agent, ServicesOnly: route.ServicesOnly, ServiceLog: c.logs.Get, Warn: agents.Warn,
		SocketDir:      func() string { return c.control.Dir() },
		OnLeaseMessage: func(words string) { c.lease.LeaseMessage(words) },
	})
	c.registry = registry.New(registry.Options{
		Loop: c.loop, Config: c.cfg.Load, Store: c.store, Units: c.units, Logs: c.logs, Health: c.health, Logger: c.Logger,
		AgentUID: agent.User.UID, Actor: agent.Actor, CheckMayRun: func() error { return c.lease.Check() }, ServicesOnly: route.ServicesOnly,
		ServesVolume: func() bool { return c.lease.Serves() }, SetConfig: c.applyConfig,
		StoresTaskStarts: route.HasProfiles(), WarnNotStored: func(err error) { c.Say("%v", err) },
	})
	c.lease = leaseholder.New(leaseholder.Host{
		Config: c.cfg.Load, RunPlan: c.runPlan.Load, Logger: c.Logger, Fatal: c.endAfterFailedBoot,
		RemoveSlot: c.registry.RemoveSlot, DropProfiles: func() { c.gateways.DropRecords() }, TakeOver: c.takeOverVolume,
		WarnAgents: func(line string) { agents.Warn("%s", line) },
	}, c.loop, cfg.Home, agent.Actor, c.boot, cfg.Services[config.LeaseName].Enabled && route.HasProfiles())
	c.store.CheckRoot = c.lease.CheckRoot
	*c.preparer = prepare.Preparer{
		Logger: c.Logger, AgentLogger: agents, Registry: c.registry, Status: c.boot, Units: c.units, Logs: c.logs, Store: c.store, Agent: agent,
		Config: c.cfg.Load, RunPlan: c.runPlan.Load, Serves: c.lease.Serves, Started: c.startedAt,
	}
	c.preparer.CreateParts()
	c.health.MeasureProfiles = c.preparer.MeasureProfiles
	c.intents = profiles.NewIntents(c.store)
	c.intents.CheckWrite = c.lease.Check
	c.gateways = gateways.New(gateways.Options{
		Registry: c.registry, Logger: agents, Config: c.cfg.Load, RunPlan: c.runPlan.Load, Store: c.store, Intents: c.intents, Started: c.startedAt,
		MayServe: c.lease.Check, ReadSecrets: c.logs.ReadSecrets, OnStateWritten: c.health.RecordHeartbeat, OnDiskJob: c.reporter.NoteActivity,
		CorrectOwner: func(ctx context.Context, profile string) {
			c.preparer.OwnerRepairer.CorrectOwner(ctx, c.preparer.BootOptions(c.cfg.Load()), profile)
		},
	})
	c.s6 = personality.NewEmulation(s6Host{agents, c.registry, c.gateways}, c.registry.SetSlotMaker, func() personality.Settings {
		return personality.Settings{
			Agent: agent.Actor, Cred: agent.Cred, Env: c.units.Env(), StartedAt: c.startedAt,
			HasMainSlot: c.cfg.Load().Services[registry.MainSlotName].Name == "",
		}
	})
	c.control = control.NewEndpoint(c.controlBackend(), control.Options{
		AgentUID: agent.User.UID, OtherUsers: cfg.Control.OtherUsers, Log: func(line string) { c.Say("control: %s", line) }, IsDenied: c.registry.DeniesSocket,
		OnRequest: c.reporter.NoteActivity, Say: c.Say, Warn: c.Warn,
	})
	c.generation = reexec.FirstGeneration(&reexecHost{Signals: sig, c: c}, signals.HandledSignals())
	guard.SetPanicHandler(c.generation.Panicked)
	return c
}

// s6Host implements [personality.Host] with the parts of PID 1 that the s6 emulation uses.
type s6Host struct {
	*initlog.Logger
	*registry.Registry
	*gateways.Manager
}

// Say limits the number of messages, because an agent can make any number of slots.
func (h s6Host) Say(format string, args ...any) { h.LogSlots(format, args...) }

// handleRecord passes a record of the event history to each package that follows services. The reporter calls it for every
// record.
func (c *container) handleRecord(r supervisor.Record) {
	c.gateways.Observe(r)
	c.s6.Observe(r)
	if r.Exit != nil && len(r.Exit.Tail) > 0 && report.LogLine(r) != "" {
		c.AddToTermination(r.Service + ": " + r.Exit.Explanation())
	}
	c.registry.Observe(r)
}
