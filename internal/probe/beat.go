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
	// maxExtension limits how far a service may extend its own start timeout, as a multiple of this timeout.
	maxExtension = 10
	// lateCheck is the delay of a watchdog check that shows that hinit itself did not run for a while, for example because the
	// container was paused. In that time the service did not run either.
	lateCheck = time.Second
	// noProbeInterval is the interval of checks that only a message from the service can change, so that they need no timer.
	noProbeInterval = 1000 * time.Hour
)

// NotifyState holds the state that a run of a service has reported with sd_notify(3).
type NotifyState struct {
	Run      uint64
	Ready    bool
	Failed   bool          // the run has sent WATCHDOG=trigger
	At       time.Time     // when the run last showed that it is alive (a message of sd_notify)
	Every    time.Duration // watchdog interval of the run; 0 for none
	Until    time.Time     // end of the time that the service has asked for to finish its start; zero if it has not asked
	Extended bool          `reexec:"Spared"` // the watchdog has granted one extra interval, because hinit did not run
}

// runNotifyState holds the NotifyState of a service's current run. A nil value belongs to a service whose checks need no
// messages. The methods may be called from any goroutine.
type runNotifyState struct {
	mu sync.Mutex // held only briefly, never while a goroutine waits for anything
	NotifyState

	paused bool
}

// keepNotifyState returns the state for a service whose checks are replaced by the checks in t. It keeps the state of old if it
// exists. Otherwise it makes a new one, with the state that a re-execution has handed over. It returns nil if no check in t needs
// messages. The caller holds p.mu.
func (p *Prober) keepNotifyState(service string, t *Target, old *target) *runNotifyState {
	handed := p.handedOver.Beats[service]
	delete(p.handedOver.Beats, service)
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

// beginRun records that a run has begun, unless a message of this run has already arrived. every is the watchdog interval.
func (b *runNotifyState) beginRun(run uint64, every time.Duration, now time.Time) {
	if b != nil {
		b.recordMessage(run, every, &notify.Message{}, now)
	}
}

// setPaused records whether an operator has paused the process. The result over reports that a pause has just ended; then the
// watchdog interval begins again.
func (b *runNotifyState) setPaused(paused bool, now time.Time) (over bool) {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	over = b.paused && !paused
	if b.paused = paused; over {
		b.At = now
	}
	return over
}

// recordMessage records a message from a run. The result anew reports whether the times of the checks must be computed again.
// Messages from an earlier run are ignored.
func (b *runNotifyState) recordMessage(run uint64, every time.Duration, m *notify.Message, now time.Time) (anew bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if run < b.Run {
		return false
	}
	if run > b.Run {
		b.NotifyState, b.paused = NotifyState{Run: run, Every: every, At: now}, false
	}
	if m.Ready && !b.Ready || m.Alive {
		b.At, b.Extended = now, false
	}
	b.Ready, b.Failed = b.Ready || m.Ready, b.Failed || m.Failed
	if m.HasEvery {
		b.Every, b.At = m.Every, now
	}
	if m.Extend > 0 {
		b.Until = now.Add(m.Extend)
	}
	return m.Ready || m.Failed || m.HasEvery || m.Extend > 0
}

// extendInterval grants a run one more watchdog interval. It returns false if it has already done so since the run's last sign
// of life.
func (b *runNotifyState) extendInterval(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Extended {
		return false
	}
	b.Extended, b.At = true, now
	return true
}

// HandleMessage handles an sd_notify message from a run of a service.
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

// watchdogInterval returns the configured watchdog interval with which each run begins. The caller holds p.mu.
func (t *target) watchdogInterval() time.Duration {
	for i := range t.Checks {
		if t.Checks[i].Type == config.CheckWatchdog {
			return t.Checks[i].Period
		}
	}
	return 0
}

// scheduleMessageChecks computes when the checks that depend on messages are due. The caller holds p.mu.
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
				if last := c.Since.Add(maxExtension * limit); b.Until.After(last) {
					c.Due = last
				} else if b.Until.After(c.Due) {
					c.Due = b.Until
				}
			}
		case config.CheckWatchdog:
			switch {
			case b.Failed, b.Ready && c.Verdict == Pending:
				c.Due = now
			case b.Ready && b.Every > 0:
				c.Due = b.At.Add(b.Every)
			default:
				c.Due = now.Add(noProbeInterval)
			}
		}
	}
}

// startupCheck checks whether the service has sent READY=1 (config.CheckNotify).
type startupCheck struct{ beats *runNotifyState }

func (s startupCheck) check(time.Time) (good bool, answer string) {
	if s.beats.snapshot().Ready {
		return true, "READY=1 came"
	}
	return false, "READY=1 has not come in time"
}

// watchdogCheck checks whether the service has sent WATCHDOG=1 in time.
type watchdogCheck struct {
	beats        *runNotifyState
	readMessages func() // handles the messages that have arrived but were not read yet
}

func (w *watchdogCheck) check(time.Time) (good bool, answer string) {
	at := time.Now()
	b := w.beats.snapshot()
	if b.missedWatchdog(at) {
		w.readMessages()
		b = w.beats.snapshot()
	}
	switch {
	case b.Failed:
		return false, "it says itself that it has failed (WATCHDOG=trigger)"
	case !b.missedWatchdog(at):
		return true, "it says that it is alive"
	case at.Sub(b.At) > b.Every+lateCheck && w.beats.extendInterval(at):
		return true, "it has more time, because hinit did not run either"
	}
	return false, fmt.Sprintf("no WATCHDOG=1 for %s", b.Every)
}

// missedWatchdog reports whether the watchdog interval of the run has passed without a sign of life.
func (b *NotifyState) missedWatchdog(at time.Time) bool {
	return b.Ready && b.Every > 0 && at.Sub(b.At) >= b.Every
}
