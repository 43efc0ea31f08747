package supervisor

import (
	"slices"
	"strconv"
	"time"
)

// This file shuts down the container: it ends the services, then all other processes.

// lifePhase is the stage of the container's life: running, then three phases of a shutdown.
type lifePhase int

const (
	phaseRunning  lifePhase = iota
	phaseStopping           // every service is being stopped
	phaseSweeping           // no service is alive; hinit ends all other processes
	phaseFinished
)

func (m *Machine) handleShutdown(now time.Time, e Shutdown) {
	if m.phase != phaseRunning {
		m.killAtOnce(now)
		return
	}
	m.exitCode = e.Code
	m.beginShutdown(now, e.Reason)
}

func (m *Machine) beginShutdown(now time.Time, reason string) {
	m.phase = phaseStopping
	m.killAt = now.Add(m.ShutdownBudget - min(m.ShutdownBudget/10, leftoverGrace))
	m.forcedEnd = now.Add(m.ShutdownBudget)
	m.emit(AppendRecord{Record{At: now, Reason: "stopping the container: " + reason}})
	heights, top := m.dependantHeights()
	for _, s := range m.inOrder {
		m.saveForUndo(s)
		s.restartAfterRun = false
		switch s.state {
		case Up:
			height := heights[s]
			if !s.policy.DrainsInput && height == 0 {
				m.requestEnd(now, s, ReasonShutdown)
				continue
			}
			m.recordCause(s)
			s.deadline = m.killAt
			if !s.policy.DrainsInput {
				s.deadline = now.Add(m.killAt.Sub(now) * time.Duration(height) / time.Duration(top+1))
			}
			m.markChanged(s)
		case Stopping, Finishing:
			s.deadline = m.withinBudget(s, s.deadline)
		case Waiting, Backoff, Parked, Failed:
			m.setState(now, s, Down, time.Time{}, ReasonShutdown)
		case Down:
			m.emit(CloseOutput{s.name})
		case Starting, Killing:
		}
	}
}

// startDraining tells the remaining services, all with Policy.DrainsInput, to end. They get the signal Policy.DrainSignal, and
// maxDrainTime to read the rest of their input.
func (m *Machine) startDraining(now time.Time) {
	for _, s := range m.inOrder {
		if end := now.Add(maxDrainTime); s.policy.DrainsInput && s.state == Up && end.Before(s.deadline) {
			m.saveForUndo(s)
			s.deadline = end
			if sig := s.policy.DrainSignal; sig != 0 {
				m.emit(Signal{s.name, s.number, sig, ScopeMain, false})
			}
		}
	}
}

// killAtOnce handles a second Shutdown: it sends SIGKILL to every service.
func (m *Machine) killAtOnce(now time.Time) {
	m.emit(AppendRecord{Record{At: now, Reason: "asked again to stop: killing what is left"}})
	for _, s := range m.inOrder {
		if s.hasProcess() {
			m.saveForUndo(s)
			m.kill(now, s, "asked again to stop")
		}
	}
	m.killAt = now
}

// advanceShutdown begins or continues a shutdown. Step calls it after each event. The phases are: the services end, all other
// processes end, finished.
func (m *Machine) advanceShutdown(now time.Time) {
	if m.phase == phaseRunning && m.cmdExitCode != nil {
		m.beginShutdown(now, "the CMD has ended with code "+strconv.Itoa(*m.cmdExitCode))
	}
	if m.phase == phaseStopping {
		m.endUnneeded(now)
		alive, writing := false, false
		for _, s := range slices.Backward(m.inOrder) {
			if s.isActive() {
				alive, writing = true, !s.policy.DrainsInput
			}
			if writing {
				break
			}
		}
		if alive && !writing {
			m.startDraining(now)
		}
		switch {
		case !alive:
			m.phase = phaseSweeping
			m.emit(SignalDescendants{sigTerm})
			if rest := now.Add(leftoverGrace); rest.Before(m.killAt) {
				m.killAt = rest
			}
		case !now.Before(m.forcedEnd):
			m.abandonProcesses(now)
		}
	}
	if m.phase == phaseSweeping {
		switch {
		case m.killSent && !now.Before(m.killAt), !now.Before(m.forcedEnd):
			m.abandonProcesses(now)
		case !now.Before(m.killAt):
			m.killSent = true
			m.emit(SignalDescendants{sigKill})
			m.killAt = now.Add(leftoverGrace)
		}
	}
}

// abandonProcesses ends a shutdown although processes are alive. It sends them SIGKILL, because a delayed loop may have sent
// none.
func (m *Machine) abandonProcesses(now time.Time) {
	m.emit(SignalDescendants{sigKill})
	m.concludeShutdown(now, "some processes did not end")
}

func (m *Machine) concludeShutdown(now time.Time, reason string) {
	m.phase = phaseFinished
	code := m.exitCode
	if m.cmdExitCode != nil {
		code = *m.cmdExitCode
	}
	m.emit(AppendRecord{Record{At: now, Reason: reason + ", exit code " + strconv.Itoa(code)}})
	m.emit(EndLoop{code})
}
