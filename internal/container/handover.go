package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"hinit/client"
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
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/profiles"
	"hinit/supervisor"
)

// fallbackStopTimeout is the time limit of the shutdown if hinit can't read the state from the previous program, which contains
// the configured limit.
const fallbackStopTimeout = 8 * time.Second

// handover is the state of PID 1 for the next program at a re-execution. Package reexec encodes it.
type handover struct {
	reexec.PastGenerations
	StartedAt        time.Time   `reexec:"Started"`
	RepairEverything bool        `reexec:"Full"`
	VolumePrepared   bool        `reexec:"Prepared"` // the data volume was prepared
	Warnings         [2][]string // warnings that no agent can cause, and warnings that agents can cause
	Phases           []client.BootStep
	Repair           *client.Repair
	LastInterrupt    time.Time `reexec:"Interrupt"`
	LastReportedSeq  uint64    `reexec:"Reported"`

	// The fields below have the state of one package each.

	startHandover
	unitsHandover
	gateways.Handover
	registryHandover
	leaseHandover
	logsHandover
	healthHandover

	Control *control.Socket
	Procs   proc.Handover
	Loop    *supervisor.Handover
	Intents profiles.Handover
	S6      *personality.Handover // state of the s6 emulation; nil if hinit does not act as s6
}

// A struct can't embed several types with the name Handover, so they need aliases.
type (
	healthHandover   = health.Handover
	leaseHandover    = leaseholder.Handover
	logsHandover     = logs.Handover
	registryHandover = registry.Handover
	startHandover    = prepare.Handover
	unitsHandover    = units.Handover
)

// HandOver returns the state of all parts of the container (see [reexec.Host]). The reporter and the logs stop until the call
// of thaw, so that the state does not change. After a fault (a panic in hinit), HandOver returns the state even if the logs
// can't be stopped.
func (h *reexecHost) HandOver(past reexec.PastGenerations, afterPanic bool) (state any, thaw func(), err error) {
	c := h.c
	reported, release := c.reporter.Pause()
	thaw = func() {
		c.logs.Thaw()
		release()
	}
	ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
	defer cancel()
	if err := c.logs.Freeze(ctx); err != nil && !afterPanic {
		return nil, thaw, err
	}
	if h.socket == nil {
		h.socket = c.control.Detach()
	}
	old := &handover{
		PastGenerations: past, StartedAt: c.startedAt, RepairEverything: c.preparer.RepairAll.Load(), VolumePrepared: c.volumePrepared.Load(), LastInterrupt: c.signals.LastInterrupt(), LastReportedSeq: reported,
	}
	old.Control = h.socket
	old.startHandover = prepare.Input{Config: c.cfg.Load(), Agent: c.agent, RunPlan: *c.runPlan.Load()}.HandOver()
	old.unitsHandover, old.leaseHandover = c.units.HandOver(), c.lease.HandOver()
	old.Warnings[0], old.Warnings[1] = c.boot.Warnings()
	old.Phases, old.Repair = c.boot.Steps(), c.preparer.OwnerRepairer.Status()
	old.Handover, old.registryHandover = c.gateways.HandOver(), c.registry.HandOver()
	old.Procs, old.Loop, old.Intents = c.procs.HandOver(), c.loop.HandOver(), c.intents.HandOver()
	old.healthHandover, old.S6 = c.health.HandOver(), c.s6.HandOver()
	old.logsHandover, err = c.logs.HandOver()
	return old, thaw, err
}

// successorMain is the init after a re-execution: it continues the container of the previous program. If err is set or the
// state can't be used, it ends all processes and returns [reexec.ExitFault].
func successorMain(sig *signals.Signals, handed *reexec.HandedState, err error) int {
	var c *container
	if err == nil {
		c, err = restoreContainer(sig, handed)
	}
	if err != nil {
		initlog.WriteStderr(fmt.Errorf("cannot continue from the image before this one: %w", err))
		proc.EndDescendants(sig.SIGCHLD, fallbackStopTimeout)
		return reexec.ExitFault
	}
	return c.runToEnd(c.resumeServices)
}

// restoreContainer makes the container from the state that the previous program handed over.
func restoreContainer(sig *signals.Signals, handed *reexec.HandedState) (*container, error) {
	var old handover
	if err := reexec.DecodeState(handed, &old, &old.PastGenerations); err != nil {
		return nil, err
	}
	if old.Loop == nil || old.Logs == nil {
		return nil, errors.New("it has handed over no services")
	}
	start, err := old.startHandover.TakeOver()
	if err != nil {
		return nil, err
	}
	procs, err := proc.TakeOver(old.Procs)
	if err != nil {
		return nil, err
	}
	c := newContainer(start, sig, procs)
	c.generation.SetPast(old.PastGenerations)
	c.reporter.TakeOver(old.LastReportedSeq)
	c.startedAt = old.StartedAt
	c.units.TakeOver(old.unitsHandover)
	c.preparer.RepairAll.Store(old.RepairEverything)
	c.lease.TakeOver(old.leaseHandover)
	c.volumePrepared.Store(old.VolumePrepared)
	c.registry.TakeOver(old.registryHandover)
	c.boot.TakeOver(old.Warnings[0], old.Warnings[1], old.Phases)
	c.preparer.OwnerRepairer.TakeOver(old.Repair)
	c.signals.SetLastInterrupt(old.LastInterrupt)
	c.gateways.TakeOver(old.Handover)
	c.loop.TakeOver(old.Loop, procs.MainPID)
	c.intents.TakeOver(old.Intents)
	if err := c.logs.TakeOver(old.logsHandover, c.loop.Snapshot().Services); err != nil {
		return nil, err
	}
	c.health.TakeOver(old.healthHandover, old.Loop)
	c.signals.PutBack(handed.Signals)
	c.s6.TakeOver(old.S6)
	c.control.Inherit(old.Control)
	c.loop.QueueFirst(supervisor.Remark{Text: c.generation.ResumeMessage(old.PastGenerations, handed)})
	return c, nil
}

// resumeServices continues services and gateways after a re-execution, in place of a boot.
func (c *container) resumeServices(ctx context.Context) {
	c.s6.Start(ctx)
	c.control.Reattach(nil)
	ctx = c.lease.Resume(ctx)
	if c.lease.Serves() {
		c.registry.ChangeLock.Lock()
		c.registry.PrepareCgroups(c.cfg.Load())
		c.registry.Timetable.Serve(ctx, c.cfg.Load(), true)
		c.registry.ChangeLock.Unlock()
	}
	if !c.lease.Serves() || !c.runPlan.Load().HasProfiles() {
		return
	}
	if c.units.Topology() == nil {
		c.gateways.ReadTopology()
	}
	c.gateways.ResumeOrders(ctx)
	c.health.RecordMemory()
	c.preparer.RepairOwners(ctx, !c.preparer.OwnerRepairer.AllRepaired())
}

// freezeTimeout is how long a re-execution waits for writes to the volume, and then for the logs to write the lines that they
// have read. The supervisor's loop is blocked during the second wait.
const freezeTimeout = time.Second

// reexecHost implements [reexec.Host], by which package reexec stops the container and collects its state.
type reexecHost struct {
	*signals.Signals
	c      *container
	socket *control.Socket // control socket without a server, during a re-execution; otherwise nil
}

// reexec asks for a re-execution. binary is the path of the new program, or "" for hinit's own. It returns the number of the
// current generation, see [reexec.Generation.Request].
func (c *container) reexec(ctx context.Context, binary string) (int, error) {
	if c.loop.Snapshot().Stopping {
		return 0, supervisor.ErrStopping
	}
	_ = c.loop.Do(ctx, supervisor.Remark{Text: "asked to re-execute itself"}) // Do fails only if the container ends
	return c.generation.Request(ctx, binary)
}

// LockConfig keeps the configuration from changing until release is called.
func (h *reexecHost) LockConfig(ctx context.Context) (release func(), err error) {
	return h.c.registry.LockChanges(ctx)
}

// Quiesce answers or ends the open requests of clients. It also waits for writes to the volume and to the s6 scan directory.
// After that, hinit serves no clients until the call of wake after a failed re-execution. After a fault, Quiesce does not wait
// for the volume.
func (h *reexecHost) Quiesce(afterPanic bool) (wake func(), err error) {
	h.socket = h.c.control.CloseForReexec()
	release := func() {}
	wake = func() {
		release()
		h.c.control.Reattach(h.socket)
		h.socket = nil
	}
	if !afterPanic {
		if err := h.c.awaitVolumeIdle(); err != nil {
			return wake, err
		}
		h.c.awaitLogTails()
	}
	if held, err := h.c.s6.HoldScanner(); err == nil {
		release = held
	} else if !afterPanic { // after a fault, ignore the error, because the scan directory may have caused the fault
		return wake, err
	}
	return wake, nil
}

// awaitVolumeIdle waits for the end of all writes to the volume, at most for freezeTimeout. It ignores the logs, because Freeze
// waits for them. execve(2) can't end a thread that waits for a hung file system, so it would hang too.
func (c *container) awaitVolumeIdle() error {
	end := time.Now().Add(freezeTimeout)
	for !c.gateways.IsIdle() || c.store.IsWriting() || c.registry.Timetable.IsSaving() {
		if time.Now().After(end) {
			return errors.New("a disk does not answer, and what waits for it would hold up the new image; try again when it does")
		}
		<-time.After(freezeTimeout / 100)
	}
	return nil
}

// awaitLogTails waits until hinit has read the last lines of services that have just ended, at most for freezeTimeout. A
// re-execution would lose these lines. Reading takes at most 100 ms, so services that ended earlier do not matter.
func (c *container) awaitLogTails() {
	reading := func(s *supervisor.Service) bool {
		return s.LastExit != nil && s.LastExit.Tail == nil && c.logs.Get(s.Name) != nil && time.Since(s.LastExit.At) < freezeTimeout/5
	}
	end := time.Now().Add(freezeTimeout)
	for slices.ContainsFunc(c.loop.Snapshot().Services, reading) && time.Now().Before(end) {
		<-time.After(freezeTimeout / 100)
	}
}

// TryProgram runs a program like a check, because only the supervisor's loop may start a process. The container's log gets
// its standard error.
func (h *reexecHost) TryProgram(ctx context.Context, path string, argv ...string) (code int, answer string, err error) {
	return h.c.health.RunCheck(ctx, "reexec/try", proc.Spec{Path: path, Argv: argv, Env: os.Environ()}, os.Stderr)
}

// RunInLoop calls f in the supervisor's loop.
func (h *reexecHost) RunInLoop(f func()) error { return h.c.loop.RunInLoop(context.Background(), f) }

// LastEvents returns the last events of the history as text.
func (h *reexecHost) LastEvents() string { return report.LastEvents(h.c.loop.History()) }

// StoreReport writes the report of a fault to the directory of the logs.
func (h *reexecHost) StoreReport(name string, report []byte) (path string, err error) {
	return h.c.logs.StoreReport(name, report)
}

func (h *reexecHost) Say(line string) { h.c.Print(line) }

// End begins the shutdown of the container.
func (h *reexecHost) End(code int, reason string) {
	h.c.loop.Post(supervisor.Shutdown{Code: code, Reason: reason})
}

// loopPanicked re-executes hinit after a panic in the supervisor's loop, in the goroutine of the loop. If that is impossible,
// it ends all processes and returns the exit code of the container.
func (c *container) loopPanicked(value any, stack []byte) int {
	c.generation.SupervisorPanicked(value, stack)
	proc.EndDescendants(c.signals.SIGCHLD, c.cfg.Load().Shutdown.Budget)
	return reexec.ExitFault
}
