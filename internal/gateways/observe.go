package gateways

import (
	"context"
	"slices"
	"strings"
	"time"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

// Observe handles a record about a gateway from the event history. Work on the disk goes into the job queue, so Observe does
// not block.
func (m *Manager) Observe(r supervisor.Record) {
	profile, ok := profiles.SlotProfile(r.Service)
	if !ok {
		return
	}
	changed := r.From != r.To
	if r.To == supervisor.Starting && changed {
		m.updateRecord(profile, func(g *gatewayRecord) { g.startedAt = r.At })
		m.enqueue(r.Service, func() { m.ReadSecrets(r.Service, profile) })
	}
	var job func()
	switch {
	case r.Dropped: // an earlier job may have restored the record after the removal
		job = func() {
			if !m.Registry.ProfileExists(profile) && m.Registry.Snapshot().Find(r.Service) == nil {
				m.dropRecord(profile)
			}
		}
	case r.Exit != nil && r.Exit.Cause == supervisor.CauseOperator:
		job = func() { m.Store.RemovePlannedStop(profile, r.Exit.PID) } // a gateway that ended early leaves its planned-stop marker behind
	case r.Exit != nil && r.Exit.Cause == supervisor.CauseClean && r.Exit.Code == 0:
		job = func() { m.checkTakeover(r.Service, profile, r.Exit, 0) }
	case r.To == supervisor.Parked && changed:
		job = func() { m.watchParked(r.Service, profile, r.Reason) }
	case r.From == supervisor.Parked && changed:
		job = func() { m.watch().StopWatchingInputs(profile) }
	case r.To == supervisor.Up && changed:
		job = func() {
			m.storeInputs(r.Service, profile)
			m.handleGatewayUp(profile, false)
		}
	case r.To == supervisor.Down && changed:
		// During the stop of the container, the state file matters only for an intent that must be restored.
		if _, ordered := m.Intents.LastOrder(profile); ordered || m.stopStartedAt().IsZero() {
			job = func() { m.updateFromStateFile(profile) }
		}
	}
	if job != nil {
		m.enqueue(r.Service, job)
	}
}

// CatchUp repeats the work of [Manager.Observe] for lost records: the history dropped them, or they came before a re-execution.
func (m *Manager) CatchUp() {
	for _, s := range m.Registry.Snapshot().Services {
		profile, ok := profiles.SlotProfile(s.Name)
		x := s.LastExit
		switch {
		case !ok:
		case s.State == supervisor.Up:
			m.enqueue(s.Name, func() { m.handleGatewayUp(profile, true) })
		case s.State == supervisor.Parked:
			m.enqueue(s.Name, func() { m.watchParked(s.Name, profile, s.Reason) })
		case s.State == supervisor.Backoff && x.Cause == supervisor.CauseClean && x.Code == 0:
			m.enqueue(s.Name, func() { m.checkTakeover(s.Name, profile, x, 0) })
		}
	}
	for _, profile := range m.Intents.Pending() {
		m.retryRecordLater(profiles.SlotName(profile), profile)
	}
}

// handleGatewayUp handles a gateway that is up. It reads the state file, because the gateway may have written it before the
// supervisor reported the start. resumed means that the gateway may have been up for long and keeps the topology of its start.
func (m *Manager) handleGatewayUp(profile string, resumed bool) {
	if profile == profiles.Default && !(resumed && m.defaultGatewayRun() == m.servedProfiles.Load().topologyRun) {
		m.applyTopology(context.Background()) // the call ends with the supervisor's loop, so it needs no deadline
	}
	m.updateFromStateFile(profile)
	service := profiles.SlotName(profile)
	m.storeExclusiveValues(service, profile)
	if m.Config().Agent.ReadyWhen != config.ReadyByStateFile {
		return
	}
	m.enqueueIn(readinessAdviceDelay, service, func() {
		if s := m.Registry.Snapshot().Find(service); s != nil && s.State == supervisor.Up && !s.Ready {
			m.updateFromStateFile(profile)
		}
	})
}

// watchParked watches for the event that restarts a parked gateway: after a takeover the end of the other instance, otherwise a
// change of the gateway's inputs.
func (m *Manager) watchParked(service, profile, reason string) {
	// The pause keeps the restart delay for an agent that reports a takeover again and again.
	if reason == supervisor.ReasonReplaced {
		m.enqueueIn(replacerPollInterval, service, func() { m.watchReplacer(service, profile) })
		return
	}
	m.watch().WatchInputs(profile, m.recordOf(profile).inputs)
}

// updateFromStateFile reads the state file of a profile, and updates the gateway's readiness and the operator's intent. It must
// run as a job, so that old content never replaces newer content.
func (m *Manager) updateFromStateFile(profile string) {
	service := profiles.SlotName(profile)
	s := m.Registry.Snapshot().Find(service)
	if s == nil { // the profile was removed before this job, and its record must not come back
		return
	}
	m.storeHome(profile)
	state, _ := m.Store.ReadState(profile)
	m.updateRecord(profile, func(g *gatewayRecord) { g.wantedByStateFile = state.ShouldRun() })
	if s.PID != 0 && profile == profiles.Default {
		m.storeServedProfiles(s, state)
	}
	if s.State == supervisor.Up && m.Config().Agent.ReadyWhen == config.ReadyByStateFile {
		ready, readyText := m.readiness(profile, state, s)
		// The snapshot may be old, so send the event even without a change.
		m.Registry.Post(supervisor.Ready{Name: service, Run: s.Run, Ready: ready, Text: readyText})
	}
	outcome, err := m.Intents.Restore(profile, state)
	serves, _ := m.servedByDefault(profile)
	// the agent's own boot also makes a down file for such a profile
	serves = serves && !m.Registry.MayRunOwnGateway(profile)
	want, known := m.Intents.LastOrder(profile)
	if !known {
		want, known = state.Desired, state.HasDesired
	}
	if known {
		m.Registry.SetDown(profile, want != profiles.Running || serves || m.isCmdGateway(profile), false)
	}
	switch {
	case err != nil:
		m.logGateway(service, "cannot put desired_state back: %v", err)
	case outcome == profiles.Missing:
		// by then the gateway may have written the missing content
		m.enqueueIn(profiles.RestoreDelay+100*time.Millisecond, service, func() { m.updateFromStateFile(profile) })
	case outcome == profiles.Restored:
		m.logGateway(service, "desired_state was lost in a rewrite of gateway_state.json and is back")
	}
}

// readinessAdviceDelay is how long a gateway must be up and not ready before the status shows readinessAdvice. It is just shorter
// than the 30 s that a client waits.
const readinessAdviceDelay = 29 * time.Second

// readinessAdvice is advice for an agent that does not report its state in the file that hinit reads.
const readinessAdvice = "; for an agent that never writes it there, set agent.ready to up in hinit.yaml"

// readiness reports whether a gateway is ready according to its state file. text is the reason if it is not, and otherwise a
// warning or "".
func (m *Manager) readiness(profile string, state profiles.State, s *supervisor.Service) (ready bool, text string) {
	ofRun, hint := proc.InRun(state.PID, state.StartTime, s.PID), ""
	if time.Since(s.Since) >= readinessAdviceDelay {
		hint = readinessAdvice
	}
	switch {
	case !state.Exists:
		return false, "there is no " + profiles.StateFile + " yet" + hint
	case !ofRun && !state.HasGateway: // only hinit has written to the file
		return false, profiles.StateFile + " says nothing of this run yet" + hint
	case !ofRun:
		return false, profiles.StateFile + " says nothing of this run yet"
	}
	ready = state.Gateway == "running" || state.Gateway == "degraded"
	switch {
	case ready:
	case !state.HasGateway:
		text = profiles.StateFile + " does not say in what state it is"
	default:
		text = profiles.StateFile + " says " + state.Gateway
		if state.ExitReason != "" {
			text += ": " + state.ExitReason
		}
	}
	return ready, strings.Join(slices.DeleteFunc([]string{text, m.describePlatformProblems(profile, state)}, func(s string) bool { return s == "" }), "; ")
}

// describePlatformProblems returns the problems with platforms in the state file of a running gateway. It also writes each new
// text to the container log.
func (m *Manager) describePlatformProblems(profile string, state profiles.State) string {
	text := state.PlatformTrouble()
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.gatewayOf(profile)
	if text != "" && text != g.platformProblem {
		m.logGateway(profiles.SlotName(profile), "%s", text)
	}
	g.platformProblem = text
	return text
}

const (
	// takeoverChecks is the minimum number of checks for a takeover by another instance, after an exit with code 0 that no
	// operator requested. The other instance writes its marker only after the end of the old instance. So hinit repeats the
	// check with growing pauses, during the whole restart delay, because a restart would end the other instance.
	takeoverChecks = 5
	// replacerPollInterval is the time between two checks whether the other instance is alive.
	replacerPollInterval = 2 * time.Second
)

// checkTakeover finds out whether a gateway has ended because another instance has taken over, and then corrects the cause of
// the exit. While the answer is unknown, it queues itself again. tries is the number of earlier calls for this exit.
func (m *Manager) checkTakeover(service, profile string, exit *supervisor.Exit, tries int) {
	s := m.Registry.Snapshot().Find(service)
	if s == nil || s.Run != exit.Run {
		return
	}
	if m.wasTakenOver(profile, exit) {
		m.Registry.Post(supervisor.CorrectCause{Name: service, Run: exit.Run, Cause: supervisor.CauseReplaced})
		return
	}
	if tries < takeoverChecks || s.State == supervisor.Backoff {
		wait := min(25*time.Millisecond<<min(tries, 10), replacerPollInterval)
		m.enqueueIn(wait, service, func() { m.checkTakeover(service, profile, exit, tries+1) })
	}
}

// wasTakenOver reports whether a process of the agent that hinit did not start has replaced the run that ended with this exit.
func (m *Manager) wasTakenOver(profile string, exit *supervisor.Exit) bool {
	return m.Store.WasTakenOver(profile, exit.PID, exit.At.Add(-exit.Uptime))
}

// watchReplacer restarts a gateway after the end of the instance that replaced it. It queues itself again while that instance
// lives.
func (m *Manager) watchReplacer(service, profile string) {
	s := m.Registry.Snapshot().Find(service)
	if s == nil || s.State != supervisor.Parked || s.LastExit == nil {
		return
	}
	if !m.wasTakenOver(profile, s.LastExit) {
		m.logGateway(service, "the instance that took over is gone")
		m.Registry.Post(supervisor.InputsChanged{Name: service})
		return
	}
	m.enqueueIn(replacerPollInterval, service, func() { m.watchReplacer(service, profile) })
}

// unknownInputs differs from every hash of inputs, so that any content counts as changed.
const unknownInputs profiles.InputHash = "written since the start"

// storeInputs stores the hash of the inputs at the start of a gateway. A later change restarts the gateway while it is parked.
// A change between the start and this call counts too, but only once for the same content. Otherwise a gateway that writes
// these files would restart for ever.
func (m *Manager) storeInputs(service, profile string) {
	hash, err := m.Store.InputsHash(profile)
	if err != nil {
		m.logGateway(service, "cannot watch its inputs: %v", err)
	}
	startedAt := m.recordOf(profile).startedAt
	late := err == nil && !startedAt.IsZero() && m.Store.InputsChangedSince(profile, startedAt)
	m.updateRecord(profile, func(g *gatewayRecord) {
		g.inputs = hash
		if late && g.doubtfulInputs != hash {
			g.doubtfulInputs, g.inputs = hash, unknownInputs
		}
	})
}
