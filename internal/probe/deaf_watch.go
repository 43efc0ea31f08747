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
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// maxProbes is the maximum number of silent gateways that are probed at the same time.
	maxProbes = 16
	// answerPatience is the time limit for an answer from a gateway, or from the disk.
	answerPatience = 2 * time.Second
	// maxSuspension is the longest time for which the rounds are suspended. It has a limit because the kernel's signal about a
	// stopped gateway may be lost.
	maxSuspension = time.Hour
	// roundsToBeDeaf is the number of consecutive rounds that must find a gateway deaf before it is reported as deaf.
	roundsToBeDeaf = 2
)

// DeafOptions are the functions and channels that a [DeafWatch] needs. All functions may be called from any goroutine.
type DeafOptions struct {
	Snapshot func() *supervisor.Snapshot
	Ended    <-chan struct{}  // closed when the supervisor has ended
	Children <-chan os.Signal // delivers SIGCHLD, which the kernel also sends when a signal stops a gateway
	Post     func(supervisor.Event)
	Lines    func(service string) uint64 // number of lines that a service has written so far
	// EachEnv calls each with the environment variables of every profile that can be read. State reads the state file of a profile's
	// gateway. Both may wait for the disk.
	EachEnv func(profiles []string, each func(profile string, env map[string]string)) error
	State   func(profile string) (profiles.State, error)
}

// DeafWatch finds deaf gateways (running, but without reaction) at little cost. One goroutine with one timer examines all
// gateways in rounds. A round normally uses only heartbeats and lines that are already known, and asks the kernel for processor
// times. It uses the disk and /health only for new runs and for silent gateways. The rounds are suspended while no gateway can
// become deaf by silence alone. The next line or heartbeat, or a stopped process, starts the rounds again. The methods may be
// called from any goroutine and don't block.
type DeafWatch struct {
	o         DeafOptions
	wake      chan struct{} // capacity 1; wakes the goroutine when the rounds start again, or when the period has changed
	suspended atomic.Bool   // the rounds are suspended
	rounds    atomic.Uint64
	waiting   atomic.Int32 // number of calls that wait for the disk at this moment, apart from ports
	ports     diskCall     // the search for ports, which may read many files
	found     atomic.Pointer[map[string]Deafness]

	mu     sync.Mutex // held only briefly, never during a round
	period time.Duration
	policy func(v *supervisor.Service) config.Deaf
	begun  bool
	beats  map[string]time.Time // time of the last heartbeat of each profile's gateway

	// The fields below are used only by the goroutine.
	runs         map[string]*deafRun // the current run of each service
	wasSuspended bool                // the rounds were suspended before this round
}

// deafRun holds the data about one run of a gateway that DeafWatch keeps from round to round.
type deafRun struct {
	run           uint64
	history       signHistory
	examined      bool // a round has already examined this run
	portKnown     bool // hinit knows the run's port for /health, or knows that the run has no such port
	health        *httpCheck
	deafRounds    int // number of consecutive rounds that found the run deaf
	since         time.Time
	why           string
	remarked      bool
	ended         bool // the supervisor was asked to restart the run
	seenThisRound bool
}

// Deafness describes a deaf run: since when it is deaf, and why.
type Deafness struct {
	Run      uint64
	Since    time.Time
	Failures int
	Why      string
	ByCheck  bool // a configured check of the service reports the deafness and acts on it
}

// NewDeafWatch returns a DeafWatch. It does nothing before Set, and its rounds are suspended until Resume.
func NewDeafWatch(o DeafOptions) *DeafWatch {
	e := &DeafWatch{o: o, wake: make(chan struct{}, 1), beats: make(map[string]time.Time), runs: make(map[string]*deafRun)}
	e.suspended.Store(true)
	return e
}

// Set sets the time between rounds, and the policy for each gateway.
func (e *DeafWatch) Set(period time.Duration, policy func(v *supervisor.Service) config.Deaf) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.period, e.policy = period, policy
	if !e.begun {
		e.begun = true
		guard.Go("listening for deaf gateways", e.run)
		return
	}
	e.begin()
}

// Resume starts the rounds again if they are suspended. Call it for each line of a gateway, and for any other sign that may
// matter.
func (e *DeafWatch) Resume() {
	if e.suspended.Load() {
		e.begin()
	}
}

func (e *DeafWatch) begin() {
	e.suspended.Store(false)
	pause.Wake(e.wake)
}

// RecordHeartbeat records a heartbeat of a profile's gateway.
func (e *DeafWatch) RecordHeartbeat(profile string) {
	e.mu.Lock()
	e.beats[profile] = time.Now()
	e.mu.Unlock()
	e.Resume()
}

// Deafness reports whether a service is deaf, and describes its deafness. The result may be about an earlier run, so the caller
// must compare Deafness.Run.
func (e *DeafWatch) Deafness(service string) (d Deafness, deaf bool) {
	if found := e.found.Load(); found != nil {
		d, deaf = (*found)[service]
	}
	return d, deaf
}

func (e *DeafWatch) run() {
	timer := time.NewTimer(maxSuspension)
	for {
		stopped := e.o.Children
		if !e.suspended.Load() {
			stopped = nil
		}
		select {
		case <-timer.C:
			e.suspended.Store(true) // set before the round, so that a sign that comes during the round is not lost
			timer.Reset(maxSuspension)
			if e.wasSuspended = !e.examineAll(); !e.wasSuspended {
				e.begin()
			}
		case <-stopped:
			if proc.Stopped() {
				e.Resume()
			}
		case <-e.wake:
			e.mu.Lock()
			timer.Reset(e.period)
			e.mu.Unlock()
		case <-e.o.Ended:
			return
		}
	}
}

// silentGateway is a gateway that must be examined more closely in this round.
type silentGateway struct {
	*deafRun

	service  *supervisor.Service
	policy   config.Deaf
	evidence Evidence
	unknown  bool // the disk did not answer, so this round can't decide about the gateway
}

// examineAll examines all gateways once. again reports whether the next round may find a deaf gateway even if no new sign
// comes.
func (e *DeafWatch) examineAll() (again bool) {
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
	doubt := false
	for _, v := range e.o.Snapshot().Services {
		if v.Kind != supervisor.KindGateway || v.State != supervisor.Up || v.PID == 0 || v.Paused {
			continue
		}
		policy := policyOf(v)
		if policy.Action == config.DeafOff {
			continue
		}
		r := e.runs[v.Name]
		if r == nil || r.run != v.Run {
			r = &deafRun{run: v.Run}
			e.runs[v.Name] = r
		}
		r.seenThisRound = true
		e.mu.Lock()
		beat := e.beats[v.Profile]
		e.mu.Unlock()
		st := readStat(v.PID)
		if st.State == 0 {
			continue // the run has just ended
		}
		s := silentGateway{deafRun: r, service: v, policy: policy, evidence: r.history.addRound(time.Now(), most, signs{e.o.Lines(v.Name), beat, st})}
		again = again || s.evidence.Stopped || r.examined && (r.deafRounds > 0 || s.evidence.Heartbeat.mayBecomeUnusual() || s.evidence.Log.mayBecomeUnusual())
		r.examined = true
		doubts := r.history.needsCloserLook(s.evidence, policy.After)
		doubt = doubt || doubts && s.evidence.Idle
		if doubts || !s.evidence.Stopped && (!r.portKnown || r.health != nil && !r.history.answered) {
			closer = append(closer, &s)
			continue
		}
		e.decideGateway(found, &s)
	}
	if len(closer) > 0 {
		e.examineSilent(closer, doubt)
		for _, s := range closer {
			e.decideGateway(found, s)
		}
	}
	for name, r := range e.runs {
		if !r.seenThisRound {
			delete(e.runs, name)
		}
		r.seenThisRound = false
	}
	e.dropOldBeats()
	e.found.Store(&found)
	return again
}

// dropOldBeats drops the heartbeats of profiles whose gateway is not running.
func (e *DeafWatch) dropOldBeats() {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.beats, func(profile string, _ time.Time) bool { return e.runs[profiles.SlotName(profile)] == nil })
}

// examineSilent examines gateways more closely: it probes their /health, and reads their state files. doubt is true if the
// processor time of their processes is needed.
func (e *DeafWatch) examineSilent(closer []*silentGateway, doubt bool) {
	e.findPorts(closer)
	var trees map[int]uint64
	if doubt {
		trees = treeTicks()
	}
	var next atomic.Int64
	var work sync.WaitGroup
	for range min(maxProbes, len(closer)) {
		work.Go(guard.Func("asking a silent gateway", func() {
			for i := next.Add(1) - 1; i < int64(len(closer)); i = next.Add(1) - 1 {
				s := closer[i]
				e.probeGateway(s, trees[s.service.PID])
			}
		}))
	}
	work.Wait()
}

// findPorts finds the ports for /health that are not known yet. The first round needs them for all gateways, so one call reads
// the variables of several profiles.
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
	if read, _ := e.ports.runCall(time.Now().Add(answerPatience), func() (bool, string) {
		return e.o.EachEnv(names, func(profile string, env map[string]string) { found[profile] = healthOf(env) }) == nil, ""
	}); !read {
		return
	}
	for _, s := range of {
		if check, known := found[s.service.Profile]; known && !s.portKnown {
			s.portKnown, s.health = true, check
		}
	}
}

// probeGateway completes the evidence about one gateway. ticks is the processor time that all its processes have used.
func (e *DeafWatch) probeGateway(s *silentGateway, ticks uint64) {
	after := s.policy.After
	doubts := s.history.needsCloserLook(s.evidence, after)
	if s.health != nil && (doubts || !s.history.answered) {
		s.evidence.HealthAnswers, _ = s.health.check(time.Now().Add(answerPatience))
		s.history.answered = s.history.answered || s.evidence.HealthAnswers
		s.evidence.ProbedHealth = s.history.answered
	}
	s.evidence.Idle = s.evidence.Idle && doubts && s.history.treeIsIdle(ticks)
	if deaf, _ := Deaf(s.evidence, after); !deaf {
		return
	}
	var st profiles.State
	if !e.withDisk(func() (err error) { st, err = e.o.State(s.service.Profile); return err }) {
		s.unknown = true // a hung disk may be the reason for the silence
	} else if st.Beat.After(s.history.beat) && time.Since(st.Beat) < after {
		s.evidence = Evidence{}
		e.RecordHeartbeat(s.service.Profile)
	}
}

// withDisk makes a call that may wait for the disk, and reports whether the call has succeeded in time. It fails immediately
// while too many earlier calls still wait.
func (e *DeafWatch) withDisk(call func() error) bool {
	if e.waiting.Add(1) > maxProbes {
		e.waiting.Add(-1)
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerPatience)
	defer cancel()
	return blocking.Wait(ctx, "a look at a silent gateway", func() error {
		defer e.waiting.Add(-1)
		return call()
	}) == nil
}

// Variables in a profile's .env: whether its gateway serves /health, and on which port.
const (
	healthSwitch = "API_SERVER_ENABLED"
	healthPort   = "API_SERVER_PORT"
)

// healthOf returns a check of a gateway's /health, given the variables of its profile, or nil if it has none. Any HTTP status is
// a sufficient answer.
func healthOf(env map[string]string) *httpCheck {
	if !config.IsShellTruthy(env[healthSwitch]) || env[healthPort] == "" || strings.Trim(env[healthPort], "0123456789") != "" { // "80@host" leads elsewhere
		return nil
	}
	c := config.Check{Timeout: answerPatience, HTTP: config.HTTPCheck{URL: "http://127.0.0.1:" + env[healthPort] + "/health", Status: "100-599"}}
	h, _ := newHTTP(c, func(s string) string { return s }) // nil for an invalid port
	return h
}

// deafCheck is a configured check that reports DeafWatch's decision about one run.
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

// decideGateway decides whether one gateway is deaf. decideGateway adds a deaf gateway to found, writes a remark into the event
// history, and restarts the gateway if the policy says so. If this round could not determine the state of the gateway, the last
// decision still holds.
func (e *DeafWatch) decideGateway(found map[string]Deafness, s *silentGateway) {
	deaf, why := Deaf(s.evidence, s.policy.After)
	byCheck := s.policy.Action == config.DeafByCheck
	name := s.service.Name
	if s.unknown {
		deaf, why = s.remarked, s.why
	}
	if !deaf {
		if s.remarked && !byCheck {
			e.o.Post(supervisor.Remark{Service: name, Text: notDeaf + why})
		}
		s.deafRounds, s.remarked = 0, false
		return
	}
	s.deafRounds++
	if s.why = why; s.deafRounds < roundsToBeDeaf {
		return
	}
	if !s.remarked {
		s.remarked, s.since = true, time.Now()
		if !byCheck {
			e.o.Post(supervisor.Remark{Service: name, Text: IsDeaf + why})
		}
	}
	if s.policy.Action == config.OnRestart && !s.ended {
		s.ended = true
		e.o.Post(supervisor.Unhealthy{Name: name, Run: s.run, Answer: IsDeaf + why})
	}
	found[name] = Deafness{Run: s.run, Since: s.since, Failures: s.deafRounds, Why: why, ByCheck: byCheck}
}

// IsDeaf is the beginning of the text about a deaf gateway in the event history and in the status. notDeaf is the beginning of
// the text when the gateway works again.
const (
	IsDeaf  = "deaf: "
	notDeaf = "not deaf any more: "
)

// IsOwnRemark reports whether a remark in the event history was written by this package.
func IsOwnRemark(text string) bool {
	return strings.HasPrefix(text, Remark) || strings.HasPrefix(text, IsDeaf) || strings.HasPrefix(text, notDeaf)
}
