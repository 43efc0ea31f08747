package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/proc"
)

// Errors of commands that the loop refuses.
var (
	ErrUnknown        = errors.New("no such service")
	ErrStopping       = errors.New("the container is stopping")
	ErrIsCMD          = errors.New("it is the container's CMD, which runs once")
	ErrReservedSignal = errors.New("only hinit sends it this signal, when nothing else of the container is alive")
	ErrForeignProcess = errors.New("it is no process of the service")
)

// Spawner starts, signals and reaps processes, see [proc.Table] for each method. Only the loop calls it. Its methods may wait
// for the kernel, but not for a disk, a pipe or another goroutine.
type Spawner interface {
	Spawn(spec proc.Spec) (pid int, err error)
	RecordMembers(id uint64)
	RunOf(pid int) (id uint64)
	Signal(id uint64, signal int) error
	SignalGroup(id uint64, signal int) error
	SignalTree(id uint64, signal int) (found int)
	SignalDescendants(signal int)
	Reap(trees bool, each func(proc.Exit)) (childless bool)
	CheckForTracer(pids ...int)
	EndedRuns(ids []uint64) []uint64
	Forget(id uint64)
}

// LogSink provides the pipes for the output of services, and the last lines that came through them. Its methods must not
// block.
type LogSink interface {
	// Pipes returns the write ends for the next run of a service. The loop closes them after the start of the process.
	Pipes(name string) (stdout, stderr *os.File, err error)
	// Tail asks for the last lines of a service's output, and returns immediately. When hinit has read everything that the
	// service has written so far, another goroutine calls done with these lines.
	Tail(name string, done func(lines []string))
}

// Config configures a [Loop]. The loop calls its functions in the loop's goroutine, so they must not block.
type Config struct {
	Procs          Spawner
	Logs           LogSink
	ShutdownBudget time.Duration         // time limit of a container shutdown
	MaxStarting    int                   // how many services with Policy.LimitedStarts may be starting at the same time; 0 for no limit
	ExtraStarting  int                   // added to MaxStarting after one of the starting services has become ready
	SIGCHLD        <-chan os.Signal      // channel that delivers SIGCHLD; its capacity is 1
	MuteSIGCHLD    func(bool)            // function that turns SIGCHLD off (true) or on (false); nil if that is impossible
	Signals        <-chan os.Signal      // signals for OnSignal
	OnSignal       func(os.Signal) Event // function that returns the event for a signal, or nil to ignore the signal
	// function whose error refuses the start of a main process; nil allows all starts
	CheckStart func(name string, kind Kind) error
	// function that counts the out-of-memory kills in the container; nil if the kernel does not count them
	OOMKills func() uint64

	// OnPanic, if not nil, is called in the loop's goroutine after a panic, and Run returns its result. The machine then has the
	// state from before the failed event, so OnPanic may call HandOver and re-execute PID 1. If OnPanic is nil, the panic
	// continues.
	OnPanic func(value any, stack []byte) int
}

// Loop owns the machine and all other changing state of the supervisor. Run is the loop itself. Any goroutine may call a
// method, unless the method's comment restricts the callers.
type Loop struct {
	cfg            Config
	machine        Machine
	units          map[string]*unit
	runs           map[uint64]string
	readinessPipes map[uint64]*readinessPipe // pipes of live runs that have not reported readiness, by run number
	lingeringRuns  []uint64                  // runs whose main process has ended, but not all descendants
	orphansEnded   map[uint64]int            // number of reaped orphans of each lingering run
	requests       chan request
	ended          chan struct{} // closed when Run is about to return
	exitCode       int
	shutdownDone   bool
	orphans        atomic.Uint64 // number of reaped processes that belonged to no run
	flood          orphanFlood
	oomKills       oomKillSamples
	undo           stepUndo
	firstEvents    []Event
	commandAuthor  *client.Author // client whose command the next step carries out; nil for none

	// The rest belongs to the snapshot.

	snapshot        atomic.Pointer[Snapshot]
	snapshotChanges broadcast
	history         Ring
	changed         []*unit // units that changed since the last snapshot, each once
	serviceDropped  bool
}

// request is a message from another goroutine to the loop. The loop replies when the snapshot shows the effect.
type request struct {
	event  Event
	unit   *Unit
	call   func() // function for the loop to call, instead of an event
	reply  chan error
	author *client.Author
}

type authorKey struct{}

// WithAuthor returns a context for the requests of a client. The history names this client as the author of all commands given
// with the context.
func WithAuthor(ctx context.Context, by *client.Author) context.Context {
	return context.WithValue(ctx, authorKey{}, by)
}

// AuthorOf returns the client that WithAuthor has stored in the context, or nil.
func AuthorOf(ctx context.Context) *client.Author {
	by, _ := ctx.Value(authorKey{}).(*client.Author)
	return by
}

// NewLoop returns a loop. Register services, then call Run.
func NewLoop(cfg Config) *Loop {
	l := &Loop{
		cfg:            cfg,
		machine:        Machine{ShutdownBudget: cfg.ShutdownBudget, Random: rand.Float64, MaxStarting: cfg.MaxStarting, ExtraStarting: cfg.ExtraStarting},
		units:          make(map[string]*unit),
		runs:           make(map[uint64]string),
		readinessPipes: make(map[uint64]*readinessPipe),
		orphansEnded:   make(map[uint64]int),
		requests:       make(chan request, 64),
		ended:          make(chan struct{}),
	}
	l.snapshot.Store(&Snapshot{})
	if cfg.OOMKills != nil {
		l.oomKills.explainedUpTo = cfg.OOMKills()
	}
	return l
}

// Snapshot returns the current state of all services. It never blocks.
func (l *Loop) Snapshot() *Snapshot { return l.snapshot.Load() }

// Changed returns a channel that is closed when the snapshot changes. Call it before Snapshot. Otherwise a change between the
// two calls wakes no reader.
func (l *Loop) Changed() <-chan struct{} { return l.snapshotChanges.wait() }

// History returns the event history. The snapshot shows a change before the history has the record of the change.
func (l *Loop) History() *Ring { return &l.history }

// Orphans returns the number of orphans that PID 1 has reaped. It never blocks.
func (l *Loop) Orphans() uint64 { return l.orphans.Load() }

// Ended returns a channel that is closed when Run is about to return. From then on every command fails with ErrStopping.
func (l *Loop) Ended() <-chan struct{} { return l.ended }

// Do hands an event to the loop, and waits until the snapshot shows its effect. The error is ErrUnknown for an unknown
// service, ErrStopping during a shutdown, or the error of ctx. For a command that the service does not accept, it is ErrIsCMD
// or ErrReservedSignal.
func (l *Loop) Do(ctx context.Context, e Event) error { return l.sendRequest(ctx, request{event: e}) }

// ReapNow reaps all processes that have ended by now, and waits until the snapshot shows their exits. dead lists main processes
// that look dead. ReapNow examines these itself, because the kernel does not report the end of a process that a tracer
// (ptrace(2)) holds. The errors are the same as for Do.
func (l *Loop) ReapNow(ctx context.Context, dead ...int) error {
	return l.sendRequest(ctx, request{call: func() { l.cfg.Procs.CheckForTracer(dead...); l.reap() }})
}

// Register adds a service, or replaces the definition of a known service. A running process keeps its old definition.
func (l *Loop) Register(ctx context.Context, u Unit, want Want) error {
	return l.RegisterSoon(ctx, &u, want)()
}

// RegisterSoon queues the registration of a service, and returns immediately. The returned function blocks until the service
// is registered. The loop keeps u, so the caller must not change u afterwards. Services are registered in the order of the
// calls.
func (l *Loop) RegisterSoon(ctx context.Context, u *Unit, want Want) (answer func() error) {
	return l.enqueue(ctx, request{event: Add{u.Name, &u.Policy, want, u.Needs, u.HasReadinessChecks}, unit: u})
}

func (l *Loop) sendRequest(ctx context.Context, r request) error { return l.enqueue(ctx, r)() }

// enqueue queues a request for the loop. The returned function blocks until the loop has answered.
func (l *Loop) enqueue(ctx context.Context, r request) (answer func() error) {
	r.reply, r.author = make(chan error, 1), AuthorOf(ctx)
	select {
	case l.requests <- r:
	case <-l.ended:
		return func() error { return ErrStopping }
	case <-ctx.Done():
		return func() error { return fmt.Errorf("cannot reach the supervisor: %w", context.Cause(ctx)) }
	}
	return func() error {
		select {
		case err := <-r.reply:
			return err
		case <-l.ended:
			select {
			case err := <-r.reply:
				return err
			default:
				return ErrStopping
			}
		case <-ctx.Done():
			return fmt.Errorf("cannot get an answer of the supervisor: %w", context.Cause(ctx))
		}
	}
}

// HandleNotify passes an sd_notify message of process pid to the machine, and returns the run of that process. It blocks until
// the loop has handled the message. The error is ErrForeignProcess if pid belongs to no run of the service t.Name, and
// ErrStopping if the loop has ended.
func (l *Loop) HandleNotify(pid int, t NotifyMessage) (run uint64, err error) {
	var stranger error
	err = l.sendRequest(context.Background(), request{call: func() {
		t.Run = l.cfg.Procs.RunOf(pid)
		if t.Run == 0 || l.runs[t.Run] != t.Name {
			stranger = ErrForeignProcess
			return
		}
		l.step(t)
	}})
	return t.Run, cmp.Or(err, stranger)
}

// Post queues an event for the loop without waiting for its effect. It blocks while the queue is full.
func (l *Loop) Post(e Event) {
	select {
	case l.requests <- request{event: e}:
	case <-l.ended:
	}
}

// maxInputsPerSnapshot is how many queued requests and signals the loop handles before it publishes a snapshot. Clients wait for
// the snapshot, and a snapshot for each input would cost too much.
const maxInputsPerSnapshot = 64

// Run supervises the services until the container has been shut down, and returns the exit code for the container. Call it
// only once.
func (l *Loop) Run() (code int) {
	defer close(l.ended)
	defer func() {
		for _, n := range l.readinessPipes {
			n.close()
		}
	}()
	if l.cfg.OnPanic != nil {
		defer func() {
			if p := recover(); p != nil {
				stack := debug.Stack()
				l.undo.undoStep(&l.machine)
				l.history.publish()
				code = l.cfg.OnPanic(p, stack)
			}
		}()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for _, e := range l.firstEvents {
		l.step(e)
	}
	l.firstEvents = nil
	l.reap() // processes may have ended before hinit listened for SIGCHLD
	var answers []request
	for {
		for i := 0; i < maxInputsPerSnapshot && !l.shutdownDone; i++ {
			select {
			case r := <-l.requests:
				answers = l.handleRequest(r, answers)
				continue
			case <-l.cfg.SIGCHLD:
				l.reap()
				continue
			case s := <-l.cfg.Signals:
				l.handleSignal(s)
				continue
			default:
			}
			break
		}
		if at, ok := l.machine.Deadline(); ok && !l.shutdownDone && !time.Now().Before(at) {
			l.step(Tick{})
			l.reap() // a traced process (ptrace) may end without a SIGCHLD
		}
		if l.flood.active && !l.shutdownDone && !time.Now().Before(l.flood.nextReap) {
			l.reap()
		}
		l.publish()
		for _, r := range answers {
			r.reply <- nil
		}
		answers = nil
		if l.shutdownDone {
			return l.exitCode
		}
		var alarm <-chan time.Time
		if at, ok := l.nextDeadline(); ok {
			timer.Reset(time.Until(at))
			alarm = timer.C
		} else {
			timer.Stop()
		}
		select {
		case r := <-l.requests:
			answers = l.handleRequest(r, answers)
		case <-l.cfg.SIGCHLD:
			l.reap()
		case s := <-l.cfg.Signals:
			l.handleSignal(s)
		case <-alarm:
		}
	}
}

// nextDeadline returns the next time at which the loop must act without an input. The result is false if the loop has no
// deadline.
func (l *Loop) nextDeadline() (time.Time, bool) {
	at, ok := l.machine.Deadline()
	if l.flood.active && (!ok || l.flood.nextReap.Before(at)) {
		return l.flood.nextReap, true
	}
	return at, ok
}

// handleRequest executes a request. Run replies to accepted requests after the next snapshot. A refused request gets its reply
// at once.
func (l *Loop) handleRequest(r request, answers []request) []request {
	if r.call != nil {
		r.call()
		return append(answers, r)
	}
	err := l.checkRequest(r)
	switch {
	case err == nil:
		if r.unit != nil {
			u := l.units[r.unit.Name]
			if u == nil {
				u = &unit{Unit: r.unit}
				l.units[r.unit.Name] = u
			}
			u.setDefinition(r.unit)
			l.markChanged(u)
		}
		l.commandAuthor = r.author
		l.step(r.event)
		if r.reply != nil {
			answers = append(answers, r)
		}
	case r.reply != nil:
		r.reply <- err
	}
	return answers
}

// checkRequest returns the error of a command that the loop refuses.
func (l *Loop) checkRequest(r request) error {
	switch r.event.(type) {
	case Start, Stop, Restart, RunOnce, StayDown, Pause, Continue, SignalMain, Remove, InputsChanged:
		u := l.units[r.event.target()]
		if u == nil {
			return ErrUnknown
		}
		if u.Policy.IsCMD {
			return ErrIsCMD
		}
		if e, is := r.event.(SignalMain); is && e.Signal != 0 && e.Signal == u.Policy.DrainSignal {
			return ErrReservedSignal
		}
	case Add:
		if r.unit == nil {
			return ErrUnknown
		}
	default:
		return nil
	}
	if l.machine.Stopping() {
		return ErrStopping
	}
	return nil
}

func (l *Loop) handleSignal(s os.Signal) {
	if e := l.cfg.OnSignal(s); e != nil {
		l.step(e)
	}
}

// step feeds an event to the machine and executes the resulting actions. It then handles the events that the actions have
// caused.
func (l *Loop) step(e Event) {
	var follow []Event
	by := l.commandAuthor
	l.commandAuthor = nil
	l.undo.beginStep(&l.machine)
	actions := l.machine.Step(time.Now(), e)
	l.undo.endStep(&l.machine)
	for _, a := range actions {
		switch a := a.(type) {
		case Spawn:
			follow = append(follow, l.spawn(a))
		case SpawnFinish:
			follow = append(follow, l.spawnFinish(a))
		case SpawnStop:
			follow = append(follow, l.spawnStopCommand(a)...)
		case Signal:
			follow = append(follow, l.signalRun(a)...)
		case SignalDescendants:
			l.cfg.Procs.SignalDescendants(a.Signal)
		case ServiceChanged:
			if u := l.units[a.Name]; u != nil {
				l.markChanged(u)
			}
		case AppendRecord:
			if name := e.target(); name == "" || name == a.Record.Service {
				a.Record.By = by
			}
			if u := l.units[a.Record.Service]; u == nil || u.Kind != KindCheck {
				l.history.add(a.Record)
			}
			if a.Record.Dropped {
				delete(l.units, a.Record.Service)
				l.serviceDropped = true
			}
		case CloseOutput:
			if u := l.units[a.Name]; u != nil && !u.Stdio && u.Files[1] != nil {
				_ = u.Files[1].Close()
			}
		case EndLoop:
			l.shutdownDone, l.exitCode = true, a.Code
		}
	}
	for _, e := range follow {
		l.step(e)
	}
	if l.machine.phase == phaseSweeping && !l.shutdownDone {
		l.reap()
	}
}
