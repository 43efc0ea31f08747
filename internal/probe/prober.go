package probe

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// maxRunningChecks limits the checks that run at the same time. Further checks wait, and give no result meanwhile.
	maxRunningChecks = 64
	// timerSlot is the resolution of the timer: checks that are due within one timerSlot start together.
	timerSlot = 25 * time.Millisecond
)

// Options are the functions and channels that a Prober uses. All functions may be called from any goroutine.
type Options struct {
	Snapshot func() *supervisor.Snapshot
	News     func() <-chan struct{} // closed when the snapshot changes
	Ended    <-chan struct{}        // closed after the end of the supervisor
	Post     func(supervisor.Event)
	// Env returns the variables in the .env of a profile, or of the home for "". It may wait for a disk.
	Env func(profile string) (map[string]string, error)
	// State reads the state file of a profile's gateway. It may wait for a disk.
	State func(profile string) (profiles.State, error)
	// Watch registers a function that gets the lines of a service. Nil removes it.
	Watch func(service string, seen func(lines []byte))
	// ReadMessages handles the unread messages of a service, so that they count when ReadMessages returns.
	ReadMessages func(service string)
	// Deafness reports whether a gateway is deaf, like [DeafWatch.Deafness].
	Deafness func(service string) (Deafness, bool)
	// Run executes a command, and returns its exit code and its last line. When ctx ends, Run kills all processes of the command.
	Run func(ctx context.Context, name string, spec proc.Spec) (code int, last string, err error)
}

// Target is a service with its checks.
type Target struct {
	Checks  []config.Check
	Profile string
	Expand  func(string) string // replaces all placeholders except variables
	Env     map[string]string   // variables from the configuration
	// AgentDecides says that the service runs as the user who writes the profile's .env. Only then may its checks use this file.
	AgentDecides bool
	Actor        *fsutil.Actor // identity of the service's user; each operation takes a turn of the data volume
	Spec         proc.Spec     // how the supervisor starts the service
}

// Prober runs the checks of all services. Its methods may be called from any goroutine and don't block.
type Prober struct {
	options Options
	compile func(config.Check, *target) (checker, error)
	wake    chan struct{} // wakes the scheduler
	wakes   atomic.Uint64 // number of wake-ups by the timer

	mu              sync.Mutex // never held while a check runs
	targets         map[string]*target
	handedOver      map[string]Health // from the old program, until Set is called for the service
	handedOverBeats map[string]Beat   // the same for beats
	running         bool
	runningChecks   int // number of running checks
	allBusy         bool
	timerAt         time.Time // when the timer fires; zero if it doesn't
	origin          time.Time // start of the timer's first slot
	outbox          []supervisor.Event
}

// checker is one check that is ready to run. check must return by the deadline.
type checker interface {
	check(deadline time.Time) (good bool, answer string)
}

// target is a service with the state of its checks.
type target struct {
	Target

	name       string
	options    *Options
	beats      *beats      // messages of the service's runs; nil if no check uses them
	logMatches []*logMatch // the matches of its log checks; nil for other checks
	rules      []config.Check
	health     Health
	ended      time.Time // end of the previous run; lines of this run may come before the supervisor reports it as up
	began      time.Time // beginning of this run; after re-execution, the time at which the new program first saw it
	live       bool      // the run is up and not paused
	checkers   []checker // the checks, made anew for each run; nil until then
	making     bool
	busy       []bool
	version    int // changes when the results of running checks become invalid
	reported   readinessReport
	check      int // index of the check in preparation
}

// readinessReport is the last report to the supervisor about a run.
type readinessReport struct {
	run   uint64
	ready bool
	said  string
}

// New returns a prober without checks, which does nothing.
func New(o Options) *Prober {
	p := &Prober{options: o, wake: make(chan struct{}, 1), targets: make(map[string]*target), origin: time.Now()}
	p.compile = prepareCheck
	return p
}

// Set replaces the checks of a service. A current run keeps the state of its checks as far as possible.
func (p *Prober) Set(service string, t Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.targets[service]
	handed, was := p.handedOver[service]
	delete(p.handedOver, service)
	if len(t.Checks) == 0 {
		delete(p.targets, service)
		if old != nil {
			p.searchLines(nil, old)
		}
		p.wakeUp()
		return
	}
	next := &target{Target: t, name: service, options: &p.options, beats: p.keepBeats(service, &t, old), logMatches: logMatchesOf(t.Checks), rules: t.Checks, busy: make([]bool, len(t.Checks))}
	switch {
	case old != nil:
		next.health, next.reported, next.version, next.began = old.health, old.reported, old.version+1, old.began
		next.ended = old.ended
		next.health.Follow(next.rules, time.Now())
		if !Gates(next.rules) || !Gates(old.rules) { // the supervisor has forgotten the last report
			next.reported = readinessReport{}
		}
	case was:
		next.health = handed
		next.health.Follow(next.rules, time.Now())
	}
	next.scheduleMessageChecks(time.Now())
	p.targets[service] = next
	p.searchLines(next, old)
	if !p.running {
		p.running = true
		guard.Go("scheduling the checks", p.run)
	}
	p.wakeUp()
}

// Drop removes the checks of a service.
func (p *Prober) Drop(service string) { p.Set(service, Target{}) }

func (p *Prober) wakeUp() {
	pause.Wake(p.wake)
}

// run is the scheduler. It ends when no check is left.
func (p *Prober) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		news := p.options.News()
		p.mu.Lock()
		if len(p.targets) == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		now := time.Now()
		p.updateTargets(p.options.Snapshot(), now)
		p.startDue(now)
		next, some := p.nextWake()
		p.timerAt = time.Time{}
		if some {
			p.timerAt = next
			timer.Reset(max(next.Sub(now), 0))
		} else {
			timer.Stop()
		}
		events := p.outbox
		p.outbox = nil
		p.mu.Unlock()
		for _, e := range events {
			p.options.Post(e)
		}
		select {
		case <-news:
		case <-p.wake:
		case <-timer.C:
			p.wakes.Add(1)
		case <-p.options.Ended:
			return
		}
	}
}

// updateTargets updates the targets from a snapshot of the supervisor. The caller holds p.mu.
func (p *Prober) updateTargets(snapshot *supervisor.Snapshot, now time.Time) {
	for _, t := range p.targets {
		t.live = false
	}
	for _, v := range snapshot.Services {
		t := p.targets[v.Name]
		if t == nil || v.State != supervisor.Up {
			continue
		}
		if t.health.Run != v.Run {
			paused := t.health.Paused
			t.health, t.began = Begin(t.rules, v.Run, v.Since), v.Since
			t.health.Paused = paused
			t.ended = time.Time{}
			if v.LastExit != nil {
				t.ended = v.LastExit.At
			}
			t.beats.beginRun(v.Run, t.watchdogInterval(), now)
			t.checkers, t.busy = nil, make([]bool, len(t.rules))
			t.version++
			t.scheduleMessageChecks(now)
		}
		if t.began.IsZero() {
			t.began = now
		}
		if t.reported.run != v.Run {
			t.reported = readinessReport{run: v.Run, ready: !Gates(t.rules)}
			p.reportReadiness(t)
		}
		if t.beats.setPaused(v.Paused, now) {
			t.scheduleMessageChecks(now)
		}
		if !t.health.Paused.After(now) {
			t.health.Paused = time.Time{}
		}
		t.live = !v.Paused && t.health.Paused.IsZero()
	}
}

// nextWake returns when the scheduler must run again: at the end of the slot in which the next check is due. some is false if
// only an event makes the scheduler run. The caller holds p.mu.
func (p *Prober) nextWake() (at time.Time, some bool) {
	if p.allBusy { // all slots are in use: the end of a check wakes the scheduler
		return at, false
	}
	for _, t := range p.targets {
		if until := t.health.Paused; !until.IsZero() && (!some || until.Before(at)) {
			at, some = until, true
		}
		if !t.live || t.making {
			continue
		}
		if due, ok := t.health.Next(t.isBusy); ok && (!some || due.Before(at)) {
			at, some = due, true
		}
	}
	if some {
		after := at.Sub(p.origin)
		at = p.origin.Add((after + timerSlot - 1).Truncate(timerSlot))
	}
	return at, some
}

func (t *target) isBusy(i int) bool { return t.busy[i] }

// startDue starts every check that is due. The caller holds p.mu.
func (p *Prober) startDue(now time.Time) {
	p.allBusy = false
	for _, t := range p.targets {
		if !t.live || t.making {
			continue
		}
		for i := range t.health.Checks {
			if t.busy[i] || t.health.Held(i) || t.health.Checks[i].Due.After(now) {
				continue
			}
			if p.runningChecks >= maxRunningChecks {
				p.allBusy = true
				return
			}
			if t.checkers == nil && !p.prepareChecks(t) {
				break
			}
			if t.health.Held(i) { // the check must not run now
				continue
			}
			p.startCheck(t, i, now)
		}
	}
}

// startCheck starts one check. The caller holds p.mu.
func (p *Prober) startCheck(t *target, i int, now time.Time) {
	l, version, timeout := t.checkers[i], t.version, t.rules[i].Timeout
	t.health.NoteStart(i, now, rand.Float64())
	t.busy[i] = true
	p.runningChecks++
	guard.Go("asking a check", func() {
		good, answer := l.check(time.Now().Add(timeout))
		p.recordResult(t, version, i, good, answer)
	})
}

// maxAnswer limits the text of a result, in bytes.
const maxAnswer = 200

// recordResult handles the result of a check.
func (p *Prober) recordResult(t *target, version, i int, good bool, answer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runningChecks--
	if p.allBusy {
		p.wakeUp()
	}
	if p.targets[t.name] != t || t.version != version {
		return
	}
	t.busy[i] = false
	now := time.Now()
	if t.live {
		changed, act := t.health.Record(i, now, good, answer[:min(len(answer), maxAnswer)])
		if changed {
			p.reportVerdict(t, i, act)
		}
		t.scheduleMessageChecks(now)
		p.reportReadiness(t)
	}
	if due, ok := t.health.Next(t.isBusy); ok && (p.timerAt.IsZero() || due.Before(p.timerAt)) || len(p.outbox) > 0 {
		p.wakeUp()
	}
}

// reportVerdict reports a new verdict, and executes the resulting action. The caller holds p.mu.
func (p *Prober) reportVerdict(t *target, i int, act string) {
	c := &t.health.Checks[i]
	text := Remark + c.Rule.Name + " " + remarkWords[c.Verdict]
	if c.Verdict == Failing {
		text += ": " + c.Answer
	}
	p.post(supervisor.Remark{Service: t.name, Text: text})
	answer := Remark + c.Rule.Name + ": " + c.Answer
	switch act {
	case config.OnRestart, config.OnPark:
		p.post(supervisor.Unhealthy{Name: t.name, Run: t.health.Run, Answer: answer, Park: act == config.OnPark})
	case config.OnShutdown:
		p.post(supervisor.Shutdown{Code: exitUnhealthy, Reason: t.name + " is " + supervisor.ReasonUnhealthy + ": " + answer})
	}
}

// Remark begins every remark about a check in the event history.
const Remark = "check "

// exitUnhealthy is the exit code of a container that ends because of a failed check.
const exitUnhealthy = 1

// reportReadiness reports the readiness of a run to the supervisor, if it has changed. The caller holds p.mu.
func (p *Prober) reportReadiness(t *target) {
	now := readinessReport{run: t.health.Run}
	now.ready, now.said = t.health.Ready()
	if now != t.reported {
		t.reported = now
		p.post(supervisor.Checked{Name: t.name, Run: now.run, Ready: now.ready, Text: now.said})
	}
}

// post queues an event, which the scheduler sends to the supervisor, so that events keep their order. The caller holds p.mu.
func (p *Prober) post(e supervisor.Event) {
	p.outbox = append(p.outbox, e)
	p.wakeUp()
}

// Health returns a copy of the state of a service's checks, and their types. ok is false for a service without checks.
func (p *Prober) Health(service string) (h Health, types []string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.targets[service]
	if t == nil {
		return h, nil, false
	}
	h = t.health
	if h.Checks == nil { // the service has not run yet
		h = Begin(t.rules, 0, time.Time{})
	}
	h.Checks = append([]Progress(nil), h.Checks...)
	for _, c := range t.Checks {
		types = append(types, c.Type)
	}
	return h, types, true
}

// PauseUntil pauses the checks of a service until a time. A zero time ends the pause and runs the checks now. The result is false
// for a service without checks.
func (p *Prober) PauseUntil(service string, paused time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.targets[service]
	if t == nil {
		return false
	}
	t.health.Paused = paused
	for i := range t.health.Checks {
		if paused.IsZero() {
			t.health.Checks[i].Due = time.Now()
		}
	}
	p.wakeUp()
	return true
}

// Handover is the state that a prober passes on when PID 1 executes itself again.
type Handover struct {
	Services map[string]Health
	Beats    map[string]Beat // messages of the services whose checks use them
}

// HandOver returns the state of all checks.
func (p *Prober) HandOver() *Handover {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.targets) == 0 {
		return nil
	}
	h := &Handover{Services: make(map[string]Health, len(p.targets)), Beats: make(map[string]Beat)}
	for name, t := range p.targets {
		if b := t.beats.snapshot(); b.Run != 0 {
			h.Beats[name] = b
		}
		own := t.health
		own.Checks = append([]Progress(nil), own.Checks...)
		h.Services[name] = own
	}
	return h
}

// TakeOver gives a new prober the state of an old one; nil means a prober without checks. Call it before Set.
func (p *Prober) TakeOver(h *Handover) {
	if h == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handedOver, p.handedOverBeats = h.Services, h.Beats
}
