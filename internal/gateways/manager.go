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
	"hinit/internal/watch"
	"hinit/profiles"
	"hinit/supervisor"
)

// jobQueueSize is the capacity of the job queue. When a large container starts, each gateway adds a job at about the same time.
const jobQueueSize = 8192

// Manager keeps the gateways in the supervisor consistent with the profiles on the data volume. Its methods may be called from
// any goroutine, unless their comment says otherwise.
type Manager struct {
	Options

	jobs      chan func() // jobs that access the disk; one goroutine executes them one after the other
	orders    *orders.Queues
	inherited Handover // state from the program before the re-execution
	serving   atomic.Pointer[serving]
	changing  chan struct{} // capacity 1; holds a token while the topology is changed

	mu       sync.Mutex
	gateways records
	departed map[profiles.HomeID]removedProfile
	late     unreadProfiles
	watcher  watcher
	boot     bootProgress
	stopping time.Time // time when the stop of the container began, or zero
}

// watcher follows the profiles on the volume.
type watcher struct {
	*profiles.Watcher // the watcher of the profiles; nil before [Manager.Start]

	cancel context.CancelFunc
}

// bootProgress records how far the boot has come with the profiles. The registry's mutex ChangeLock guards it.
type bootProgress struct {
	profilesRead   chan struct{} // closed when the boot has read the profiles; nil if it doesn't read them
	bootLogWritten chan struct{} // closed when the boot log is written; nil if it is not written
}

// Options holds the settings of a Manager, and the parts of hinit that it works with. The functions may be called from any
// goroutine.
type Options struct {
	Registry *registry.Registry
	Logger   *initlog.Logger
	Config   func() *config.Config
	Route    func() *boot.RunPlan
	Store    *profiles.Store
	Intents  *profiles.Intents
	Started  time.Time // when the container was started

	// MayServe returns an error while another init may be serving the profiles. During that time, this init must not write to the
	// profiles or start their gateways.
	MayServe func() error
	// Adopt makes the agent's user the owner of the files that the gateway of a profile needs. It blocks on the disk.
	Adopt func(ctx context.Context, profile string)
	// ReadSecrets reads a profile's .env, so that the console masks its values in the output of a service. It blocks on the disk.
	ReadSecrets func(service, profile string)
	// StateWritten is called when a gateway has written its state file. It does not block.
	StateWritten func(profile string)
}

// New returns a Manager. It keeps all jobs in a queue until Start.
func New(o Options) *Manager {
	m := &Manager{
		Options: o, jobs: make(chan func(), jobQueueSize),
		gateways: records{byProfile: make(map[string]*gateway)}, departed: make(map[profiles.HomeID]removedProfile), changing: make(chan struct{}, 1),
	}
	m.orders = orders.New(orderBackend{m})
	m.serving.Store(new(serving))
	return m
}

// Start begins to watch the volume and to execute the jobs that [Manager.Observe] has queued, until ctx ends. known are the
// profiles that the caller has already found.
func (m *Manager) Start(ctx context.Context, known []profiles.Profile) {
	notify := func(e profiles.Event) { m.handleProfileEvent(ctx, e) }
	watching, unwatch := context.WithCancel(ctx)
	m.mu.Lock()
	m.watcher = watcher{m.Store.Watch(watching, profiles.WatchOptions{Notify: notify, Known: known}), unwatch}
	if !m.stopping.IsZero() {
		unwatch()
	}
	m.mu.Unlock()
	guard.Go("keeping the profiles", func() {
		for {
			select {
			case job := <-m.jobs:
				job()
			case <-ctx.Done():
				return
			}
		}
	})
}

// Continue does the work of Start in the program after a re-execution. It also carries out the orders that the old program has
// not finished.
func (m *Manager) Continue(ctx context.Context) {
	m.Start(ctx, m.Registry.KnownProfiles())
	// The topology files may have changed since the default profile's gateway was started. A change applies only from the
	// next start of that gateway.
	if m.inherited.Topology == nil {
		if t, err := m.Store.Topology(os.Getenv, ""); err == nil {
			m.serving.Store(&serving{Topology: t, topologyRun: m.defaultRun()})
		}
	}
	m.CatchUp()
	for _, o := range m.inherited.Orders {
		m.orders.Submit(o.Verb, o.Service, o.Profile, 0, o.By)
	}
}

// Stop stops watching the volume, because the container is about to stop. It may be called more than once.
func (m *Manager) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopping.IsZero() {
		return
	}
	m.stopping = time.Now()
	watch.Detach()
	if m.watcher.cancel != nil {
		m.watcher.cancel()
	}
}

// Reset discards all records, because another init now serves the profiles. The watcher ends when the context of [Manager.Start]
// ends.
func (m *Manager) Reset() {
	m.Intents.Clear()
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.jobs) > 0 {
		select {
		case <-m.jobs:
		default: // another goroutine has taken the last job, and may still execute it
		}
	}
	clear(m.gateways.byProfile)
	clear(m.departed)
	m.late = unreadProfiles{}
	m.serving.Store(new(serving))
	m.Registry.Reset()
}

// stopBegan returns the time when the stop of the container began, or zero.
func (m *Manager) stopBegan() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopping
}

func (m *Manager) watch() *profiles.Watcher {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watcher.Watcher
}

// errNotWatching is returned if a scan is requested before the boot has read the profiles.
var errNotWatching = errors.New("cannot look at the profiles: the boot is not done yet; try again")

// Rescan makes the gateways match the profiles that are on the volume now.
func (m *Manager) Rescan(ctx context.Context) error {
	switch {
	case !m.Route().HasProfiles(), m.MayServe() != nil: // this init does not supervise profiles
		return nil
	case m.Registry.Snapshot().Stopping:
		return supervisor.ErrStopping
	}
	w := m.watch()
	if w == nil {
		return errNotWatching
	}
	return volumeTimeout(ctx, w.Rescan(ctx))
}

// Find makes the watcher look for a profile that has just been created, and waits until the watcher has looked. name is the
// profile's name or its gateway's name. Find tries both, because a profile's name may look like the name of a gateway.
func (m *Manager) Find(ctx context.Context, name string) error {
	if !m.Route().HasProfiles() {
		return nil
	}
	w := m.watch()
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

// volumeTimeout replaces a timeout error with the error that the data volume does not answer.
func volumeTimeout(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cannot look at the profiles: the data volume does not answer: %w", context.Cause(ctx))
	}
	return err
}

// Idle reports whether every order is finished.
func (m *Manager) Idle() bool { return m.orders.Idle() }

// Command starts, stops or restarts a service. For a gateway, it first records the operator's intent on the volume. If ctx ends
// before the order has been carried out, the error describes the progress of the order, which stays in force. Unless the verb is
// stop, Command also restores a slot that a client has removed.
func (m *Manager) Command(ctx context.Context, verb client.Verb, service string) error {
	s := m.Registry.Snapshot().Find(service)
	if s != nil && verb != client.VerbStop {
		m.Registry.RestoreSlot(ctx, service)
	}
	if s == nil || s.Kind != supervisor.KindGateway {
		return m.Registry.Do(ctx, eventForVerb(verb, service)) // only gateways have an intent on the volume
	}
	if s.PID == 0 && verb != client.VerbStop && verb != orders.StayDown {
		if err := m.Refuse(service); err != nil {
			return err
		}
		if err := m.awaitFormerGateway(ctx, s.Profile); err != nil {
			return err
		}
	}
	var patience time.Duration
	if end, limited := ctx.Deadline(); limited {
		patience = max(time.Until(end), 1)
	}
	return m.orders.Wait(ctx, m.orders.Submit(verb, service, s.Profile, patience, supervisor.AuthorOf(ctx)))
}

// orderBackend adapts Manager to [orders.Backend].
type orderBackend struct{ *Manager }

// Record implements orders.Backend: it writes the intent to the volume, and prepares the gateway for its start.
func (m orderBackend) Record(o *orders.Order) (sync func() error, err error) {
	if err := m.MayServe(); err != nil {
		return nil, err
	}
	down := o.Want() != profiles.Running
	if !down && m.Registry.ProfileExists(o.Profile) {
		m.Adopt(context.Background(), o.Profile) // other programs may have added files since the last start
		if m.Config().IsolationOf(o.Profile).Mode == config.IsolationUser && m.Registry.Snapshot().Find(o.Service) != nil {
			if err := m.Registry.Redefine(context.Background(), o.Profile); err != nil { // the profile may have got its own user
				return nil, err
			}
		}
	}
	sync, err = m.Intents.Record(o.Profile, o.Want())
	switch {
	case err == nil:
		m.Registry.SetDown(o.Profile, down || m.isCmdGateway(o.Profile), true)
	case !errors.Is(err, profiles.ErrNotExist):
		sync = func() error { return err }
	case m.Registry.HasSlot(o.Service) && !m.Registry.ProfileExists(o.Profile): // without a profile, there is no file for an intent
		sync = func() error { return nil }
	default:
		return nil, fmt.Errorf("%w: %w", supervisor.ErrUnknown, err) // the profile was removed, and its service will be removed soon
	}
	if o.Verb == client.VerbStop {
		m.announceStop(o.Service, o.Profile)
	}
	return sync, nil
}

// Act implements orders.Backend.
func (m orderBackend) Act(o *orders.Order) (effect string, err error) {
	if err := m.MayServe(); err != nil {
		return "", err
	}
	s := m.Registry.Snapshot().Find(o.Service)
	if o.Want() != profiles.Running {
		m.Registry.AllowOwnGateway(context.Background(), o.Profile, false)
	} else if o.Profile == profiles.Default && (s == nil || s.PID == 0 || o.Verb == client.VerbRestart) {
		t, err := m.Store.Topology(os.Getenv, "")
		if err == nil {
			err = m.endServedGateways(context.Background(), t)
		}
		if err != nil {
			return "", err
		}
	}
	// The context needs no deadline: the call ends with the supervisor's loop.
	if err := m.Registry.Do(supervisor.WithAuthor(context.Background(), o.By), eventForVerb(o.Verb, o.Service)); err != nil {
		return "", err
	}
	if s != nil && s.PID != 0 && o.Verb == client.VerbStop {
		signal := strings.TrimPrefix(unix.SignalName(m.Config().Stop.Signal), "SIG")
		return fmt.Sprintf("%s got %s", o.Service, signal), nil
	}
	return "", nil
}

// Retry implements orders.Backend.
func (m orderBackend) Retry(o *orders.Order) { m.recordLater(o.Service, o.Profile) }

// eventForVerb translates a verb to an event of the supervisor.
func eventForVerb(verb client.Verb, service string) supervisor.Event {
	switch verb {
	case client.VerbStop:
		return supervisor.Stop{Name: service}
	case client.VerbRestart:
		return supervisor.Restart{Name: service}
	case orders.StayDown:
		return supervisor.StayDown{Name: service}
	case client.VerbStart, client.VerbRunOnce: // a gateway is not a task
	}
	return supervisor.Start{Name: service}
}

// announceStop writes the planned-stop marker, a file that tells a gateway that hinit stops it on purpose (contract, section
// 6.1). It blocks on the disk.
func (m *Manager) announceStop(service, profile string) {
	s := m.Registry.Snapshot().Find(service)
	if s == nil || s.PID == 0 {
		return
	}
	started, err := profiles.StartTime(s.PID)
	if err != nil {
		return // the gateway has just ended
	}
	if err := m.Store.PlannedStop(profile, s.PID, started); err != nil {
		m.say("%s: cannot leave the planned-stop marker: %v", service, err)
	}
}

// recordEvery is the pause before hinit tries again to record an intent after an error.
const recordEvery = time.Second

// recordLater tries again to record the intent for a profile, until it succeeds or the profile is gone. It does not block.
func (m *Manager) recordLater(service, profile string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.gatewayOf(profile); !g.unrecorded {
		g.unrecorded = true
		time.AfterFunc(recordEvery, guard.Func("recording an intent", func() { m.recordAgain(service, profile) }))
	}
}

func (m *Manager) recordAgain(service, profile string) {
	m.mu.Lock()
	if g := m.gateways.byProfile[profile]; g != nil {
		g.unrecorded = false // cleared before the attempt: a command that fails after this line must schedule another one
	}
	m.mu.Unlock()
	switch outcome, err := m.Intents.Restore(profile, profiles.State{}); {
	case err != nil:
		m.recordLater(service, profile)
	case outcome == profiles.Restored:
		m.say("%s: desired_state is recorded now", service)
	}
}

// enqueue adds a job to the queue. It does not block: if the disk hangs and the queue is full, it drops the job.
func (m *Manager) enqueue(service string, job func()) {
	select {
	case m.jobs <- job:
	default:
		m.say("%s: the data volume does not answer, so its files are not followed", service)
	}
}

// enqueueIn adds a job to the queue after a delay, see enqueue.
func (m *Manager) enqueueIn(delay time.Duration, service string, job func()) {
	time.AfterFunc(delay, guard.Func("keeping the profiles", func() { m.enqueue(service, job) }))
}

func (m *Manager) say(format string, args ...any) { m.Logger.Say(format, args...) }
