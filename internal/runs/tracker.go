// Package runs starts commands once, at the request of a client, and remembers how they ended.
//
// A run is a unit of the supervisor that never restarts. The supervisor's loop starts it, ends its whole process tree
// (SIGTERM, grace, SIGKILL) and records its exit. A [Tracker] stores what the loop does not need: the client's tag, the time
// limit, and runs that the loop has forgotten. In PID 1, the control API uses a Tracker. Other programs make one with package
// local.
//
// A tag starts at most one process, however often a client asks. A run ends when all its processes have ended. A Tracker
// remembers the last [MaxEndedRuns] ended runs. It owns one goroutine, which follows the loop to its end, and a timer for
// each run with a time limit.
package runs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// MaxEndedRuns is how many ended runs a Tracker remembers.
const MaxEndedRuns = 1000

// maxLiveRuns is how many runs may be alive, because each is a service of the supervisor. A caller other than root may have half
// of them.
const maxLiveRuns = 256

// checkRunLimit returns an error if one more run of a caller would be too many. Its caller holds b.mu.
func (b *Tracker) checkRunLimit(caller string) error {
	mine := 0
	for _, e := range b.live {
		if caller != "" && e.caller == caller {
			mine++
		}
	}
	if len(b.live) < maxLiveRuns && mine < maxLiveRuns/2 {
		return nil
	}
	return &client.Error{Kind: client.KindBusy, Message: fmt.Sprintf("%d runs are alive, %d of this caller; the limits are %d and %d; end some, or wait", len(b.live), mine, maxLiveRuns, maxLiveRuns/2)}
}

// Loop is the part of [supervisor.Loop] that a Tracker uses.
type Loop interface {
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Do(ctx context.Context, e supervisor.Event) error
	Post(e supervisor.Event)
	supervisor.TaskLoop
}

// StartRequest says what to run.
type StartRequest struct {
	Tag, Template, Profile string
	Spec                   proc.Spec
	Output                 *os.File // standard output and error; the Tracker closes it; nil means /dev/null
	Log                    string   // path of Output, for display
	TimeLimit              time.Duration
	Grace                  time.Duration
	Caller                 string // caller whose runs are counted together; "" for root, which has no limit of its own
}

// Tracker holds the runs of one supervisor. Any goroutine may call its methods.
type Tracker struct {
	mu        sync.Mutex
	loop      Loop
	instance  string // random first part of the runs' IDs, so that they differ from other containers' IDs
	nextID    uint64
	changeSeq uint64
	live      map[string]*entry // living runs by ID
	byTag     map[string]*entry
	ended     []*entry      // ended runs, oldest first
	changed   chan struct{} // channel that is closed and replaced at the next change of a run
}

// entry is a run, with fields that only the Tracker uses. A re-execution hands over all fields but those with the tag "-".
type entry struct {
	client.Run `reexec:"Run"`

	caller    string        `reexec:"Caller"`
	limit     time.Duration `reexec:"Limit"`
	timer     *time.Timer   `reexec:"-"`
	output    *os.File      `reexec:"-"`
	startDone chan struct{} `reexec:"-"` // channel that is closed when the process is running or has failed to start
	started   bool          `reexec:"-"`
	err       error         `reexec:"-"`
}

// NewTracker returns a Tracker without runs.
func NewTracker() *Tracker {
	return &Tracker{instance: rand.Text()[:8], live: make(map[string]*entry), byTag: make(map[string]*entry), changed: make(chan struct{})}
}

// Attach connects the Tracker with its supervisor and follows it. Call it once, before the first run.
func (b *Tracker) Attach(loop Loop) {
	b.mu.Lock()
	b.loop = loop
	for _, e := range b.live {
		b.startTimer(e)
	}
	b.mu.Unlock()
	guard.Go("following the runs", b.recordEnds)
}

// namePrefix is the prefix of the names of runs in the supervisor. No service of hinit.yaml or s6 directory can have such a
// name.
const namePrefix = "run/"

// IsRun reports whether a service of the supervisor is a run.
func IsRun(service string) bool { return strings.HasPrefix(service, namePrefix) }

// CheckTag says why a tag is invalid; "" if it is valid.
func CheckTag(tag string) string {
	if tag == "" || len(tag) > 120 {
		return "a tag has 1 to 120 characters"
	}
	for _, c := range []byte(tag) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte("-_./", c) < 0 {
			return "a tag is made of letters, digits and - _ . /"
		}
	}
	return ""
}

// Start starts a run. It returns when the process is running, or has failed to start (Run.End says why). If there is a run
// with this tag already, Start returns that run and starts nothing.
func (b *Tracker) Start(ctx context.Context, o StartRequest) (client.Run, error) {
	b.mu.Lock()
	if e := b.byTag[o.Tag]; e != nil {
		b.mu.Unlock()
		_ = o.Output.Close() // no data can be lost, because no process has written to the file
		return b.awaitStart(ctx, e)
	}
	if err := b.checkRunLimit(o.Caller); err != nil {
		b.mu.Unlock()
		_ = o.Output.Close()
		return client.Run{}, err
	}
	b.nextID++
	e := &entry{
		Run: client.Run{
			ID: b.instance + "-" + strconv.FormatUint(b.nextID, 10), Tag: o.Tag, Template: o.Template, Profile: o.Profile,
			Service: namePrefix + o.Tag, Log: o.Log, StartedAt: time.Now(),
		},
		caller: o.Caller, limit: o.TimeLimit, output: o.Output, startDone: make(chan struct{}),
	}
	b.live[e.ID], b.byTag[e.Tag] = e, e
	b.mu.Unlock()
	err := b.loop.Register(context.WithoutCancel(ctx), supervisor.Unit{
		Name: e.Service, Profile: o.Profile, Kind: supervisor.KindRun, Spec: o.Spec, LogFile: o.Log,
		Policy: supervisor.Policy{SingleRun: true, StopSignal: int(unix.SIGTERM), Grace: o.Grace},
	}, supervisor.WantUp)
	b.mu.Lock()
	e.started, e.err = true, err
	_ = o.Output.Close() // close only this copy: the process has its own
	e.output = nil
	over := false
	if err != nil {
		delete(b.live, e.ID)
		delete(b.byTag, e.Tag)
	} else {
		over = b.updateRun(e, b.loop.Snapshot().Find(e.Service))
		b.startTimer(e)
		b.wakeWaiters(e)
	}
	out := e.Run
	close(e.startDone)
	b.mu.Unlock()
	if over {
		b.loop.Post(supervisor.Remove{Name: out.Service}) // Post waits for the loop, so b.mu must not be held
	}
	return out, err
}

// awaitStart blocks until the call of Start that made this run has started its process.
func (b *Tracker) awaitStart(ctx context.Context, e *entry) (client.Run, error) {
	if !pause.Until(ctx, e.startDone) {
		return client.Run{}, context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.Run, e.err
}

// Pipes returns the output of a run for its process, for [supervisor.LogSink]. It does not block.
func (b *Tracker) Pipes(service string) (stdout, stderr *os.File, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.byTag[strings.TrimPrefix(service, namePrefix)]
	if e == nil {
		return nil, nil, fmt.Errorf("cannot connect the output of %q: it is no run", service)
	}
	if e.output == nil {
		return nil, nil, nil
	}
	fd, err := unix.FcntlInt(e.output.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot connect the output of %q: %w", service, err)
	}
	f := os.NewFile(uintptr(fd), e.Log)
	return f, f, nil
}

// startTimer starts the timer of a run with a time limit. The caller holds b.mu.
func (b *Tracker) startTimer(e *entry) {
	if e.limit > 0 && e.End == nil && e.timer == nil {
		e.timer = time.AfterFunc(time.Until(e.StartedAt.Add(e.limit)), guard.WrapFunc("ending a run", func() {
			_, _ = b.stop(context.Background(), e.ID, client.RunTimedOut) // an error means that the supervisor has ended
		}))
	}
}

// Stop asks the supervisor to end a run, and does not wait for its end. First its process gets SIGTERM, then its descendants,
// and after the grace period all get SIGKILL. Stop does nothing to a run that has ended.
func (b *Tracker) Stop(ctx context.Context, id string) (client.Run, error) {
	return b.stop(ctx, id, client.RunStopped)
}

func (b *Tracker) stop(ctx context.Context, id, why string) (client.Run, error) {
	b.mu.Lock()
	e := b.live[id]
	if e == nil {
		defer b.mu.Unlock()
		return b.findLocked(id)
	}
	e.StopReason = cmp.Or(e.StopReason, why)
	b.mu.Unlock()
	err := b.loop.Do(ctx, supervisor.Stop{Name: e.Service})
	if errors.Is(err, supervisor.ErrUnknown) { // the supervisor has just dropped the service, because the run has ended
		err = nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.Run, err
}

// Find returns the run with this ID, or an error if there is none.
func (b *Tracker) Find(id string) (client.Run, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.findLocked(id)
}

func (b *Tracker) findLocked(id string) (client.Run, error) {
	if e := b.live[id]; e != nil {
		return e.Run, nil
	}
	if i := slices.IndexFunc(b.ended, func(e *entry) bool { return e.ID == id }); i >= 0 {
		return b.ended[i].Run, nil
	}
	return client.Run{}, &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("no such run %q; the last %d that have ended are remembered", id, MaxEndedRuns)}
}

// RunsSince returns the runs that began or ended after a cursor, in that order, and the next cursor. 0 is before all runs.
func (b *Tracker) RunsSince(cursor uint64) ([]client.Run, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []client.Run
	for _, e := range b.live {
		if e.started && e.Seq > cursor {
			out = append(out, e.Run)
		}
	}
	for i := len(b.ended) - 1; i >= 0 && b.ended[i].Seq > cursor; i-- {
		out = append(out, b.ended[i].Run)
	}
	slices.SortFunc(out, func(a, b client.Run) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, b.changeSeq
}

// Changed returns a channel that is closed when a run begins or ends. Call it before RunsSince. Otherwise a change between the
// two calls is missed.
func (b *Tracker) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// NewTag returns a text for use as a tag, a different one at each call.
func (b *Tracker) NewTag() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nextID++
	return b.instance + "-" + strconv.FormatUint(b.nextID, 10)
}

// wakeWaiters gives a run that has begun or ended the next Seq, and wakes the goroutines that wait on the channel of Changed. The
// caller holds b.mu.
func (b *Tracker) wakeWaiters(e *entry) {
	b.changeSeq++
	e.Seq = b.changeSeq
	close(b.changed)
	b.changed = make(chan struct{})
}

// recordEnds records the ends of runs until the supervisor's loop ends.
func (b *Tracker) recordEnds() {
	for {
		changed := b.loop.Changed()
		b.updateAll()
		select {
		case <-changed:
		case <-b.loop.Ended():
			b.updateAll()
			return
		}
	}
}

// updateAll compares all living runs with the supervisor's snapshot, and records which have ended. It takes the snapshot
// while it holds b.mu, because an older one may lack a run that was just started.
func (b *Tracker) updateAll() {
	var over []string
	b.mu.Lock()
	snap := b.loop.Snapshot()
	if len(b.live) > 0 {
		views := make(map[string]*supervisor.Service, len(b.live))
		for _, v := range snap.Services {
			if v.Kind == supervisor.KindRun {
				views[v.Name] = v
			}
		}
		for _, e := range b.live {
			if e.started && b.updateRun(e, views[e.Service]) {
				over = append(over, e.Service)
			}
		}
	}
	b.mu.Unlock()
	for _, service := range over {
		b.loop.Post(supervisor.Remove{Name: service})
	}
}

// updateRun compares a run with its service v in the supervisor, and records its process or its end. It returns true if the
// supervisor should forget the run. The caller holds b.mu.
func (b *Tracker) updateRun(e *entry, v *supervisor.Service) (over bool) {
	switch {
	case e.End != nil:
		return false
	case v == nil: // the supervisor has dropped the service of the run, because the container is shutting down
		e.End = &client.RunEnd{ExitUnknown: true, Exit: client.Exit{EndedAt: time.Now(), Cause: string(supervisor.CauseShutdown), Tail: []string{}}}
	case v.State == supervisor.Down && v.LastExit != nil:
		x := v.LastExit
		e.End = &client.RunEnd{Exit: x.ToClient(), OOM: x.Cause == supervisor.CauseOOM, CPUSeconds: x.CPU.Seconds(), MaxRSS: x.MaxRSS}
		over = true
	default:
		if v.PID != 0 && e.PID == 0 {
			e.PID = v.PID
			e.StartTicks, _ = proc.StartTicks(v.PID)
		}
		return false
	}
	e.PID = cmp.Or(e.PID, e.End.PID)
	if e.StopReason == "" && e.End.Cause == string(supervisor.CauseShutdown) {
		e.StopReason = client.RunShutdown
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	b.moveToEnded(e)
	if e.started {
		b.wakeWaiters(e)
	}
	return over
}

// shortenTexts cuts texts that a client chose, because the Tracker keeps them after the run has ended.
func (e *entry) shortenTexts() {
	e.Log, e.Profile = supervisor.ShortenText(e.Log), supervisor.ShortenText(e.Profile)
	if e.End != nil {
		e.End.Error = supervisor.ShortenText(e.End.Error)
	}
}

// moveToEnded moves a run to the ended ones, and drops the oldest of them if there are too many. The caller holds b.mu.
func (b *Tracker) moveToEnded(e *entry) {
	e.shortenTexts()
	delete(b.live, e.ID)
	b.ended = append(b.ended, e)
	if len(b.ended) > MaxEndedRuns {
		delete(b.byTag, b.ended[0].Tag)
		b.ended = slices.Delete(b.ended, 0, 1)
	}
}
