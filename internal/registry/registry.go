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

// MainHermes is the slot of the container's CMD in the s6 image. It always reports up, and stands for no service.
const MainHermes = "main-hermes"

// Loop is the part of [supervisor.Loop] that a Registry uses, and offers to the rooms above.
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Post(e supervisor.Event)
	Sweep(ctx context.Context) error
	RegisterSoon(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error)
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	Ended() <-chan struct{}
}

// Options are the parts that a Registry works with.
type Options struct {
	Loop          Loop
	Config        func() *config.Config // returns the current configuration
	Store         *profiles.Store
	Units         *units.Maker
	Logs          *logs.Logs
	Health        *health.Health
	Logger        *initlog.Logger
	AgentUID      uint32
	Actor         *fsutil.Actor        // opens the logs of runs, with the identity of the agent's user
	MayRun        func() error         // returns why no run may be started now, nil if it may
	Plain         bool                 // a plain supervisor: the path of its configuration doesn't change
	Serves        func() bool          // reports whether this init supervises the profiles and services
	Change        func(*config.Config) // makes another configuration the current one
	Remembers     bool                 // the volume can store when tasks ran
	WarnNotStored func(error)          // gets errors of storing that
}

// Registry registers services. Its methods may be called from any goroutine.
type Registry struct {
	Loop

	// Turn is held by operations that change all services: the boot, a reload, a new topology.
	Turn sync.Mutex

	// Times starts the tasks with a schedule. It is used while Turn is held.
	Times *timetable.Table

	o   Options
	met needs

	mu       sync.Mutex
	follower Follower        // nil for none
	slots    map[string]slot // by name of the service
	down     map[string]bool // profile → whether its slot has a down file; missing if unknown
	present  map[string]bool // profiles that are on the volume, as far as is known
}

// New returns a Registry without services.
func New(o Options) *Registry {
	var memory timetable.Memory
	if o.Remembers {
		memory = timetable.LastRuns{Home: o.Config().Home, Actor: o.Actor}
	}
	return &Registry{Loop: o.Loop, Times: timetable.New(o.Loop, memory, o.WarnNotStored), o: o, slots: make(map[string]slot), down: make(map[string]bool), present: make(map[string]bool)}
}

// Register adds a service with its log and its checks. A known service gets a new definition and keeps its desired state.
func (r *Registry) Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return r.register(ctx, u, want)()
}

// register queues a registration and returns at once, see [supervisor.Loop.RegisterSoon]. The caller must call answer. Every
// service reaches the supervisor through this function.
func (r *Registry) register(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error) {
	if u.Kind == supervisor.KindCmd || u.Kind == supervisor.KindRun { // they have no log here, and are started after the boot
		return r.Loop.RegisterSoon(ctx, u, want)
	}
	u.Needs = r.unmetNeeds(u)
	r.o.Health.Prepare(&u)
	release := r.o.Logs.Hold(u.Name)
	r.o.Logs.Open(u.Name, u.Profile, u.Log, u.Kind)
	if u.Kind == supervisor.KindGateway {
		r.o.Logs.MaskSecrets(u.Name, u.Profile)
	}
	known := r.isKnown(u.Name)
	if !known { // before the start, so that a check sees the first line
		r.o.Health.Check(&u)
	}
	registered := r.Loop.RegisterSoon(ctx, u, want)
	return func() error {
		defer release()
		if err := registered(); err != nil {
			return fmt.Errorf("cannot register %s: %w", u.Name, err)
		}
		if known { // the checks of the old definition don't count any more
			r.o.Health.Check(&u)
		}
		r.meetLate(u)
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

// Reserved returns why a service directory that hinit didn't make can't have a name, "" if it can.
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
	return r.o.Config().InForce(service)
}

// Identity returns user, environment and directory for a service directory that hinit didn't make: as root, without anything from
// the agent, or as the agent.
func (r *Registry) Identity(root bool) proc.Spec { return r.o.Units.ForeignSpec(r.o.Config(), root) }

// Room returns an error if there is no room for another service directory that hinit did not make. Such a service needs more
// descriptors than others.
func (r *Registry) Room() error { return tuning.CheckDescriptors() }

// The needs that the boot meets (contract, section 2).
const (
	NeedBoot     = "boot"     // the hooks have run, and the profiles were read or do not answer
	NeedProfiles = "profiles" // the profiles were read, and the stale files of earlier gateways removed
)

// needs says which needs are met. It is set before the supervisor is informed.
type needs struct {
	boot, profiles atomic.Bool
	inOrder        atomic.Bool
}

func (n *needs) of(need string) *atomic.Bool {
	if need == NeedBoot {
		return &n.boot
	}
	return &n.profiles
}

// Meet starts everything that waits for a need. It fails if the container has ended.
func (r *Registry) Meet(ctx context.Context, need string) error {
	r.met.of(need).Store(true)
	return r.Do(ctx, supervisor.NeedMet{Need: need})
}

// SetOrderedStart makes gateways wait until all profiles are known, so that recently used profiles start first.
func (r *Registry) SetOrderedStart(on bool) { r.met.inOrder.Store(on) }

// unmetNeeds returns the needs of a new service. A gateway needs the boot's decision about its profile, a service needs the boot, and
// a hook needs nothing.
func (r *Registry) unmetNeeds(u supervisor.Unit) []string {
	switch {
	case u.Name == config.LeaseName && !r.o.Plain: // no need: the boot waits for it
	case u.Kind == supervisor.KindService && !r.met.boot.Load():
		return []string{NeedBoot}
	case u.Kind == supervisor.KindGateway && !r.met.profiles.Load() && (!r.Exists(u.Profile) || r.met.inOrder.Load()):
		return []string{NeedProfiles}
	}
	return nil
}

// meetLate tells the supervisor about needs that were met while the service was being registered.
func (r *Registry) meetLate(u supervisor.Unit) {
	for _, need := range u.Needs {
		if r.met.of(need).Load() {
			r.Post(supervisor.NeedMet{Need: need})
		}
	}
}
