package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/internal/guard"
	"hinit/internal/proc"
)

// Errors of the calls that talk to the loop.
var (
	ErrUnknown  = errors.New("no such service")
	ErrStopping = errors.New("the container is stopping")
	ErrCmd      = errors.New("it is the container's CMD, which runs once")
)

// Spawner starts, signals and buries processes. [proc.Table] is the real one. Only the loop calls it, and none of its
// calls may wait for anything but the kernel.
type Spawner interface {
	// Spawn starts a process; its run is known by spec.ID from then on.
	Spawn(spec proc.Spec) (pid int, err error)
	// Observe looks at the processes of a run, so that they are known after they have lost their parents.
	Observe(id uint64)
	// Signal signals the main process of a run.
	Signal(id uint64, signal int) error
	// SignalGroup signals the process group that the main process of a run leads, as long as that process is not buried.
	SignalGroup(id uint64, signal int) error
	// SignalTree signals every process of a run and returns how many it found.
	SignalTree(id uint64, signal int) int
	// SignalRest signals every descendant.
	SignalRest(signal int)
	// Reap buries every child that has ended, reports each, and says whether no child is left. With trees it also finds
	// out what an ended main process left behind.
	Reap(trees bool, each func(proc.Exit)) (childless bool)
	// Gone reports which of the given runs have no living process.
	Gone(ids []uint64) []uint64
	// Forget drops what is known of a run.
	Forget(id uint64)
}

// LogSink gives processes their standard output and error. The calls must not block.
type LogSink interface {
	// Pipes returns the write ends for the next run of a service. The loop closes them after the spawn.
	Pipes(name string) (stdout, stderr *os.File, err error)
	// Tail calls done, from another goroutine, with the last lines of the service once what it wrote so far is read.
	Tail(name string, done func(lines []string))
}

// Unit is a service as the loop runs it.
type Unit struct {
	Name    string
	Profile string
	Kind    Kind
	Policy  Policy
	Spec    proc.Spec // ID, Name and Files are filled in at each start
	Log     string
	Needs   []string

	// Stdio, when it is not nil, is what the process gets as its descriptors 0, 1, 2, ...; nothing of it goes to the log.
	Stdio []*os.File
	// Stdin, Stdout and Stderr take the place of /dev/null and of the pipes of the LogSink, one by one, when Stdio is nil.
	// So does one end of a pipe that this process keeps open while both of the services that it connects are known: neither
	// of them then notices that the other is started anew. The loop hands these files to processes; who made them
	// closes them once the service is dropped. The loop itself closes Stdout only at the end of the container, when the service
	// is down, so that who reads the other end comes to its end.
	Stdin, Stdout, Stderr *os.File

	// NotifyFD, when it is not 0, is the descriptor on which the process says that it is ready: the loop puts the writing
	// end of a pipe there and takes the first newline as the Ready event of that run. At most MaxNotifyFD. Policy.Announces
	// goes with it.
	NotifyFD int

	// Finish makes the finish command of an ended run, for a service with Policy.Finish. It runs like a run of its own, with
	// the same files, and is called in the loop, so it must not block. When the program does not exist, that counts as a
	// finish command that did nothing.
	Finish func(x Exit) proc.Spec
}

// MaxNotifyFD is the highest descriptor a service can be given to say on that it is ready.
const MaxNotifyFD = 1023

// The machine's numbers of signals are this system's: where they are not, this does not compile.
var (
	_ = [1]struct{}{}[sigHup-syscall.SIGHUP]
	_ = [1]struct{}{}[sigInt-syscall.SIGINT]
	_ = [1]struct{}{}[sigQuit-syscall.SIGQUIT]
	_ = [1]struct{}{}[sigKill-syscall.SIGKILL]
	_ = [1]struct{}{}[sigTerm-syscall.SIGTERM]
	_ = [1]struct{}{}[sigCont-syscall.SIGCONT]
	_ = [1]struct{}{}[sigStop-syscall.SIGSTOP]
)

// Config is what a Loop is made of.
type Config struct {
	Procs    Spawner
	Logs     LogSink
	Budget   time.Duration                      // of a container shutdown
	Children <-chan os.Signal                   // SIGCHLD, capacity 1
	Hush     func(bool)                         // stops SIGCHLD, and lets it come again; nil when it can't be stopped; called in the loop
	Signals  <-chan os.Signal                   // the signals OnSignal understands
	OnSignal func(os.Signal) Event              // what a signal means, nil for nothing; called in the loop
	Admit    func(name string, kind Kind) error // why no process of a kind may be started for now; nil for no such rule; called in the loop
	OOMKills func() uint64                      // the container's count of out-of-memory kills; nil when unknown

	// OnPanic is called in the loop's goroutine when the loop has panicked; what it returns is what Run returns. The state is
	// that of before the event that it could not stand, and fit for Export. Nil lets the panic go on.
	OnPanic func(value any, stack []byte) int
}

// Loop owns the machine and everything that changes. Run is its goroutine; all other methods may be called from any
// goroutine.
type Loop struct {
	cfg       Config
	machine   Machine
	units     map[string]*unit
	runs      map[uint64]string    // live or lingering runs → service
	notifiers map[uint64]*notifier // live runs that are not ready yet, or were never done saying so
	lingers   []uint64             // runs whose main process is gone and whose tree is not
	reborn    map[uint64]int       // of these: how many orphans of it have been buried
	requests  chan request
	ended     chan struct{}
	code      int
	done      bool
	orphans   atomic.Uint64
	flood     flood
	oomKills  uint64
	changed   []*unit // since the last snapshot, each once
	dropped   bool    // a service is gone since then
	undo      undo
	resumed   []Event // what has to be said about the time before this image, once it runs

	snapshot atomic.Pointer[Snapshot]
	news     bell
	history  Ring
}

type unit struct {
	Unit
	ran     proc.Spec // what the last run was started as
	drifted bool      // Spec says something else by now
	finish  uint64    // run of the finish command last started
	view    *Service
	place   int // of the view in the snapshot
	dirty   bool
}

type request struct {
	event Event
	unit  *Unit  // for Add
	call  func() // instead of an event
	reply chan error
}

// NewLoop returns a loop that is not running yet.
func NewLoop(cfg Config) *Loop {
	l := &Loop{
		cfg:       cfg,
		machine:   Machine{Budget: cfg.Budget, Random: rand.Float64},
		units:     make(map[string]*unit),
		runs:      make(map[uint64]string),
		notifiers: make(map[uint64]*notifier),
		reborn:    make(map[uint64]int),
		requests:  make(chan request, 64),
		ended:     make(chan struct{}),
	}
	l.snapshot.Store(&Snapshot{})
	if cfg.OOMKills != nil {
		l.oomKills = cfg.OOMKills()
	}
	return l
}

// Snapshot returns the state of all services. It never blocks.
func (l *Loop) Snapshot() *Snapshot { return l.snapshot.Load() }

// News returns a channel that is closed when the snapshot changes. Take it before looking at the snapshot.
func (l *Loop) News() <-chan struct{} { return l.news.wait() }

// History returns the event history. A record comes into it when the snapshot shows what it tells.
func (l *Loop) History() *Ring { return &l.history }

// Orphans returns how many processes were buried that nobody owned. It never blocks.
func (l *Loop) Orphans() uint64 { return l.orphans.Load() }

// Ended returns a channel that is closed when Run is about to return.
func (l *Loop) Ended() <-chan struct{} { return l.ended }

// Do hands an event to the loop and waits until it has been taken in: the snapshot shows its effect when Do returns. The
// error is ErrUnknown or ErrCmd for a command that has no target, ErrStopping once the container is shutting down, or
// that of ctx.
func (l *Loop) Do(ctx context.Context, e Event) error { return l.ask(ctx, request{event: e}) }

// Register adds a service, or replaces the definition of a known one for its next start.
func (l *Loop) Register(ctx context.Context, u Unit, want Want) error {
	return l.ask(ctx, request{event: Add{u.Name, u.Policy, want, u.Needs}, unit: &u})
}

// RegisterSoon is Register for one of many: it waits only while the loop's inbox is full, and the function that it returns
// waits for the answer. Services are added in the order of the calls.
func (l *Loop) RegisterSoon(ctx context.Context, u Unit, want Want) (answer func() error) {
	return l.hand(ctx, request{event: Add{u.Name, u.Policy, want, u.Needs}, unit: &u})
}

func (l *Loop) ask(ctx context.Context, r request) error { return l.hand(ctx, r)() }

// hand puts a request into the inbox and returns what waits for its answer.
func (l *Loop) hand(ctx context.Context, r request) (answer func() error) {
	r.reply = make(chan error, 1)
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
			return ErrStopping
		case <-ctx.Done():
			return fmt.Errorf("cannot get an answer of the supervisor: %w", context.Cause(ctx))
		}
	}
}

// Post hands an event to the loop without waiting for its effect. It waits only while the loop's inbox is full, and
// gives up when the loop has ended.
func (l *Loop) Post(e Event) {
	select {
	case l.requests <- request{event: e}:
	case <-l.ended:
	}
}

// batch is how many more pending inputs one turn takes in before it publishes.
const batch = 64

// Run supervises until the container has been shut down and returns its exit code. It must be called once.
func (l *Loop) Run() (code int) {
	defer close(l.ended)
	defer func() {
		for _, n := range l.notifiers {
			n.end()
		}
	}()
	if l.cfg.OnPanic != nil {
		defer func() {
			if p := recover(); p != nil {
				stack := debug.Stack()
				l.undo.apply(&l.machine)
				l.history.show()
				code = l.cfg.OnPanic(p, stack)
			}
		}()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for _, e := range l.resumed {
		l.step(e)
	}
	l.resumed = nil
	l.reap() // processes may have ended before anybody listened
	var answers []request
	for {
		for i := 0; i < batch && !l.done; i++ {
			select {
			case r := <-l.requests:
				answers = l.take(r, answers)
				continue
			case <-l.cfg.Children:
				l.reap()
				continue
			case s := <-l.cfg.Signals:
				l.signal(s)
				continue
			default:
			}
			break
		}
		if at, ok := l.machine.Deadline(); ok && !l.done && !time.Now().Before(at) {
			l.step(Tick{})
		}
		if l.flood.on && !l.done && !time.Now().Before(l.flood.next) {
			l.reap()
		}
		l.publish()
		for _, r := range answers {
			r.reply <- nil
		}
		answers = answers[:0]
		if l.done {
			return l.code
		}
		var alarm <-chan time.Time
		if at, ok := l.alarm(); ok {
			timer.Reset(time.Until(at))
			alarm = timer.C
		} else {
			timer.Stop()
		}
		select {
		case r := <-l.requests:
			answers = l.take(r, answers)
		case <-l.cfg.Children:
			l.reap()
		case s := <-l.cfg.Signals:
			l.signal(s)
		case <-alarm:
			l.step(Tick{})
		}
	}
}

// alarm returns when something is to be done though nothing happens.
func (l *Loop) alarm() (time.Time, bool) {
	at, ok := l.machine.Deadline()
	if l.flood.on && (!ok || l.flood.next.Before(at)) {
		return l.flood.next, true
	}
	return at, ok
}

// take carries a request out. A good one is answered after the snapshot shows it, a bad one at once.
func (l *Loop) take(r request, answers []request) []request {
	if r.call != nil {
		r.call()
		return append(answers, r)
	}
	err := l.admit(r)
	switch {
	case err == nil:
		if r.unit != nil {
			if known := l.units[r.unit.Name]; known != nil {
				known.Unit = *r.unit
				known.drifted = !known.Spec.Same(known.ran)
			} else {
				l.units[r.unit.Name] = &unit{Unit: *r.unit}
			}
			l.touch(l.units[r.unit.Name])
		}
		l.step(r.event)
		if r.reply != nil {
			answers = append(answers, r)
		}
	case r.reply != nil:
		r.reply <- err
	}
	return answers
}

func (l *Loop) admit(r request) error {
	name := r.event.about()
	switch r.event.(type) {
	case Start, Stop, Restart, Once, Unwant, Pause, Continue, SignalMain, Remove, Inputs:
		u := l.units[name]
		switch {
		case u == nil:
			return ErrUnknown
		case u.Policy.Once:
			return ErrCmd
		case l.machine.Stopping():
			return ErrStopping
		}
	case Add:
		if r.unit == nil {
			return ErrUnknown
		}
		if l.machine.Stopping() {
			return ErrStopping
		}
	}
	return nil
}

func (l *Loop) signal(s os.Signal) {
	if e := l.cfg.OnSignal(s); e != nil {
		l.step(e)
	}
}

// step feeds the machine and carries out what it asks for, including what follows from that.
func (l *Loop) step(e Event) {
	var follow []Event
	l.undo.prepare(&l.machine, e)
	actions := l.machine.Step(time.Now(), e)
	l.undo.done()
	for _, a := range actions {
		switch a := a.(type) {
		case Spawn:
			follow = append(follow, l.spawn(a))
		case SpawnFinish:
			follow = append(follow, l.spawnFinish(a))
		case Signal:
			if !l.machine.Stopping() { // the end of the container takes everything anyway
				l.cfg.Procs.Observe(a.Run)
			}
			// A main process that has ended and is not buried yet takes the signal silently; its exit follows.
			_ = l.cfg.Procs.Signal(a.Run, a.Signal)
			if a.Wake {
				_ = l.cfg.Procs.Signal(a.Run, sigCont)
			}
		case SignalGroup:
			_ = l.cfg.Procs.SignalGroup(a.Run, a.Signal)
		case SignalTree:
			if l.cfg.Procs.SignalTree(a.Run, a.Signal) == 0 {
				follow = append(follow, Gone{a.Name, a.Run})
			} else if n := l.reborn[a.Run]; n > 0 && a.Signal == sigKill {
				follow = append(follow, Reborn{a.Name, a.Run, n})
			}
		case SignalRest:
			l.cfg.Procs.SignalRest(a.Signal)
		case Changed:
			if u := l.units[a.Name]; u != nil {
				l.touch(u)
			}
		case Note:
			l.history.add(a.Record)
		case Dropped:
			delete(l.units, a.Name)
			l.dropped = true
		case Release:
			if u := l.units[a.Name]; u != nil && u.Stdout != nil {
				_ = u.Stdout.Close() // nothing was written here; its owner may have closed it
			}
		case End:
			l.done, l.code = true, a.Code
		}
	}
	for _, e := range follow {
		l.step(e)
	}
	if l.machine.phase == sweeping && !l.machine.swept && !l.done {
		l.reap()
	}
}

// spawn starts a run.
func (l *Loop) spawn(a Spawn) Event {
	u := l.units[a.Name]
	if l.cfg.Admit != nil {
		if err := l.cfg.Admit(a.Name, u.Kind); err != nil {
			return SpawnFailed{Name: a.Name, Error: err.Error(), Passing: true, Code: 126}
		}
	}
	var notify *notifier
	if u.NotifyFD != 0 {
		var err error
		if notify, err = newNotifier(u.NotifyFD); err != nil {
			return SpawnFailed{Name: a.Name, Error: err.Error(), Code: 126}
		}
		defer notify.started()
	}
	u.ran, u.drifted = u.Spec, false
	answer := l.launch(u, a.Run, u.Spec, oomAdj[u.Kind], notify)
	if _, up := answer.(Spawned); up && notify != nil {
		l.notifiers[a.Run] = notify
		guard.Go("waiting for readiness", func() { notify.listen(func() { l.Post(Ready{a.Name, a.Run, true, ""}) }) })
	} else {
		notify.end()
	}
	return answer
}

// spawnFinish starts the finish command of a run.
func (l *Loop) spawnFinish(a SpawnFinish) Event {
	u := l.units[a.Name]
	if u.Finish == nil {
		return SpawnFailed{Name: a.Name, Error: "none is defined", Code: 127}
	}
	u.finish = a.Run
	return l.launch(u, a.Run, u.Finish(a.Exit), oomCheap, nil)
}

// launch starts a process of a service. The error tells the command and, where it may be at fault, the directory.
func (l *Loop) launch(u *unit, run uint64, spec proc.Spec, oom int, notify *notifier) Event {
	files, own, err := l.files(u)
	if err != nil {
		return SpawnFailed{Name: u.Name, Error: err.Error(), Code: 126}
	}
	defer closeAll(own...)
	spec.ID, spec.Name, spec.Files, spec.OOM = run, u.Name, notify.among(files), oom
	pid, err := l.cfg.Procs.Spawn(spec)
	if err != nil {
		failed := SpawnFailed{Name: u.Name, Error: err.Error(), Code: 126}
		if bad := (*proc.SpawnError)(nil); errors.As(err, &bad) {
			failed.Code, failed.Permanent, failed.Passing = bad.ShellCode(), bad.Permanent(), bad.Passing()
		}
		return failed
	}
	l.runs[run] = u.Name
	return Spawned{u.Name, pid}
}

// files returns what a process of the unit gets as its descriptors, and those of them that are to be closed after the
// start.
func (l *Loop) files(u *unit) (files, own []*os.File, err error) {
	if u.Stdio != nil {
		return u.Stdio, nil, nil
	}
	stdout, stderr := u.Stdout, u.Stderr
	if stdout == nil || stderr == nil {
		out, errs, err := l.cfg.Logs.Pipes(u.Name)
		if err != nil {
			return nil, nil, err
		}
		own = []*os.File{out, errs}
		if stdout == nil {
			stdout = out
		}
		if stderr == nil {
			stderr = errs
		}
	}
	return []*os.File{u.Stdin, stdout, stderr}, own, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // our copies of pipe ends: nothing was written through them
		}
	}
}

// reap buries what has ended and tells the machine.
func (l *Loop) reap() {
	before := l.orphans.Load()
	childless := l.cfg.Procs.Reap(!l.machine.Stopping(), l.exited)
	if l.cfg.Hush != nil && l.flood.reaped(time.Now(), int(l.orphans.Load()-before), !l.machine.Stopping()) {
		l.cfg.Hush(l.flood.on)
		if !l.flood.on { // who ended before the signal came again was not announced
			childless = l.cfg.Procs.Reap(!l.machine.Stopping(), l.exited)
		}
	}
	if len(l.lingers) > 0 {
		for _, id := range l.cfg.Procs.Gone(l.lingers) {
			l.forget(id)
		}
	}
	if childless && l.machine.Stopping() {
		l.step(Swept{})
	}
}

func (l *Loop) exited(x proc.Exit) {
	name, owned := l.runs[x.ID]
	if !owned {
		l.orphans.Add(1)
		if x.Of != 0 {
			l.reborn[x.Of]++
		}
		return
	}
	u := l.units[name]
	e := Exited{Name: name, PID: x.PID, Code: x.Code, Signal: x.Signal, Leftover: x.Leftover, Strays: listed(x.Strays)}
	if l.cfg.OOMKills != nil { // at every exit, so that a kill that was another's is not taken for a later one's
		kills := l.cfg.OOMKills()
		e.OOM = x.Signal == 9 && kills > l.oomKills
		l.oomKills = kills
	}
	if x.Leftover {
		l.lingers = append(l.lingers, x.ID)
	} else {
		delete(l.runs, x.ID)
		l.cfg.Procs.Forget(x.ID)
	}
	if n := l.notifiers[x.ID]; n != nil {
		delete(l.notifiers, x.ID)
		n.end()
	}
	if u != nil && u.Stdio == nil && u.finish != x.ID { // before the step, which may start the next run
		id := x.ID
		l.cfg.Logs.Tail(name, func(lines []string) { l.Post(Tailed{name, id, lines}) })
	}
	l.step(e)
}

// listed writes process numbers for people, the first few where there are many.
func listed(pids []int) string {
	const most = 8
	var b strings.Builder
	for i, pid := range pids[:min(len(pids), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(pid))
	}
	if n := len(pids) - most; n > 0 {
		b.WriteString(" and " + strconv.Itoa(n) + " more")
	}
	return b.String()
}

// forget ends a lingering run: nothing of it is alive any more.
func (l *Loop) forget(id uint64) {
	name := l.runs[id]
	delete(l.runs, id)
	delete(l.reborn, id)
	for i, other := range l.lingers {
		if other == id {
			l.lingers = append(l.lingers[:i], l.lingers[i+1:]...)
			break
		}
	}
	l.cfg.Procs.Forget(id)
	l.step(Gone{name, id})
}

// publish makes what has changed visible to readers: what it is now, and then what has happened.
func (l *Loop) publish() {
	l.publishState()
	l.history.show()
}

func (l *Loop) publishState() {
	old, order := l.snapshot.Load(), l.machine.order
	if len(l.changed) == 0 && !l.dropped && old.Stopping == l.machine.Stopping() {
		return
	}
	next := &Snapshot{Services: make([]*Service, len(order)), Stopping: l.machine.Stopping()}
	kept := copy(next.Services, old.Services)
	if l.dropped {
		kept = 0 // others have moved up
	}
	for i, s := range order[kept:] {
		u := l.units[s.name]
		u.place = kept + i
		if u.dirty || u.view == nil {
			u.view, u.dirty = s.snapshot(u), false
		}
		next.Services[u.place] = u.view
	}
	for _, u := range l.changed {
		if s := l.machine.services[u.Name]; u.dirty && s != nil && l.units[u.Name] == u {
			u.view = s.snapshot(u)
			next.Services[u.place] = u.view
		}
		u.dirty = false
	}
	clear(l.changed)
	l.changed, l.dropped = l.changed[:0], false
	l.snapshot.Store(next)
	l.news.ring()
}

// touch says that the view of a unit is out of date.
func (l *Loop) touch(u *unit) {
	if !u.dirty {
		u.dirty = true
		l.changed = append(l.changed, u)
	}
}
