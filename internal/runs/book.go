// Package runs starts commands that run once, at a client's request, and remembers how they ended.
//
// A run is a supervisor unit that never restarts. The supervisor's loop starts it, ends its whole process tree (SIGTERM, grace,
// SIGKILL) and records its exit. A [Book] keeps what the loop does not need: the client's tag, the time limit, and runs that the
// loop has forgotten. PID 1 has a Book behind its control API. A program without PID 1 makes a Book with package local.
//
// A tag starts at most one process, however often a client asks. A run has ended only after all its processes have ended. A Book
// remembers the last [MaxEndedRuns] ended runs. It owns one goroutine, which follows the loop until the loop ends, and a timer
// for each run with a time limit.
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

// MaxEndedRuns is the number of ended runs that a Book remembers.
const MaxEndedRuns = 1000

// maxLive is the maximum number of living runs. The number is limited, because each run is a service of the supervisor. A caller other
// than root may have half of them.
const maxLive = 256

// checkRoom returns an error if too many runs are alive for another run of a caller. The caller of checkRoom holds b.mu.
func (b *Book) checkRoom(caller string) error {
	mine := 0
	for _, e := range b.live {
		if caller != "" && e.caller == caller {
			mine++
		}
	}
	if len(b.live) < maxLive && mine < maxLive/2 {
		return nil
	}
	return &client.Error{Kind: client.KindBusy, Message: fmt.Sprintf("%d runs are alive, %d of this caller; the limits are %d and %d; end some, or wait", len(b.live), mine, maxLive, maxLive/2)}
}

// Loop is the part of [supervisor.Loop] that a Book uses.
type Loop interface {
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Do(ctx context.Context, e supervisor.Event) error
	Post(e supervisor.Event)
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	Ended() <-chan struct{}
}

// StartRequest describes a run to start.
type StartRequest struct {
	Tag, Template, Profile string
	Spec                   proc.Spec
	Output                 *os.File // standard output and error; the Book closes it. nil means /dev/null
	Log                    string   // path of Output, for people
	Limit                  time.Duration
	Grace                  time.Duration
	Caller                 string // the client whose runs are counted together; "" is root, which has no limit of its own
}

// Book holds the runs of one supervisor. Its methods may be called from any goroutine.
type Book struct {
	mu       sync.Mutex
	loop     Loop
	instance string // random; makes the IDs of runs differ from IDs in other containers
	next     uint64
	seq      uint64
	live     map[string]*entry // living runs, by ID
	byTag    map[string]*entry
	ended    []*entry // ended runs, oldest first
	changed  chan struct{}
}

// entry is a run, with fields that only the book uses.
type entry struct {
	client.Run

	caller  string
	limit   time.Duration
	timer   *time.Timer
	output  *os.File
	starts  chan struct{} // closed when the process is running or has failed to start
	started bool
	err     error
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{instance: rand.Text()[:8], live: make(map[string]*entry), byTag: make(map[string]*entry), changed: make(chan struct{})}
}

// Attach connects the book to its supervisor loop, and starts to follow the loop's events. Call it once, before the first run.
func (b *Book) Attach(loop Loop) {
	b.mu.Lock()
	b.loop = loop
	for _, e := range b.live {
		b.startTimer(e)
	}
	b.mu.Unlock()
	guard.Go("following the runs", b.recordEnds)
}

// namePrefix is the prefix of the names of runs in the supervisor. No service of hinit.yaml and no service directory can have
// such a name.
const namePrefix = "run/"

// Owns reports whether the name of a service belongs to a run.
func Owns(service string) bool { return strings.HasPrefix(service, namePrefix) }

// CheckTag returns the reason why a tag is invalid, or "" if it is valid.
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

// Start starts a run. It returns when the process is running or has failed to start; then Run.End has the reason. If the book
// already has a run with the tag, Start returns that run and starts none.
func (b *Book) Start(ctx context.Context, o StartRequest) (client.Run, error) {
	b.mu.Lock()
	if e := b.byTag[o.Tag]; e != nil {
		b.mu.Unlock()
		_ = o.Output.Close() // no data was written to the file
		return b.awaitStart(ctx, e)
	}
	if err := b.checkRoom(o.Caller); err != nil {
		b.mu.Unlock()
		_ = o.Output.Close()
		return client.Run{}, err
	}
	b.next++
	e := &entry{
		Run: client.Run{
			ID: b.instance + "-" + strconv.FormatUint(b.next, 10), Tag: o.Tag, Template: o.Template, Profile: o.Profile,
			Service: namePrefix + o.Tag, Log: o.Log, StartedAt: time.Now(),
		},
		caller: o.Caller, limit: o.Limit, output: o.Output, starts: make(chan struct{}),
	}
	b.live[e.ID], b.byTag[e.Tag] = e, e
	b.mu.Unlock()
	err := b.loop.Register(context.WithoutCancel(ctx), supervisor.Unit{
		Name: e.Service, Profile: o.Profile, Kind: supervisor.KindRun, Spec: o.Spec, Log: o.Log,
		Policy: supervisor.Policy{SingleRun: true, StopSignal: int(unix.SIGTERM), Grace: o.Grace},
	}, supervisor.WantUp)
	b.mu.Lock()
	e.started, e.err = true, err
	_ = o.Output.Close() // the run's process has its own copy of the file
	e.output = nil
	over := false
	if err != nil {
		delete(b.live, e.ID)
		delete(b.byTag, e.Tag)
	} else {
		over = b.compareRun(e, b.loop.Snapshot().Find(e.Service))
		b.startTimer(e)
		b.wakeWaiters(e)
	}
	out := e.Run
	close(e.starts)
	b.mu.Unlock()
	if over {
		b.loop.Post(supervisor.Remove{Name: out.Service}) // without b.mu, because Post waits for the loop
	}
	return out, err
}

// awaitStart waits until the call of Start that created the run has started it.
func (b *Book) awaitStart(ctx context.Context, e *entry) (client.Run, error) {
	if !pause.Until(ctx, e.starts) {
		return client.Run{}, context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.Run, e.err
}

// Pipes implements supervisor.LogSink for services that are runs, see [Owns]. It does not block.
func (b *Book) Pipes(service string) (stdout, stderr *os.File, err error) {
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

// startTimer starts the timer for the time limit of a run. The caller holds b.mu.
func (b *Book) startTimer(e *entry) {
	if e.limit > 0 && e.End == nil && e.timer == nil {
		e.timer = time.AfterFunc(time.Until(e.StartedAt.Add(e.limit)), guard.Func("ending a run", func() {
			_, _ = b.stop(context.Background(), e.ID, client.RunTimedOut) // fails only if the supervisor has ended
		}))
	}
}

// Stop asks the supervisor to end a run, and does not wait for the end. The supervisor sends SIGTERM to the run's process, then
// to its descendants, and SIGKILL to all of them after the grace period. Stop does nothing to a run that has ended.
func (b *Book) Stop(ctx context.Context, id string) (client.Run, error) {
	return b.stop(ctx, id, client.RunStopped)
}

func (b *Book) stop(ctx context.Context, id, why string) (client.Run, error) {
	b.mu.Lock()
	e := b.live[id]
	if e == nil {
		defer b.mu.Unlock()
		return b.find(id)
	}
	e.Asked = cmp.Or(e.Asked, why)
	b.mu.Unlock()
	err := b.loop.Do(ctx, supervisor.Stop{Name: e.Service})
	if errors.Is(err, supervisor.ErrUnknown) { // the run has just ended
		err = nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.Run, err
}

// Find returns the run with the given ID.
func (b *Book) Find(id string) (client.Run, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.find(id)
}

func (b *Book) find(id string) (client.Run, error) {
	if e := b.live[id]; e != nil {
		return e.Run, nil
	}
	if i := slices.IndexFunc(b.ended, func(e *entry) bool { return e.ID == id }); i >= 0 {
		return b.ended[i].Run, nil
	}
	return client.Run{}, &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("no such run %q; the last %d that have ended are remembered", id, MaxEndedRuns)}
}

// Since returns the runs that began or ended after a cursor, in that order, and the next cursor. Cursor 0 is before all runs.
func (b *Book) Since(cursor uint64) ([]client.Run, uint64) {
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
	return out, b.seq
}

// News returns a channel that is closed when a run begins or ends. Call News before Since, or a change between the two
// calls is missed.
func (b *Book) News() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Unique returns a different text at each call, which a client can use as a tag.
func (b *Book) Unique() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	return b.instance + "-" + strconv.FormatUint(b.next, 10)
}

// wakeWaiters sets the Seq of a run that has begun or ended to the next number, and wakes the callers of News. The caller holds
// b.mu.
func (b *Book) wakeWaiters(e *entry) {
	b.seq++
	e.Seq = b.seq
	close(b.changed)
	b.changed = make(chan struct{})
}

// recordEnds records the ends of runs, until the supervisor's loop ends.
func (b *Book) recordEnds() {
	for {
		news := b.loop.News()
		b.compareAll()
		select {
		case <-news:
		case <-b.loop.Ended():
			b.compareAll()
			return
		}
	}
}

// compareAll compares all live runs with the current snapshot of the supervisor, and records which of them have ended. It takes
// the snapshot under b.mu, because an older snapshot could lack a run that was just started.
func (b *Book) compareAll() {
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
			if e.started && b.compareRun(e, views[e.Service]) {
				over = append(over, e.Service)
			}
		}
	}
	b.mu.Unlock()
	for _, service := range over {
		b.loop.Post(supervisor.Remove{Name: service})
	}
}

// compareRun compares a run with its service v in the supervisor, and records the run's process or its end. It reports whether
// the supervisor should forget the run. The caller holds b.mu.
func (b *Book) compareRun(e *entry, v *supervisor.Service) (over bool) {
	switch {
	case e.End != nil:
		return false
	case v == nil: // the supervisor has dropped the run at the shutdown of the container
		e.End = &client.RunEnd{Lost: true, Exit: client.Exit{At: time.Now(), Cause: string(supervisor.CauseShutdown), Tail: []string{}}}
	case v.State == supervisor.Down && v.LastExit != nil:
		x := v.LastExit
		e.End = &client.RunEnd{Exit: x.Wire(), OOM: x.Cause == supervisor.CauseOOM, CPUSeconds: x.CPU.Seconds(), MaxRSS: x.MaxRSS}
		over = true
	default:
		if v.PID != 0 && e.PID == 0 {
			e.PID = v.PID
			e.StartTicks, _ = proc.StartTicks(v.PID)
		}
		return false
	}
	e.PID = cmp.Or(e.PID, e.End.PID)
	if e.Asked == "" && e.End.Cause == string(supervisor.CauseShutdown) {
		e.Asked = client.RunShutdown
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

// shortenTexts cuts the texts that a client chose and that the book keeps after a run has ended.
func (e *entry) shortenTexts() {
	e.Log, e.Profile = supervisor.Shorten(e.Log), supervisor.Shorten(e.Profile)
	if e.End != nil {
		e.End.Error = supervisor.Shorten(e.End.Error)
	}
}

// moveToEnded moves a run to the ended runs, and drops the oldest one if there are more than MaxEndedRuns. The caller holds b.mu.
func (b *Book) moveToEnded(e *entry) {
	e.shortenTexts()
	delete(b.live, e.ID)
	b.ended = append(b.ended, e)
	if len(b.ended) > MaxEndedRuns {
		delete(b.byTag, b.ended[0].Tag)
		b.ended = slices.Delete(b.ended, 0, 1)
	}
}
