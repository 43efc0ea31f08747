package probe

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/notify"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// maxRunningChecks is how many checks may run at the same time. Other checks wait.
	maxRunningChecks = 64
	// timerSlot is the resolution of the timer. Checks that are due within one slot start together, so that hinit wakes up less
	// often.
	timerSlot = 25 * time.Millisecond
	// maxTimerSlot is the longest slot. The slot of a passing check is a tenth of its period, but at most maxTimerSlot.
	maxTimerSlot = 250 * time.Millisecond
)

// Options connect a Prober with other parts of hinit. Any goroutine may call the functions.
type Options struct {
	Snapshot        func() *supervisor.Snapshot
	SnapshotChanged func() <-chan struct{} // returns a channel that is closed when the snapshot changes
	SupervisorEnded <-chan struct{}        // closed when the supervisor has ended
	Post            func(supervisor.Event)
	// Env returns the variables of the .env of a profile, or of the data directory for the profile "". It may wait for a disk.
	Env func(profile string) (map[string]string, error)
	// State reads the state file of a profile's gateway. It may wait for a disk.
	State func(profile string) (profiles.State, error)
	// WatchLog makes the log of a service pass all further lines to seen. A nil seen ends that.
	WatchLog func(service string, seen func(lines []byte))
	// ReadMessages handles all arrived sd_notify messages from a service.
	ReadMessages func(service string)
	// Deafness reports whether a gateway is deaf, like [DeafWatch.Deafness].
	Deafness func(service string) (Deafness, bool)
	// Run executes a command, and returns its exit code and its last line of output. If ctx ends first, Run kills all processes
	// of the command.
	Run func(ctx context.Context, name string, spec proc.Spec) (code int, last string, err error)
}

// Target is a service with its checks, for SetChecks.
type Target struct {
	Checks  []config.Check
	Profile string
	Expand  func(string) string // replaces all placeholders of a text except variables
	Env     map[string]string   // environment variables from hinit.yaml
	// MayUseAgentEnv means that the service runs as the user who can write the profile's .env. Only then may its checks use
	// variables of that file.
	MayUseAgentEnv bool
	Actor          *fsutil.Actor // accesses files as the service's user; each access takes a turn of blocking.Volume
	Spec           proc.Spec     // how the supervisor starts the service
}

// Prober runs the checks of all services. Its methods don't block, and any goroutine may call them.
type Prober struct {
	options    Options
	newChecker func(config.Check, *target) (checker, error) // makes a checker; tests replace it
	wake       chan struct{}
	wakes      atomic.Uint64 // number of times that the timer has woken the scheduler

	mu            sync.Mutex // no goroutine holds mu while it runs a check
	targets       map[string]*target
	handedOver    Handover // state from the old program, of services without a call of SetChecks so far
	running       bool
	runningChecks int
	quickChecks   []func() // started checks, for runQuickChecks
	allBusy       bool
	timerAt       time.Time // when the timer fires; zero if it is not set
	slotOrigin    time.Time // start of the first slot of the timer
	pendingEvents []supervisor.Event
}

// checker is one check of one run. Its method check must return by the deadline.
type checker interface {
	check(deadline time.Time) (good bool, answer string)
}

// target is a service, with the state of its checks.
type target struct {
	Target

	name           string
	options        *Options
	notifyState    *runNotifyState   // messages of the current run; nil if no check needs them
	logMatches     map[int]*logMatch // searches of the log checks, by the index of the check
	rules          []config.Check
	health         Health
	previousRunEnd time.Time // end of the previous run. Lines of the present run can arrive before the supervisor reports it as up.
	runStart       time.Time
	active         bool      // the run is up and not paused
	checkers       []checker // checkers of the current run, one for each check; nil until they are made
	makingCheckers bool
	busy           []bool
	version        int // a change makes the results of running checks invalid
	lastReport     readinessReport
	checkIndex     int // index of the check that makeChecker is making
}

// readinessReport is the last readiness of a run that the supervisor knows.
type readinessReport struct {
	run      uint64
	ready    bool
	lastText string
}

// New returns a Prober without checks. Its goroutine starts with the first SetChecks.
func New(o Options) *Prober {
	p := &Prober{options: o, wake: make(chan struct{}, 1), targets: make(map[string]*target), slotOrigin: time.Now()}
	p.newChecker = makeChecker
	return p
}

// SetChecks replaces the checks of a service. During a run, an unchanged check keeps its state.
func (p *Prober) SetChecks(service string, t Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.targets[service]
	handed, was := p.handedOver.Services[service]
	delete(p.handedOver.Services, service)
	if len(t.Checks) == 0 {
		delete(p.targets, service)
		if old != nil {
			p.searchLines(nil, old)
		}
		p.wakeUp()
		return
	}
	next := &target{Target: t, name: service, options: &p.options, notifyState: p.keepNotifyState(service, &t, old), logMatches: logMatchesOf(t.Checks), rules: t.Checks, busy: make([]bool, len(t.Checks))}
	switch {
	case old != nil:
		next.health, next.lastReport, next.version, next.runStart = old.health, old.lastReport, old.version+1, old.runStart
		next.previousRunEnd = old.previousRunEnd
		next.health.ReplaceRules(next.rules, time.Now())
		if !AffectsReadiness(next.rules) || !AffectsReadiness(old.rules) { // the supervisor has dropped the last report
			next.lastReport = readinessReport{}
		}
	case was:
		next.health = handed
		next.health.ReplaceRules(next.rules, time.Now())
		next.health.RepeatAction()
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

// RemoveChecks removes the checks of a service.
func (p *Prober) RemoveChecks(service string) { p.SetChecks(service, Target{}) }

func (p *Prober) wakeUp() { pause.Wake(p.wake) }

// run is the scheduler, the Prober's goroutine. It ends with the last service that has checks.
func (p *Prober) run() {
	for {
		changed := p.options.SnapshotChanged()
		p.mu.Lock()
		if len(p.targets) == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		now := time.Now()
		p.updateTargets(p.options.Snapshot(), now)
		p.startDueChecks(now)
		p.runQuickChecks()
		next, some := p.nextWake()
		p.timerAt = time.Time{}
		var due <-chan time.Time
		if some {
			p.timerAt, due = next, time.After(time.Until(next))
		}
		events := p.pendingEvents
		p.pendingEvents = nil
		p.mu.Unlock()
		for _, e := range events {
			p.options.Post(e)
		}
		select {
		case <-changed:
		case <-p.wake:
		case <-due:
			p.wakes.Add(1)
		case <-p.options.SupervisorEnded:
			return
		}
	}
}

// updateTargets compares the services with a snapshot, and records new runs and pauses. The caller holds p.mu.
func (p *Prober) updateTargets(snapshot *supervisor.Snapshot, now time.Time) {
	for _, t := range p.targets {
		t.active = false
	}
	for _, v := range snapshot.Services {
		t := p.targets[v.Name]
		if t == nil || v.State != supervisor.Up {
			continue
		}
		if t.health.Run != v.Run {
			paused := t.health.Paused
			t.health, t.runStart = NewHealth(t.rules, v.Run, v.Since), v.Since
			t.health.Paused = paused
			t.previousRunEnd = time.Time{}
			if v.LastExit != nil {
				t.previousRunEnd = v.LastExit.At
			}
			t.notifyState.recordMessage(v.Run, t.watchdogInterval(), &notify.Message{}, now)
			t.checkers, t.busy = nil, make([]bool, len(t.rules))
			t.version++
			t.scheduleMessageChecks(now)
		}
		if t.runStart.IsZero() {
			t.runStart = now
		}
		if t.lastReport.run != v.Run {
			t.lastReport = readinessReport{run: v.Run, ready: !AffectsReadiness(t.rules)}
			p.reportReadiness(t)
		}
		if t.notifyState.setPaused(v.Paused, now) {
			t.scheduleMessageChecks(now)
		}
		if !t.health.Paused.After(now) {
			t.health.Paused = time.Time{}
		}
		t.active = !v.Paused && t.health.Paused.IsZero()
	}
}

func (p *Prober) nextWake() (at time.Time, some bool) {
	if p.allBusy { // the end of a running check wakes the scheduler
		return at, false
	}
	for _, t := range p.targets {
		if until := t.health.Paused; !until.IsZero() && (!some || until.Before(at)) {
			at, some = until, true
		}
		if !t.active || t.makingCheckers {
			continue
		}
		if due, ok := t.health.NextDue(t.isBusy); ok && (!some || due.Before(at)) {
			at, some = due, true
		}
	}
	if some {
		at = p.endOfSlot(at, timerSlot)
	}
	return at, some
}

// endOfSlot returns the end of the slot at a time. Slots are counted from p.origin.
func (p *Prober) endOfSlot(at time.Time, slot time.Duration) time.Time {
	return p.slotOrigin.Add((at.Sub(p.slotOrigin) + slot - 1).Truncate(slot))
}

func (t *target) isBusy(i int) bool { return t.busy[i] }

// startDueChecks starts every check that is due, while fewer than maxRunningChecks run. The caller holds p.mu.
func (p *Prober) startDueChecks(now time.Time) {
	p.allBusy = false
	for _, t := range p.targets {
		if !t.active || t.makingCheckers {
			continue
		}
		for i := range t.health.Checks {
			if t.busy[i] || t.health.IsOnHold(i) || t.health.Checks[i].Due.After(now) {
				continue
			}
			if p.runningChecks >= maxRunningChecks {
				p.allBusy = true
				return
			}
			if t.checkers == nil && !p.prepareChecks(t) {
				break
			}
			if t.health.IsOnHold(i) { // the preparation of the run has skipped this check
				continue
			}
			p.startCheck(t, i, now)
		}
	}
}

// maxAnswer is the maximum length in bytes of the answer of a check.
const maxAnswer = 200

// recordResult handles the result of a finished check. It ignores the result if the check was replaced or its run has ended.
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
	if t.active {
		changed, act := t.health.RecordResult(i, now, good, strings.ToValidUTF8(answer[:min(len(answer), maxAnswer)], ""))
		if changed {
			p.reportVerdict(t, i, act)
		}
		t.scheduleMessageChecks(now)
		p.reportReadiness(t)
	}
	if due, ok := t.health.NextDue(t.isBusy); ok && (p.timerAt.IsZero() || due.Before(p.timerAt)) || len(p.pendingEvents) > 0 {
		p.wakeUp()
	}
}

// reportVerdict records a new verdict in the event history, and asks the supervisor for the action act. The caller holds p.mu.
func (p *Prober) reportVerdict(t *target, i int, act string) {
	c := &t.health.Checks[i]
	text := RemarkPrefix + c.Rule.Name + " " + verdictWords[c.Verdict]
	if c.Verdict == Failing {
		text += ": " + c.Answer
	}
	p.post(supervisor.Remark{Service: t.name, Text: text})
	answer := RemarkPrefix + c.Rule.Name + ": " + c.Answer
	switch act {
	case config.OnFailureRestart, config.OnFailurePark:
		p.post(supervisor.Unhealthy{Name: t.name, Run: t.health.Run, Answer: answer, Park: act == config.OnFailurePark})
	case config.OnFailureShutdown:
		p.post(supervisor.Shutdown{Code: exitUnhealthy, Reason: t.name + " is " + supervisor.ReasonUnhealthy + ": " + answer})
	}
}

// RemarkPrefix is the prefix of every record about a check in the event history.
const RemarkPrefix = "check "

const exitUnhealthy = 1

// reportReadiness reports a changed readiness of a run to the supervisor. The caller holds p.mu.
func (p *Prober) reportReadiness(t *target) {
	now := readinessReport{run: t.health.Run}
	now.ready, now.lastText = t.health.Ready()
	if now != t.lastReport {
		t.lastReport = now
		p.post(supervisor.ChecksReported{Name: t.name, Run: now.run, Ready: now.ready, Text: now.lastText})
	}
}

// post queues an event. Only the scheduler sends events to the supervisor, so that they keep their order. The caller holds
// p.mu.
func (p *Prober) post(e supervisor.Event) {
	p.pendingEvents = append(p.pendingEvents, e)
	p.wakeUp()
}

// Health returns a copy of the state of a service's checks, and the types of the checks. ok is false for a service without
// checks.
func (p *Prober) Health(service string) (h Health, types []string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.targets[service]
	if t == nil {
		return h, nil, false
	}
	h = t.health
	if h.Checks == nil {
		h = NewHealth(t.rules, 0, time.Time{})
	}
	h.Checks = append([]Progress(nil), h.Checks...)
	for _, c := range t.Checks {
		types = append(types, c.Type)
	}
	return h, types, true
}

// PauseUntil pauses the checks of a service until the given time. The zero time ends a pause and runs the checks now. The
// result is false if the service has no checks.
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

// Handover is the state that a Prober passes to the next program when PID 1 re-executes itself.
type Handover struct {
	Services     map[string]Health
	NotifyStates map[string]NotifyState `reexec:"Beats"` // messages by service, only of services with a check that needs messages
}

// HandOver returns the state of all checks, or nil if there are none.
func (p *Prober) HandOver() *Handover {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.targets) == 0 {
		return nil
	}
	h := &Handover{Services: make(map[string]Health, len(p.targets)), NotifyStates: make(map[string]NotifyState)}
	for name, t := range p.targets {
		if b := t.notifyState.snapshot(); b.Run != 0 {
			h.NotifyStates[name] = b
		}
		own := t.health
		own.Checks = append([]Progress(nil), own.Checks...)
		h.Services[name] = own
	}
	return h
}

// TakeOver gives a new Prober the result of HandOver of the old program. Call it before SetChecks.
func (p *Prober) TakeOver(h *Handover) {
	if h == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handedOver = *h
}
