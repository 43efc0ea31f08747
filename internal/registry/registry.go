package registry

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/container/health"
	"hinit/internal/container/initlog"
	"hinit/internal/container/logs"
	"hinit/internal/container/timetable"
	"hinit/internal/container/units"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/tuning"
	"hinit/profiles"
	"hinit/supervisor"
)

// MainHermes is the name of a slot that the s6 image has for the container's CMD. This slot always reports up, and no
// service of hinit belongs to it.
const MainHermes = "main-hermes"

// Loop is the part of [supervisor.Loop] that a Registry uses. The Registry embeds it for its callers.
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Post(e supervisor.Event)
	Sweep(ctx context.Context) error
	RegisterSoon(ctx context.Context, u *supervisor.Unit, want supervisor.Want) (answer func() error)
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	Ended() <-chan struct{}
}

// Options are the parts that a Registry works with.
type Options struct {
	Loop             Loop
	Config           func() *config.Config // returns the current configuration
	Store            *profiles.Store
	Units            *units.Maker
	Logs             *logs.Logs
	Health           *health.Health
	Logger           *initlog.Logger
	AgentUID         uint32
	Actor            *fsutil.Actor        // opens the logs of runs, with the identity of the agent's user
	MayRun           func() error         // returns the reason why no run may be started now, or nil
	Plain            bool                 // a plain supervisor: the path of its configuration doesn't change
	Serves           func() bool          // reports whether this init supervises the profiles and services
	SetConfig        func(*config.Config) // makes another configuration the current one
	StoresTaskStarts bool                 // whether starts of scheduled tasks are stored on the volume
	WarnNotStored    func(error)          // called if the start of a scheduled task can't be stored on the volume
}

// Registry registers services. Its methods may be called from any goroutine.
type Registry struct {
	Loop

	// ChangeLock is a mutex for operations that change all services: the boot, a reload, a change of the topology.
	ChangeLock sync.Mutex
	reloadLock sync.Mutex // held by a reload from before it reads the configuration; taken before ChangeLock

	// Timetable starts the tasks that have a schedule. The caller must hold the mutex ChangeLock.
	Timetable *timetable.Table

	o       Options
	met     map[string]*atomic.Bool // the needs; one is set here before the supervisor is informed
	inOrder atomic.Bool             // see SetOrderedStart

	mu            sync.Mutex
	follower      Follower        // maintains the slots; nil until Follow is called
	slots         map[string]slot // slots, by the name of the service
	down          map[string]bool // whether a profile's slot has a down file; no entry if unknown
	knownProfiles map[string]bool // profiles that are on the volume, as far as is known
}

// New returns a Registry without services.
func New(o Options) *Registry {
	var memory timetable.RunStore
	if o.StoresTaskStarts {
		memory = timetable.LastRuns{Home: o.Config().Home, Actor: o.Actor}
	}
	met := map[string]*atomic.Bool{NeedBoot: {}, NeedProfiles: {}}
	return &Registry{Loop: o.Loop, Timetable: timetable.New(o.Loop, memory, o.WarnNotStored), o: o, met: met, slots: make(map[string]slot), down: make(map[string]bool), knownProfiles: make(map[string]bool)}
}

// Register registers a service with its log and its checks. If the service is already registered, it gets the new definition and
// keeps its desired state.
func (r *Registry) Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return r.register(ctx, u, want)()
}

// register queues a registration and returns immediately, see [supervisor.Loop.RegisterSoon]. The caller must call answer. All
// services are registered through this function.
func (r *Registry) register(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error) {
	if u.Kind == supervisor.KindCmd || u.Kind == supervisor.KindRun { // they have no log here, and start only after the boot
		return r.Loop.RegisterSoon(ctx, &u, want)
	}
	u.Needs = r.unmetNeeds(u)
	r.o.Health.Prepare(&u)
	release := r.o.Logs.Hold(u.Name)
	r.o.Logs.Open(u.Name, u.Profile, u.Log, u.Kind)
	if u.Kind == supervisor.KindGateway {
		r.o.Logs.MaskSecrets(u.Name, u.Profile)
	}
	known := r.isKnown(u.Name)
	if !known { // set the checks before the start, so that they see the first line of output
		r.o.Health.Check(&u)
	}
	registered := r.Loop.RegisterSoon(ctx, &u, want)
	return func() error {
		defer release()
		if err := registered(); err != nil {
			return fmt.Errorf("cannot register %s: %w", u.Name, err)
		}
		if known { // replace the checks of the old definition
			r.o.Health.Check(&u)
		}
		r.reportMetNeeds(u)
		return nil
	}
}

func (r *Registry) isKnown(service string) bool { return r.Snapshot().Find(service) != nil }

// Observe drops the log and the checks of a service that the supervisor has forgotten. It does not block.
func (r *Registry) Observe(rec supervisor.Record) {
	if !rec.Dropped {
		return
	}
	if !r.isKnown(rec.Service) {
		r.o.Health.Drop(rec.Service)
		r.o.Units.RemoveCgroup(rec.Service)
	}
	r.o.Logs.Drop(rec.Service, r.isKnown)
}

// Reserved returns the reason why another program must not make a service directory with the given name. The result is "" if
// another program may make it.
func (r *Registry) Reserved(name string) string {
	switch {
	case name == units.CmdName, name == MainHermes, strings.HasPrefix(name, units.HookPrefix):
		return "the name is taken by hinit itself"
	case r.isKnown(name):
		return "hinit has a service of that name; `hinit start " + name + "` brings its slot back"
	}
	return ""
}

// Settings returns the settings of a service that differ from the defaults. For "" it returns all settings of the container.
func (r *Registry) Settings(service string) []client.ConfigEntry {
	if service == "" {
		return r.o.Config().Effective()
	}
	return r.o.Config().NonDefaultSettings(service)
}

// Identity returns the user, environment and directory for a service whose directory another program made. If root is true, the
// service runs as root, without any setting from the agent; otherwise it runs as the agent.
func (r *Registry) Identity(root bool) proc.Spec { return r.o.Units.ForeignSpec(r.o.Config(), root) }

// CheckCapacity returns an error if there is no room for another service whose directory another program made. Such a service
// needs more file descriptors than others.
func (r *Registry) CheckCapacity() error { return tuning.CheckDescriptors() }

// The needs are conditions that the boot meets, and that services wait for before they start (contract, section 2).
const (
	NeedBoot     = "boot"     // the hooks have run, and the profiles were read or do not answer
	NeedProfiles = "profiles" // the profiles were read, and the stale files of earlier gateways removed
)

// MarkMet marks a need as met, so that the services that wait for it can start. It fails if the container has ended.
func (r *Registry) MarkMet(ctx context.Context, need string) error {
	r.met[need].Store(true)
	return r.Do(ctx, supervisor.NeedMet{Need: need})
}

// SetOrderedStart sets whether gateways wait until all profiles are known, so that recently used profiles start first.
func (r *Registry) SetOrderedStart(on bool) { r.inOrder.Store(on) }

// unmetNeeds returns the needs that a new service still has to wait for. A gateway waits until the boot has decided about its
// profile, a service waits for the boot, and a hook waits for nothing.
func (r *Registry) unmetNeeds(u supervisor.Unit) []string {
	switch {
	case u.Name == config.LeaseName && !r.o.Plain: // the lease program has no needs: the boot waits for it
	case u.Kind == supervisor.KindService && !r.met[NeedBoot].Load():
		return []string{NeedBoot}
	case u.Kind == supervisor.KindGateway && !r.met[NeedProfiles].Load() && (!r.ProfileExists(u.Profile) || r.inOrder.Load()):
		return []string{NeedProfiles}
	}
	return nil
}

// reportMetNeeds informs the supervisor of needs that were met while the service was being registered.
func (r *Registry) reportMetNeeds(u supervisor.Unit) {
	for _, need := range u.Needs {
		if r.met[need].Load() {
			r.Post(supervisor.NeedMet{Need: need})
		}
	}
}
