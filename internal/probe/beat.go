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
	// mostExtended bounds how far a service puts off the end of its start: so many times the limit.
	mostExtended = 10
	// late is the delay of a look that shows that this process did not run, as in a paused container. Then the service did not run
	// either.
	late = time.Second
	// never is the delay until the next look at a check that only a message of the service can change.
	never = 1000 * time.Hour
)

// Beat is what a run has said of itself by sd_notify(3).
type Beat struct {
	Run    uint64
	Ready  bool
	Failed bool          // WATCHDOG=trigger
	At     time.Time     // when it was alive last
	Every  time.Duration // how often it has to say so; 0 for never
	Until  time.Time     // when its start is over at the latest, by its own word; zero for none
	Spared bool          // it was given more time, because this process did not run either
}

// beats is the Beat of a service's current run, nil for a service that says nothing. Its methods may be called from any goroutine.
type beats struct {
	mu sync.Mutex // never held while anything waits
	Beat

	paused bool
}

// beatsOf returns the beats of a service whose checks are set. p.mu is held.
func (p *Prober) beatsOf(service string, t *Target, old *target) *beats {
	handed := p.takenBeats[service]
	delete(p.takenBeats, service)
	switch {
	case !slices.ContainsFunc(t.Checks, func(c config.Check) bool { return c.Type == config.CheckNotify || c.Type == config.CheckWatchdog }):
		return nil
	case old != nil && old.beats != nil:
		return old.beats
	}
	return &beats{Beat: handed}
}

func (b *beats) now() Beat {
	if b == nil {
		return Beat{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Beat
}

// begin notes that a run has begun, unless it has said something before.
func (b *beats) begin(run uint64, every time.Duration, now time.Time) {
	if b != nil {
		b.take(run, every, &notify.Message{}, now)
	}
}

// hold notes whether the process is stopped by an operator. It reports whether that is over: then its time begins anew.
func (b *beats) hold(paused bool, now time.Time) (over bool) {
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

// take records a message of a run, and reports whether the time of its next look has changed. Messages of an earlier run are
// ignored.
func (b *beats) take(run uint64, every time.Duration, m *notify.Message, now time.Time) (anew bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if run < b.Run {
		return false
	}
	if run > b.Run {
		b.Beat, b.paused = Beat{Run: run, Every: every, At: now}, false
	}
	if m.Ready && !b.Ready || m.Alive {
		b.At, b.Spared = now, false
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

// spare gives a run its time once more, if it wasn't given that since it was alive last.
func (b *beats) spare(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Spared {
		return false
	}
	b.Spared, b.At = true, now
	return true
}

// Told takes what a run of a service says of itself.
func (p *Prober) Told(service string, run uint64, m *notify.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.targets[service]
	if t == nil || t.beats == nil {
		return
	}
	now := time.Now()
	if t.beats.take(run, t.interval(), m, now) {
		t.schedule(now)
		p.poke()
	}
}

// interval is how often a run that begins now has to say that it is alive. p.mu is held.
func (t *target) interval() time.Duration {
	for i := range t.Checks {
		if t.Checks[i].Type == config.CheckWatchdog {
			return t.Checks[i].Period
		}
	}
	return 0
}

// schedule settles when the checks are due that go by what the service says. p.mu is held.
func (t *target) schedule(now time.Time) {
	b := t.beats.now()
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
				if last := c.Since.Add(mostExtended * limit); b.Until.After(last) {
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
				c.Due = now.Add(never)
			}
		}
	}
}

// startLook asks whether the service has said that it is ready.
type startLook struct{ beats *beats }

func (s startLook) look(time.Time) (good bool, answer string) {
	if s.beats.now().Ready {
		return true, "READY=1 came"
	}
	return false, "READY=1 has not come in time"
}

// watchdogLook asks whether the service has said in time that it is alive.
type watchdogLook struct {
	beats *beats
	hear  func() // takes what is still on its way
}

func (w *watchdogLook) look(time.Time) (good bool, answer string) {
	at := time.Now()
	b := w.beats.now()
	if b.silent(at) {
		w.hear()
		b = w.beats.now()
	}
	switch {
	case b.Failed:
		return false, "it says itself that it has failed (WATCHDOG=trigger)"
	case !b.silent(at):
		return true, "it says that it is alive"
	case at.Sub(b.At) > b.Every+late && w.beats.spare(at):
		return true, "it has more time, because hinit did not run either"
	}
	return false, fmt.Sprintf("no WATCHDOG=1 for %s", b.Every)
}

// silent reports whether a run should have said something by a time.
func (b *Beat) silent(at time.Time) bool {
	return b.Ready && b.Every > 0 && at.Sub(b.At) >= b.Every
}
