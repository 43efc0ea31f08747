package probe

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"hinit/internal/config"
	"hinit/internal/notify"
)

const (
	maxExtension = 10
	// lateCheckDelay is the delay of a watchdog check above which hinit did not run itself, for example because the container was
	// paused. The service did not run in that time either, so its silence means nothing.
	lateCheckDelay = time.Second
	// noProbeInterval is the interval of a check whose result changes only with a message from the service, so that it needs no
	// timer.
	noProbeInterval = 1000 * time.Hour
)

// NotifyState contains the sd_notify(3) reports of a run of a service.
type NotifyState struct {
	Run              uint64
	Ready            bool
	Failed           bool          // the run has sent WATCHDOG=trigger
	LastMessageAt    time.Time     `reexec:"At"`     // when the last message came
	WatchdogInterval time.Duration `reexec:"Every"`  // watchdog interval of this run; 0 for none
	StartUntil       time.Time     `reexec:"Until"`  // end of the start time that the service has requested; zero without a request
	Extended         bool          `reexec:"Spared"` // the watchdog has granted one more interval, because hinit did not run
}

// runNotifyState is the NotifyState of a service's current run, with a lock. It is nil for a service whose checks need no
// messages. Any goroutine may call the methods.
type runNotifyState struct {
	mu sync.Mutex
	NotifyState

	paused bool
}

// keepNotifyState returns the state for a service with the checks of t: the state of old, the state from a re-execution, or a
// new one. It returns nil if no check of t needs messages. The caller holds p.mu.
func (p *Prober) keepNotifyState(service string, t *Target, old *target) *runNotifyState {
	handed := p.handedOver.NotifyStates[service]
	delete(p.handedOver.NotifyStates, service)
	switch {
	case !slices.ContainsFunc(t.Checks, func(c config.Check) bool { return c.Type == config.CheckNotify || c.Type == config.CheckWatchdog }):
		return nil
	case old != nil && old.notifyState != nil:
		return old.notifyState
	}
	return &runNotifyState{NotifyState: handed}
}

func (b *runNotifyState) snapshot() NotifyState {
	if b == nil {
		return NotifyState{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.NotifyState
}

// setPaused records whether an operator has paused the process. It returns true at the end of a pause, when the watchdog
// interval begins again.
func (b *runNotifyState) setPaused(paused bool, now time.Time) (over bool) {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	over = b.paused && !paused
	b.paused = paused
	if over {
		b.LastMessageAt = now
	}
	return over
}

// recordMessage records a message from a run. It returns true if the checks that depend on messages must be scheduled again. It
// ignores messages from an earlier run. An empty message means that the run has begun. every is the watchdog interval.
func (b *runNotifyState) recordMessage(run uint64, every time.Duration, m *notify.Message, now time.Time) (anew bool) {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if run < b.Run {
		return false
	}
	if run > b.Run {
		b.NotifyState, b.paused = NotifyState{Run: run, WatchdogInterval: every, LastMessageAt: now}, false
	}
	if m.Ready && !b.Ready || m.Alive {
		b.LastMessageAt, b.Extended = now, false
	}
	b.Ready, b.Failed = b.Ready || m.Ready, b.Failed || m.Failed
	if m.HasWatchdogInterval {
		b.WatchdogInterval, b.LastMessageAt = m.WatchdogInterval, now
	}
	if m.ExtendTimeout > 0 {
		b.StartUntil = now.Add(m.ExtendTimeout)
	}
	return m.Ready || m.Failed || m.HasWatchdogInterval || m.ExtendTimeout > 0
}

// extendInterval grants a run one more watchdog interval. Until the next message of the run, further calls return false.
func (b *runNotifyState) extendInterval(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Extended {
		return false
	}
	b.Extended, b.LastMessageAt = true, now
	return true
}

// HandleMessage records an sd_notify message from a run of a service, and schedules the checks that depend on it.
func (p *Prober) HandleMessage(service string, run uint64, m *notify.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.targets[service]
	if t == nil || t.notifyState == nil {
		return
	}
	now := time.Now()
	if t.notifyState.recordMessage(run, t.watchdogInterval(), m, now) {
		t.scheduleMessageChecks(now)
		p.wakeUp()
	}
}

// watchdogInterval returns the watchdog interval of the configuration, which a message can change for a run. The caller holds
// p.mu.
func (t *target) watchdogInterval() time.Duration {
	for i := range t.Checks {
		if t.Checks[i].Type == config.CheckWatchdog {
			return t.Checks[i].Period
		}
	}
	return 0
}

// scheduleMessageChecks computes when the notify and watchdog checks are due. The caller holds p.mu.
func (t *target) scheduleMessageChecks(now time.Time) {
	b := t.notifyState.snapshot()
	if b.Run == 0 || t.health.Run != b.Run || len(t.health.Checks) != len(t.Checks) {
		return
	}
	for i := range t.Checks {
		c := &t.health.Checks[i]
		switch t.Checks[i].Type {
		case config.CheckNotify:
			switch limit := c.Rule.Period; {
			case b.Ready && c.Verdict == Pending:
				c.Due = now
			case c.Verdict == Pending:
				c.Due = c.Since.Add(limit)
				if last := c.Since.Add(maxExtension * limit); b.StartUntil.After(last) {
					c.Due = last
				} else if b.StartUntil.After(c.Due) {
					c.Due = b.StartUntil
				}
			}
		case config.CheckWatchdog:
			switch {
			case b.Failed, b.Ready && c.Verdict == Pending:
				c.Due = now
			case b.Ready && b.WatchdogInterval > 0:
				c.Due = b.LastMessageAt.Add(b.WatchdogInterval)
			default:
				c.Due = now.Add(noProbeInterval)
			}
		}
	}
}

// startupCheck passes when the service has sent READY=1 (config.CheckNotify).
type startupCheck struct{ notifyState *runNotifyState }

func (s startupCheck) check(time.Time) (good bool, answer string) {
	if s.notifyState.snapshot().Ready {
		return true, "READY=1 came"
	}
	return false, "READY=1 has not come in time"
}

// watchdogCheck fails when the service has sent no WATCHDOG=1 within its interval (config.CheckWatchdog).
type watchdogCheck struct {
	notifyState  *runNotifyState
	readMessages func() // handles arrived messages that are not read
}

func (w *watchdogCheck) check(time.Time) (good bool, answer string) {
	at := time.Now()
	b := w.notifyState.snapshot()
	if b.missedWatchdog(at) {
		w.readMessages()
		b = w.notifyState.snapshot()
	}
	switch {
	case b.Failed:
		return false, "it says itself that it has failed (WATCHDOG=trigger)"
	case !b.missedWatchdog(at):
		return true, "it says that it is alive"
	case at.Sub(b.LastMessageAt) > b.WatchdogInterval+lateCheckDelay && w.notifyState.extendInterval(at):
		return true, "it has more time, because hinit did not run either"
	}
	return false, fmt.Sprintf("no WATCHDOG=1 for %s", b.WatchdogInterval)
}

// missedWatchdog reports whether the service was silent for longer than the watchdog interval of the run.
func (b *NotifyState) missedWatchdog(at time.Time) bool {
	return b.Ready && b.WatchdogInterval > 0 && at.Sub(b.LastMessageAt) >= b.WatchdogInterval
}
