package gateways

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/initlog"
	"hinit/internal/gateways/orders"
	"hinit/internal/guard"
	"hinit/internal/registry"
	"hinit/internal/tuning"
	"hinit/profiles"
	"hinit/supervisor"
)

// jobsKept limits the queue of jobs. When a large container starts, each service adds a job at the same time.
const jobsKept = 8192

// Reconciler keeps profiles and gateways consistent. Its methods may be called from any goroutine.
type Reconciler struct {
	Options

	jobs      chan func() // jobs that wait for the disk, executed one after the other
	orders    *orders.Queues
	inherited Handover // from the program before re-execution
	serving   atomic.Pointer[serving]
	changing  chan struct{} // a lock (capacity 1) for changes of the topology

	mu       sync.Mutex
	gateways map[string]*gateway // by profile
	left     map[profiles.HomeID]departed
	late     lateProfiles
	watcher  watcher
	boot     bootProgress
	stopping time.Time // when the stop of the container began, zero before
}

// watcher follows the profiles on the volume.
type watcher struct {
	*profiles.Watcher // nil before [Reconciler.Start]

	cancel context.CancelFunc
}

// bootProgress says how far the boot has come with the profiles. The registry's Turn guards it.
type bootProgress struct {
	reading chan struct{} // closed when the boot has read the profiles; nil if it doesn't read them
	logged  chan struct{} // closed when the boot log is written; nil if it is not written
}

// Options are the parts that a Reconciler works with. The functions may be called from any goroutine.
type Options struct {
	Registry *registry.Registry
	Logger   *initlog.Logger
	Config   func() *config.Config
	Route    func() *boot.Route
	Store    *profiles.Store
	Intents  *profiles.Intents
	Started  time.Time // when the container was started

	// MayServe returns an error while this init must neither write to the profiles nor start their gateways, because another init
	// may serve them.
	MayServe func() error
	// Adopt gives the files that the gateway of a profile needs to the agent's user. It waits for the disk.
	Adopt func(ctx context.Context, profile string)
	// ReadSecrets sets which values of a profile's .env the console masks in the output of a service. It waits for the disk.
	ReadSecrets func(service, profile string)
	// StateWritten is called when a gateway has written its state file. It does not block.
	StateWritten func(profile string)
}

// New returns a Reconciler. It queues all calls until Start.
func New(o Options) *Reconciler {
	k := &Reconciler{
		Options: o, jobs: make(chan func(), jobsKept),
		gateways: make(map[string]*gateway), left: make(map[profiles.HomeID]departed), changing: make(chan struct{}, 1),
	}
	k.orders = orders.New(orderBackend{k})
	k.serving.Store(new(serving))
	return k
}

// Start begins to watch the volume, where the caller has found the known profiles, and to execute the jobs that
// [Reconciler.Observe] has queued. It ends with ctx.
func (k *Reconciler) Start(ctx context.Context, known []profiles.Profile) {
	notify := func(e profiles.Event) { k.profileEvent(ctx, e) }
	watching, unwatch := context.WithCancel(ctx)
	k.mu.Lock()
	k.watcher = watcher{k.Store.Watch(watching, profiles.WatchOptions{Notify: notify, Known: known}), unwatch}
	if !k.stopping.IsZero() {
		unwatch()
	}
	k.mu.Unlock()
	guard.Go("keeping the profiles", func() {
		for {
			select {
			case job := <-k.jobs:
				job()
			case <-ctx.Done():
				return
			}
		}
	})
}

// Continue is Start after re-execution. It carries out the orders that the old program has not finished.
func (k *Reconciler) Continue(ctx context.Context) {
	k.Start(ctx, k.Registry.Present())
	// The files may have changed since the default profile's gateway was started; then they count from its next start on.
	if k.inherited.Topology == nil {
		if t, err := k.Store.Topology(os.Getenv, ""); err == nil {
			k.serving.Store(&serving{Topology: t, noted: k.defaultRun()})
		}
	}
	k.Catchup()
	for _, o := range k.inherited.Orders {
		k.orders.Submit(o.Verb, o.Service, o.Profile, 0, o.By)
	}
}

// Stop ends the watching of the volume before the container stops. It may be called again.
func (k *Reconciler) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stopping.IsZero() {
		return
	}
	k.stopping = time.Now()
	tuning.DetachInotify()
	if k.watcher.cancel != nil {
		k.watcher.cancel()
	}
}

// Reset forgets everything, because another init serves the profiles now. The watcher ends with the context of [Reconciler.Start].
func (k *Reconciler) Reset() {
	k.Intents.Clear()
	k.mu.Lock()
	defer k.mu.Unlock()
	for drained := false; !drained; {
		select {
		case <-k.jobs:
		default:
			drained = true // the goroutine of the jobs has taken the last job
		}
	}
	clear(k.gateways)
	clear(k.left)
	k.late = lateProfiles{}
	k.serving.Store(new(serving))
	k.Registry.Reset()
}

func (k *Reconciler) isStopping() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.stopping.IsZero()
}

func (k *Reconciler) watch() *profiles.Watcher {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watcher.Watcher
}

// errNotWatching is the error of a scan of the profiles during the boot.
var errNotWatching = errors.New("cannot look at the profiles: the boot is not done yet; try again")

// Rescan makes the gateways consistent with the profiles that are on the volume now.
func (k *Reconciler) Rescan(ctx context.Context) error {
	switch {
	case !k.Route().HasProfiles(), k.MayServe() != nil: // no profile is supervised here
		return nil
	case k.Registry.Snapshot().Stopping:
		return supervisor.ErrStopping
	}
	w := k.watch()
	if w == nil {
		return errNotWatching
	}
	return volumeTimeout(ctx, w.Rescan(ctx))
}

// Find scans for a profile that has just been made, given its name or its gateway's name. A profile's name may look like a
// gateway's.
func (k *Reconciler) Find(ctx context.Context, name string) error {
	if !k.Route().HasProfiles() {
		return nil
	}
	w := k.watch()
	if w == nil {
		return errNotWatching
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		if err := w.Find(ctx, profile); err != nil {
			return volumeTimeout(ctx, err)
		}
	}
	return volumeTimeout(ctx, w.Find(ctx, name))
}

// volumeTimeout replaces a timeout error by the error that the data volume does not answer.
func volumeTimeout(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cannot look at the profiles: the data volume does not answer: %w", context.Cause(ctx))
	}
	return err
}

// Idle reports whether there is no unfinished order.
func (k *Reconciler) Idle() bool { return k.orders.Idle() }

// Command starts, stops or restarts a service. For a gateway it records the operator's intent first. If ctx ends before that is
// done, the error says how far it has come, and the order stays in force. Unless it is a stop, it also makes a slot again that a
// client has removed.
func (k *Reconciler) Command(ctx context.Context, verb client.Verb, service string) error {
	s := k.Registry.Snapshot().Find(service)
	if s != nil && verb != client.VerbStop {
		k.Registry.Restore(ctx, service)
	}
	if s == nil || s.Kind != supervisor.KindGateway {
		return k.Registry.Do(ctx, event(verb, service)) // only gateways have an intent on the volume
	}
	if s.PID == 0 && verb != client.VerbStop && verb != orders.Unwant {
		if err := k.Refuse(service); err != nil {
			return err
		}
		if err := k.awaitFormer(ctx, s.Profile); err != nil {
			return err
		}
	}
	var patience time.Duration
	if end, limited := ctx.Deadline(); limited {
		patience = max(time.Until(end), 1)
	}
	return k.orders.Wait(ctx, k.orders.Submit(verb, service, s.Profile, patience, supervisor.ByOf(ctx)))
}

// orderBackend adapts Reconciler to orders.Backend.
type orderBackend struct{ *Reconciler }

// Record implements orders.Backend: it writes the intent to the volume, and prepares the gateway for its start.
func (k orderBackend) Record(o *orders.Order) (sync func() error, err error) {
	if err := k.MayServe(); err != nil {
		return nil, err
	}
	down := o.Want() != profiles.Running
	if !down && k.Registry.Exists(o.Profile) {
		k.Adopt(context.Background(), o.Profile) // files may have been added since
		if k.Config().IsolationOf(o.Profile).Mode == config.IsolationUser && k.Registry.Snapshot().Find(o.Service) != nil {
			if err := k.Registry.Redefine(context.Background(), o.Profile); err != nil { // the profile may just have got its own user
				return nil, err
			}
		}
	}
	sync, err = k.Intents.Begin(o.Profile, o.Want())
	switch {
	case err == nil:
		k.Registry.SetDown(o.Profile, down || k.isCmd(o.Profile), true)
	case !errors.Is(err, profiles.ErrNotExist):
		sync = func() error { return err }
	case k.Registry.HasSlot(o.Service) && !k.Registry.Exists(o.Profile): // registered without a home: there is no place for an intent
		sync = func() error { return nil }
	default:
		return nil, fmt.Errorf("%w: %w", supervisor.ErrUnknown, err) // the directory is gone, and the service will be soon
	}
	if o.Verb == client.VerbStop {
		k.announceStop(o.Service, o.Profile)
	}
	return sync, nil
}

// Act implements orders.Backend.
func (k orderBackend) Act(o *orders.Order) (effect string, err error) {
	if err := k.MayServe(); err != nil {
		return "", err
	}
	s := k.Registry.Snapshot().Find(o.Service)
	if o.Want() != profiles.Running {
		k.Registry.SetBeside(context.Background(), o.Profile, false)
	} else if o.Profile == profiles.Default && (s == nil || s.PID == 0 || o.Verb == client.VerbRestart) {
		t, err := k.Store.Topology(os.Getenv, "")
		if err == nil {
			err = k.retire(context.Background(), t)
		}
		if err != nil {
			return "", err
		}
	}
	if err := k.Registry.Do(supervisor.WithBy(context.Background(), o.By), event(o.Verb, o.Service)); err != nil { // it ends with the loop
		return "", err
	}
	if s != nil && s.PID != 0 && o.Verb == client.VerbStop {
		signal := strings.TrimPrefix(unix.SignalName(k.Config().Stop.Signal), "SIG")
		return fmt.Sprintf("%s got %s", o.Service, signal), nil
	}
	return "", nil
}

// Retry implements orders.Backend.
func (k orderBackend) Retry(o *orders.Order) { k.recordLater(o.Service, o.Profile) }

// event translates a verb to an event of the supervisor.
func event(verb client.Verb, service string) supervisor.Event {
	switch verb {
	case client.VerbStop:
		return supervisor.Stop{Name: service}
	case client.VerbRestart:
		return supervisor.Restart{Name: service}
	case orders.Unwant:
		return supervisor.Unwant{Name: service}
	case client.VerbStart, client.VerbRunOnce: // a gateway is no task
	}
	return supervisor.Start{Name: service}
}

// announceStop writes the marker that tells a gateway that its end is planned (contract, section 6.1). It waits for the disk.
func (k *Reconciler) announceStop(service, profile string) {
	s := k.Registry.Snapshot().Find(service)
	if s == nil || s.PID == 0 {
		return
	}
	started, err := profiles.StartTime(s.PID)
	if err != nil {
		return // it has just ended
	}
	if err := k.Store.PlannedStop(profile, s.PID, started); err != nil {
		k.say("%s: cannot leave the planned-stop marker: %v", service, err)
	}
}

// recordEvery is the time between two tries to record an intent after an error.
const recordEvery = time.Second

// recordLater tries again to record the intent for a profile, until it succeeds or the profile is gone. It does not block.
func (k *Reconciler) recordLater(service, profile string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if g := k.get(profile); !g.unrecorded {
		g.unrecorded = true
		time.AfterFunc(recordEvery, guard.Func("recording an intent", func() { k.recordAgain(service, profile) }))
	}
}

func (k *Reconciler) recordAgain(service, profile string) {
	k.mu.Lock()
	if g := k.gateways[profile]; g != nil {
		g.unrecorded = false // cleared first: a command that fails from now on needs another try
	}
	k.mu.Unlock()
	switch outcome, err := k.Intents.Restore(profile, profiles.State{}); {
	case err != nil:
		k.recordLater(service, profile)
	case outcome == profiles.Restored:
		k.say("%s: desired_state is recorded now", service)
	}
}

// enqueue adds a job. It does not block: if the disk hangs and the queue is full, it drops the job.
func (k *Reconciler) enqueue(service string, job func()) {
	select {
	case k.jobs <- job:
	default:
		k.say("%s: the data volume does not answer, so its files are not followed", service)
	}
}

// enqueueIn is enqueue after a delay.
func (k *Reconciler) enqueueIn(delay time.Duration, service string, job func()) {
	time.AfterFunc(delay, guard.Func("keeping the profiles", func() { k.enqueue(service, job) }))
}

func (k *Reconciler) say(format string, args ...any) { k.Logger.Say(format, args...) }
