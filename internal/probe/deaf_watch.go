package probe

import (
	"context"
	"maps"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// maxParallelProbes is the maximum number of silent gateways that a round examines closely at the same time.
	maxParallelProbes = 16
	// answerTimeout is how long DeafWatch waits for an answer of a gateway's /health, or of the disk.
	answerTimeout = 2 * time.Second
	// maxSuspension is the maximum time without rounds. The kernel's signal about a stopped gateway may get lost.
	maxSuspension = time.Hour
	// roundsToBeDeaf is the number of consecutive rounds that must find a gateway deaf before hinit reports it.
	roundsToBeDeaf = 2
)

// DeafOptions connect a [DeafWatch] with other parts of hinit. Any goroutine may call the functions.
type DeafOptions struct {
	Snapshot        func() *supervisor.Snapshot
	SupervisorEnded <-chan struct{}  // closed when the supervisor has ended
	Children        <-chan os.Signal // delivers SIGCHLD, which the kernel also sends when a signal stops a gateway
	Post            func(supervisor.Event)
	Lines           func(service string) uint64 // how many lines a service has written so far
	// EachEnv calls each with the .env variables of every given profile whose .env can be read. State reads the state file of a
	// profile's gateway. Both may wait for the disk.
	EachEnv func(profiles []string, each func(profile string, env map[string]string)) error
	State   func(profile string) (profiles.State, error)
}

// DeafWatch finds deaf gateways, which run but do not react. One goroutine examines all gateways in rounds. A round usually
// needs only known heartbeats and lines, and processor times from the kernel. For new runs and silent gateways, it also reads a
// file from the disk and asks /health. While no gateway can become deaf by silence alone, the rounds are suspended until the
// next line, heartbeat or stopped process. The methods don't block, and any goroutine may call them.
type DeafWatch struct {
	options      DeafOptions
	wake         chan struct{} // capacity 1; wakes the goroutine to resume the rounds, or for a new period
	suspended    atomic.Bool
	rounds       atomic.Uint64
	waiting      atomic.Int32 // calls that wait for the disk now, without the search for ports
	portSearch   diskCall     // the search for ports of /health, which may read many files
	deafServices atomic.Pointer[map[string]Deafness]

	mu             sync.Mutex // no goroutine holds mu during a round
	period         time.Duration
	policy         func(v *supervisor.Service) config.DeafDetection
	begun          bool
	lastHeartbeats map[string]time.Time // last heartbeat of each profile's gateway

	// Only the goroutine of DeafWatch uses the fields below.
	runs         map[string]*deafRun
	wasSuspended bool // the rounds were suspended before the present one
}

// deafRun is DeafWatch's record of one run of a gateway.
type deafRun struct {
	run           uint64
	history       signHistory
	examined      bool // a round has already examined this run
	portKnown     bool
	health        *httpCheck
	deafRounds    int // rounds in a row that have found the run deaf
	since         time.Time
	reason        string
	deafRecorded  bool // the history has a record that the run is deaf
	ended         bool
	seenThisRound bool
}

// Deafness says since when and why a run is deaf.
type Deafness struct {
	Run            uint64
	Since          time.Time
	Failures       int
	Why            string
	HandledByCheck bool // a configured check reports the deafness, and acts on it
}

// NewDeafWatch returns a DeafWatch. It does nothing before Configure, and makes no rounds before Resume.
func NewDeafWatch(o DeafOptions) *DeafWatch {
	e := &DeafWatch{options: o, wake: make(chan struct{}, 1), lastHeartbeats: make(map[string]time.Time), runs: make(map[string]*deafRun)}
	e.suspended.Store(true)
	return e
}

// Configure sets the time between rounds and the policy for each gateway. The first call starts the goroutine.
func (e *DeafWatch) Configure(period time.Duration, policy func(v *supervisor.Service) config.DeafDetection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.period, e.policy = period, policy
	if !e.begun {
		e.begun = true
		guard.Go("listening for deaf gateways", e.run)
		return
	}
	e.resumeRounds()
}

// Resume continues suspended rounds. Call it for each log line of a gateway, and for any other sign that may change whether a
// gateway counts as deaf.
func (e *DeafWatch) Resume() {
	if e.suspended.Load() {
		e.resumeRounds()
	}
}

func (e *DeafWatch) resumeRounds() {
	e.suspended.Store(false)
	pause.Wake(e.wake)
}

// RecordHeartbeat records that the state file of a profile's gateway has a new heartbeat.
func (e *DeafWatch) RecordHeartbeat(profile string) {
	e.mu.Lock()
	e.lastHeartbeats[profile] = time.Now()
	e.mu.Unlock()
	e.Resume()
}

// Deafness returns whether a service is deaf, since when and why. The answer may be about an earlier run: compare Deafness.Run.
func (e *DeafWatch) Deafness(service string) (d Deafness, deaf bool) {
	if found := e.deafServices.Load(); found != nil {
		d, deaf = (*found)[service]
	}
	return d, deaf
}

func (e *DeafWatch) run() {
	timer := time.NewTimer(maxSuspension)
	for {
		stopped := e.options.Children
		if !e.suspended.Load() {
			stopped = nil
		}
		select {
		case <-timer.C:
			e.suspended.Store(true) // set it before the round, so that a sign during the round is not lost
			timer.Reset(maxSuspension)
			e.wasSuspended = !e.runRound()
			if !e.wasSuspended {
				e.resumeRounds()
			}
		case <-stopped:
			if proc.AnyChildStopped() {
				e.Resume()
			}
		case <-e.wake:
			e.mu.Lock()
			timer.Reset(e.period)
			e.mu.Unlock()
		case <-e.options.SupervisorEnded:
			return
		}
	}
}

// silentGateway is a gateway that this round must examine closely.
type silentGateway struct {
	*deafRun

	service        *supervisor.Service
	policy         config.DeafDetection
	evidence       Evidence
	diskUnanswered bool // the disk did not answer, so this round decides nothing
}

// runRound makes one round. It returns true if another round may find a gateway deaf without a new sign.
func (e *DeafWatch) runRound() (again bool) {
	e.rounds.Add(1)
	e.mu.Lock()
	period, policyOf := e.period, e.policy
	e.mu.Unlock()
	most := period * 3 / 2
	if e.wasSuspended {
		most = math.MaxInt64
	}
	found := make(map[string]Deafness)
	var closer []*silentGateway
	suspicious := false
	for _, v := range e.options.Snapshot().Services {
		if v.Kind != supervisor.KindGateway || v.State != supervisor.Up || v.PID == 0 || v.Paused {
			continue
		}
		policy := policyOf(v)
		if policy.Action == config.DeafDetectionOff {
			continue
		}
		r := e.runs[v.Name]
		if r == nil || r.run != v.Run {
			r = &deafRun{run: v.Run}
			e.runs[v.Name] = r
		}
		r.seenThisRound = true
		e.mu.Lock()
		beat := e.lastHeartbeats[v.Profile]
		e.mu.Unlock()
		st, _ := blocking.Get(blocking.ShortCalls, func() (procstat.Stat, error) { return procstat.Read(v.PID) })
		if st.State == 0 {
			continue // the run has just ended, so its process is gone
		}
		s := silentGateway{deafRun: r, service: v, policy: policy, evidence: r.history.addRound(time.Now(), most, roundSigns{e.options.Lines(v.Name), beat, st})}
		again = again || s.evidence.Stopped || r.examined && (r.deafRounds > 0 || s.evidence.Heartbeat.mayBecomeUnusual() || s.evidence.Log.mayBecomeUnusual())
		r.examined = true
		doubts := r.history.needsCloserLook(s.evidence, policy.MinSilence)
		suspicious = suspicious || doubts && s.evidence.Idle
		if doubts || !s.evidence.Stopped && (!r.portKnown || r.health != nil && !r.history.healthAnswered) {
			closer = append(closer, &s)
			continue
		}
		e.updateDeafness(found, &s)
	}
	if len(closer) > 0 {
		e.examineSilent(closer, suspicious)
		for _, s := range closer {
			e.updateDeafness(found, s)
		}
	}
	for name, r := range e.runs {
		if !r.seenThisRound {
			delete(e.runs, name)
		}
		r.seenThisRound = false
	}
	e.mu.Lock()
	maps.DeleteFunc(e.lastHeartbeats, func(profile string, _ time.Time) bool { return e.runs[profiles.SlotName(profile)] == nil })
	e.mu.Unlock()
	e.deafServices.Store(&found)
	return again
}

// examineSilent asks the /health of the gateways in closer, and reads their state files. If suspicious is set, it must also sum
// up the processor times of all their processes.
func (e *DeafWatch) examineSilent(closer []*silentGateway, suspicious bool) {
	e.findPorts(closer)
	var trees map[int]uint64
	if suspicious {
		trees = cpuTicksByTree()
	}
	var next atomic.Int64
	var work sync.WaitGroup
	for range min(maxParallelProbes, len(closer)) {
		work.Go(guard.WrapFunc("asking a silent gateway", func() {
			for i := next.Add(1) - 1; i < int64(len(closer)); i = next.Add(1) - 1 {
				s := closer[i]
				e.probeGateway(s, trees[s.service.PID])
			}
		}))
	}
	work.Wait()
}

// findPorts finds the unknown ports of /health. The first round needs all gateways' ports, so one call reads the variables of
// several profiles.
func (e *DeafWatch) findPorts(of []*silentGateway) {
	var names []string
	for _, s := range of {
		if !s.portKnown {
			names = append(names, s.service.Profile)
		}
	}
	if len(names) == 0 {
		return
	}
	found := make(map[string]*httpCheck)
	if read, _ := e.portSearch.runCall(time.Now().Add(answerTimeout), func() (bool, string) {
		return e.options.EachEnv(names, func(profile string, env map[string]string) { found[profile] = healthCheckOf(env) }) == nil, ""
	}); !read {
		return
	}
	for _, s := range of {
		if check, known := found[s.service.Profile]; known && !s.portKnown {
			s.portKnown, s.health = true, check
		}
	}
}

// probeGateway completes the evidence about one gateway. ticks is the processor time of all its processes.
func (e *DeafWatch) probeGateway(s *silentGateway, ticks uint64) {
	after := s.policy.MinSilence
	doubts := s.history.needsCloserLook(s.evidence, after)
	if s.health != nil && (doubts || !s.history.healthAnswered) {
		s.evidence.HealthAnswers, _ = s.health.check(time.Now().Add(answerTimeout))
		s.history.healthAnswered = s.history.healthAnswered || s.evidence.HealthAnswers
		s.evidence.ProbedHealth = s.history.healthAnswered
	}
	s.evidence.Idle = s.evidence.Idle && doubts && s.history.treeIsIdle(ticks)
	if deaf, _ := DecideDeaf(s.evidence, after); !deaf {
		return
	}
	var st profiles.State
	if !e.callDisk(func() (err error) { st, err = e.options.State(s.service.Profile); return err }) {
		s.diskUnanswered = true // a hung disk may be the reason for the silence
	} else if st.Heartbeat.After(s.history.lastHeartbeat) && time.Since(st.Heartbeat) < after {
		s.evidence = Evidence{}
		e.RecordHeartbeat(s.service.Profile)
	}
}

// callDisk makes a call that may wait for the disk, and reports whether it succeeded in time. It fails at once while too many
// earlier calls wait.
func (e *DeafWatch) callDisk(call func() error) bool {
	if e.waiting.Add(1) > maxParallelProbes {
		e.waiting.Add(-1)
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return blocking.Wait(ctx, "a look at a silent gateway", func() error {
		defer e.waiting.Add(-1)
		return call()
	}) == nil
}

// Variables in the .env of a profile: whether its gateway serves /health, and on which port.
const (
	healthEnabledVar = "API_SERVER_ENABLED"
	healthPortVar    = "API_SERVER_PORT"
)

// healthCheckOf returns a check that asks a gateway's /health, from the variables of its profile, or nil if the gateway has
// none. Any HTTP status proves that the gateway reacts.
func healthCheckOf(env map[string]string) *httpCheck {
	// accept only digits, because "80@host" would lead to another host
	if !config.IsShellTruthy(env[healthEnabledVar]) || env[healthPortVar] == "" || strings.Trim(env[healthPortVar], "0123456789") != "" {
		return nil
	}
	c := config.Check{Timeout: answerTimeout, HTTP: config.HTTPCheck{URL: "http://127.0.0.1:" + env[healthPortVar] + "/health", Status: "100-599"}}
	h, _ := newHTTPCheck(c, func(s string) string { return s }) // h is nil for an invalid port
	return h
}

// deafCheck is a configured check of type deaf. Its result is DeafWatch's decision about one run.
type deafCheck struct {
	run      uint64
	deafness func() (Deafness, bool)
}

func (l deafCheck) check(time.Time) (good bool, answer string) {
	if d, deaf := l.deafness(); deaf && d.Run == l.run {
		return false, d.Why
	}
	return true, "it shows signs of life"
}

// updateDeafness decides whether one gateway is deaf, adds it to found, records changes in the event history, and restarts the
// gateway if the policy says so. If the disk did not answer in this round, the last decision stays valid.
func (e *DeafWatch) updateDeafness(found map[string]Deafness, s *silentGateway) {
	deaf, why := DecideDeaf(s.evidence, s.policy.MinSilence)
	byCheck := s.policy.Action == config.DeafDetectionByCheck
	name := s.service.Name
	if s.diskUnanswered {
		deaf, why = s.deafRecorded, s.reason
	}
	if !deaf {
		if s.deafRecorded && !byCheck {
			e.options.Post(supervisor.Remark{Service: name, Text: notDeafPrefix + why})
		}
		s.deafRounds, s.deafRecorded = 0, false
		return
	}
	s.deafRounds++
	s.reason = why
	if s.deafRounds < roundsToBeDeaf {
		return
	}
	if !s.deafRecorded {
		s.deafRecorded, s.since = true, time.Now()
		if !byCheck {
			e.options.Post(supervisor.Remark{Service: name, Text: DeafPrefix + why})
		}
	}
	if s.policy.Action == config.OnFailureRestart && !s.ended {
		s.ended = true
		e.options.Post(supervisor.Unhealthy{Name: name, Run: s.run, Answer: DeafPrefix + why})
	}
	found[name] = Deafness{Run: s.run, Since: s.since, Failures: s.deafRounds, Why: why, HandledByCheck: byCheck}
}

// DeafPrefix is the prefix of the text about a deaf gateway in the event history and the status. notDeafPrefix is the prefix of
// the text about a gateway that reacts again.
const (
	DeafPrefix    = "deaf: "
	notDeafPrefix = "not deaf any more: "
)

// IsOwnRemark reports whether this package wrote text, a remark in the event history.
func IsOwnRemark(text string) bool {
	return strings.HasPrefix(text, RemarkPrefix) || strings.HasPrefix(text, DeafPrefix) || strings.HasPrefix(text, notDeafPrefix)
}
