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

// jobQueueSize is the capacity of the job queue. At the start of a large container, every gateway adds a job at about the same
// time.
const jobQueueSize = 8192

// Manager matches the gateways in the supervisor to the profiles on the data volume. Any goroutine may call its methods, unless
// a method says otherwise.
type Manager struct {
	Options

	diskJobs       chan func() // work that needs the disk; one goroutine executes it in order
	orders         *orders.Queues
	inheritedState Handover // state from before the re-execution
	servedProfiles atomic.Pointer[servedProfiles]
	topologyToken  chan struct{} // channel of capacity 1 with a token during a change of the topology
	limitedLog     rateLimitedLog

	mu             sync.Mutex
	gateways       gatewayRecords
	unreadProfiles unreadProfiles
	watcher        watcher
	boot           bootProgress
}

// watcher reports changes of the profiles on the volume.
type watcher struct {
	*profiles.Watcher // watcher of profiles; nil before [Manager.Start]

	cancel  context.CancelFunc
	stopped time.Time // when the container's stop began, which ends the watching; zero before
}

// bootProgress is the progress of the boot with the profiles. Registry.ChangeLock guards it.
type bootProgress struct {
	profilesRead   <-chan struct{} // closed when the boot has read the profiles; nil if it reads none
	bootLogWritten <-chan struct{} // closed when the boot log is written; nil without a boot log
}

// Options are the settings of a Manager, and the parts of hinit that it uses. Any goroutine may call the functions.
type Options struct {
	Registry *registry.Registry
	Logger   *initlog.Logger
	Config   func() *config.Config
	RunPlan  func() *boot.RunPlan
	Store    *profiles.Store
	Intents  *profiles.Intents
	Started  time.Time // when the container was started

	// MayServe returns an error while another init may serve the volume. This init must then not write to profiles or start
	// their gateways.
	MayServe func() error
	// CorrectOwner makes the agent's user the owner of the files that a profile's gateway needs. It blocks on the disk.
	CorrectOwner func(ctx context.Context, profile string)
	// ReadSecrets reads a profile's .env, so that the console hides its values in the output of a service. It blocks on the
	// disk.
	ReadSecrets func(service, profile string)
	// OnStateWritten is called after a gateway has written its state file. It must not block.
	OnStateWritten func(profile string)
	// OnDiskJob is called after each job on the disk, for garbage collection. It must not block.
	OnDiskJob func()
}

// New returns a Manager. Its jobs stay in the queue until Start.
func New(o Options) *Manager {
	m := &Manager{
		Options: o, diskJobs: make(chan func(), jobQueueSize),
		gateways: gatewayRecords{byProfile: make(map[string]*gatewayRecord), removedByHome: make(map[profiles.HomeID]removedProfile)}, topologyToken: make(chan struct{}, 1),
	}
	m.orders = orders.New(orderBackend{m})
	m.servedProfiles.Store(new(servedProfiles))
	return m
}

// Start begins to watch the volume, and to execute the jobs of [Manager.Observe], until ctx ends. known are the profiles that
// the caller has found.
func (m *Manager) Start(ctx context.Context, known []profiles.Profile) {
	notify := func(e profiles.Event) { m.handleProfileEvent(ctx, e) }
	watching, unwatch := context.WithCancel(ctx)
	m.mu.Lock()
	m.watcher.Watcher, m.watcher.cancel = m.Store.Watch(watching, profiles.WatchOptions{Notify: notify, Known: known, Mounts: watch.Mounts(watching)}), unwatch
	if !m.watcher.stopped.IsZero() {
		unwatch()
	}
	m.mu.Unlock()
	guard.Go("keeping the profiles", func() {
		for {
			select {
			case job := <-m.diskJobs:
				job()
				m.OnDiskJob()
			case <-ctx.Done():
				return
			}
		}
	})
}

// ResumeOrders replaces Start in the program after a re-execution. It also carries out the unfinished orders of the old program.
func (m *Manager) ResumeOrders(ctx context.Context) {
	m.Start(ctx, m.Registry.KnownProfiles())
	m.CatchUp()
	for _, o := range m.inheritedState.Orders {
		m.orders.Submit(o.Verb, o.Service, o.Profile, 0, o.By)
	}
}

// Stop ends the watching of the volume before the container stops. A second call does nothing.
func (m *Manager) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.watcher.stopped.IsZero() {
		return
	}
	m.watcher.stopped = time.Now()
	m.limitedLog.endPeriod(m.Logger)
	watch.Detach()
	if m.watcher.cancel != nil {
		m.watcher.cancel()
	}
}

// DropRecords drops all records, because another init now serves the profiles. The watcher continues until the context of
// [Manager.Start] ends.
func (m *Manager) DropRecords() {
	m.Intents.ForgetAllOrders()
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.diskJobs) > 0 {
		select {
		case <-m.diskJobs:
		default:
		}
	}
	clear(m.gateways.byProfile)
	clear(m.gateways.removedByHome)
	m.unreadProfiles = unreadProfiles{}
	m.servedProfiles.Store(new(servedProfiles))
	m.Registry.DropProfiles()
}

// stopStartedAt returns the time at which the container's stop began; zero before.
func (m *Manager) stopStartedAt() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watcher.stopped
}

func (m *Manager) watch() *profiles.Watcher {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watcher.Watcher
}

// IsIdle reports whether every order is finished. A re-execution waits for that.
func (m *Manager) IsIdle() bool { return m.orders.IsIdle() }

// Command starts, stops or restarts a service. For a gateway it first records the operator's intent on the volume. If ctx ends
// first, the order stays in force, and the error describes its progress. Unless verb is stop, Command also restores the
// service's s6 directory if a client has removed it.
func (m *Manager) Command(ctx context.Context, verb client.Verb, service string) error {
	s := m.Registry.Snapshot().Find(service)
	if s != nil && verb != client.VerbStop {
		m.Registry.RestoreSlot(ctx, service)
	}
	if s == nil || s.Kind != supervisor.KindGateway {
		return m.Registry.Do(ctx, eventForVerb(verb, service)) // an intent is recorded only for gateways
	}
	if s.PID == 0 && verb != client.VerbStop && verb != orders.StayDown {
		if err := m.CheckMayStart(service); err != nil {
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

// orderBackend gives package orders access to the Manager, see [orders.Backend].
type orderBackend struct{ *Manager }

// Record writes the intent to the volume, and prepares the gateway for its start.
func (m orderBackend) Record(o *orders.Order) (sync func() error, err error) {
	if err := m.MayServe(); err != nil {
		return nil, err
	}
	down := o.DesiredState() != profiles.Running
	if !down && m.Registry.ProfileExists(o.Profile) {
		m.CorrectOwner(context.Background(), o.Profile) // other programs may have added files since the last start
		if m.Config().IsolationOf(o.Profile).Mode == config.IsolationUser && m.Registry.Snapshot().Find(o.Service) != nil {
			// a change of hinit.yaml may have given the profile its own user
			if err := m.Registry.RedefineGateway(context.Background(), o.Profile); err != nil {
				return nil, err
			}
		}
	}
	sync, err = m.Intents.Record(o.Profile, o.DesiredState())
	switch {
	case err == nil:
		m.Registry.SetDown(o.Profile, down || m.isCmdGateway(o.Profile), true)
	case !errors.Is(err, profiles.ErrNotExist):
		sync = func() error { return fmt.Errorf("%w: %w", profiles.ErrNotRecorded, err) }
	case m.Registry.HasSlot(o.Service) && !m.Registry.ProfileExists(o.Profile): // without a profile, no file can store an intent
		sync = func() error { return nil }
	default:
		// the supervisor will soon remove the service of the removed profile
		return nil, fmt.Errorf("%w: %w", supervisor.ErrUnknown, err)
	}
	if o.Verb == client.VerbStop {
		m.markPlannedStop(o.Service, o.Profile)
	}
	return sync, nil
}

// Execute passes the order to the supervisor.
func (m orderBackend) Execute(o *orders.Order) (effect string, err error) {
	if err := m.MayServe(); err != nil {
		return "", err
	}
	s := m.Registry.Snapshot().Find(o.Service)
	if o.DesiredState() != profiles.Running {
		m.Registry.SetOwnGatewayAllowed(context.Background(), o.Profile, false)
	} else if o.Profile == profiles.Default && (s == nil || s.PID == 0 || o.Verb == client.VerbRestart) {
		t, err := m.Store.Topology(os.Getenv, "")
		if err == nil {
			err = m.endServedGateways(context.Background(), t)
		}
		if err != nil {
			return "", err
		}
	}
	// The call ends with the supervisor's loop, so the context needs no deadline.
	if err := m.Registry.Do(supervisor.WithAuthor(context.Background(), o.By), eventForVerb(o.Verb, o.Service)); err != nil {
		return "", err
	}
	if s != nil && s.PID != 0 && o.Verb == client.VerbStop {
		signal := strings.TrimPrefix(unix.SignalName(m.Config().Stop.Signal), "SIG")
		return fmt.Sprintf("%s got %s", o.Service, signal), nil
	}
	return "", nil
}

// RetryRecord makes hinit record the intent later.
func (m orderBackend) RetryRecord(o *orders.Order) { m.retryRecordLater(o.Service, o.Profile) }

// eventForVerb returns the supervisor's event for a verb.
func eventForVerb(verb client.Verb, service string) supervisor.Event {
	switch verb {
	case client.VerbStop:
		return supervisor.Stop{Name: service}
	case client.VerbRestart:
		return supervisor.Restart{Name: service}
	case orders.StayDown:
		return supervisor.StayDown{Name: service}
	case client.VerbStart, client.VerbRunOnce:
	}
	return supervisor.Start{Name: service}
}

// markPlannedStop writes the planned-stop marker, the file that tells a gateway that the next signal is a planned stop (contract,
// section 6.1). It blocks on the disk.
func (m *Manager) markPlannedStop(service, profile string) {
	s := m.Registry.Snapshot().Find(service)
	if s == nil || s.PID == 0 {
		return
	}
	started, err := profiles.StartTime(s.PID)
	if err != nil {
		return
	}
	if err := m.Store.MarkPlannedStop(profile, s.PID, started); err != nil {
		m.logGateway(service, "cannot leave the planned-stop marker: %v", err)
	}
}

// recordRetryPause is the pause between attempts to record an intent.
const recordRetryPause = time.Second

// retryRecordLater tries to record the intent of a profile until it succeeds or the profile is removed. It does not block.
func (m *Manager) retryRecordLater(service, profile string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.gatewayOf(profile); !g.intentUnrecorded {
		g.intentUnrecorded = true
		time.AfterFunc(recordRetryPause, guard.WrapFunc("recording an intent", func() { m.retryRecord(service, profile) }))
	}
}

// retryRecord tries again to record the intent of a profile, now and after each failure.
func (m *Manager) retryRecord(service, profile string) {
	m.mu.Lock()
	if g := m.gateways.byProfile[profile]; g != nil {
		g.intentUnrecorded = false // reset the mark first, so that a failing command schedules another attempt
	}
	m.mu.Unlock()
	switch outcome, err := m.Intents.Restore(profile, profiles.State{}); {
	case err != nil:
		m.retryRecordLater(service, profile)
	case outcome == profiles.Restored:
		m.logGateway(service, "desired_state is recorded now")
	}
}

// enqueue adds a job to the queue without blocking. If the disk hangs and the queue is full, it drops the job.
func (m *Manager) enqueue(service string, job func()) {
	select {
	case m.diskJobs <- job:
	default:
		m.logGateway(service, "the data volume does not answer, so its files are not followed")
	}
}

// enqueueIn adds a job to the queue after a delay.
func (m *Manager) enqueueIn(delay time.Duration, service string, job func()) {
	time.AfterFunc(delay, guard.WrapFunc("keeping the profiles", func() { m.enqueue(service, job) }))
}

// An agent can cause any number of messages. So each subject gets at most maxMessages lines of the container log in a
// messagePeriod. A subject is one service, or the profiles as a whole, or the warnings about one profile. Beyond maxSubjects,
// all other subjects share one count.
const (
	maxMessages   = 20
	maxSubjects   = 64
	messagePeriod = time.Minute
)

// rateLimitedLog writes messages to the container log, within the limits above.
type rateLimitedLog struct {
	mu           sync.Mutex
	messageCount map[string]int    // number of messages in the present period, by subject; nil before its first message
	lastMessage  map[string]string // last message of the present period, by subject
}

// logGateway writes a message about a service, or with service "" about all profiles, to the container log.
func (m *Manager) logGateway(service, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if service != "" {
		text = service + ": " + text
	}
	m.limitedLog.write(m.Logger, service, text)
}

// LogSlots writes a message about the slots of s6 to the container log. All slots together are one subject.
func (m *Manager) LogSlots(format string, args ...any) {
	m.limitedLog.write(m.Logger, "slots of s6", fmt.Sprintf(format, args...))
}

// write writes a message to the log. After a subject has used up its lines, the log gets only its last message, at the end of
// the period. A message that equals the previous one is left out, because warnings can come and go.
func (s *rateLimitedLog) write(log *initlog.Logger, subject, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.messageCount) == 0 {
		s.messageCount, s.lastMessage = make(map[string]int), make(map[string]string)
		time.AfterFunc(messagePeriod, guard.WrapFunc("ending a period of messages", func() { s.endPeriod(log) }))
	}
	if s.messageCount[subject] == 0 && len(s.messageCount) >= maxSubjects {
		subject = ""
	}
	text = supervisor.ShortenText(text)
	if s.lastMessage[subject] == text {
		return
	}
	s.messageCount[subject]++
	s.lastMessage[subject] = text
	if s.messageCount[subject] <= maxMessages {
		log.Say("%s", text)
	}
}

// endPeriod logs the last message of each subject that has used up its lines. The next message begins another period.
func (s *rateLimitedLog) endPeriod(log *initlog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for subject, n := range s.messageCount {
		if n > maxMessages {
			log.Say("%s (the last of %d messages within a minute, of which the log has the first %d)", s.lastMessage[subject], n, maxMessages)
		}
	}
	s.messageCount = nil
}
