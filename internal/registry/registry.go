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

// MainHermes is the slot of the container's CMD in the s6 image. It answers as up and has no service.
const MainHermes = "main-hermes"

// Loop is what a Registry needs of a [supervisor.Loop], and hands on to the rooms above.
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Post(e supervisor.Event)
	Sweep(ctx context.Context) error
	RegisterSoon(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error)
	Snapshot() *supervisor.Snapshot
	News() <-chan struct{}
	Ended() <-chan struct{}
}

// Options are the rooms below a Registry.
type Options struct {
	Loop      Loop
	Config    func() *config.Config // the configuration in force
	Store     *profiles.Store
	Units     *units.Maker
	Logs      *logs.Logs
	Health    *health.Health
	Logger    *initlog.Logger
	AgentUID  uint32
	Actor     *fsutil.Actor        // opens the logs of runs, as the agent's user
	MayRun    func() error         // why no run may be started now, nil when it may
	Plain     bool                 // a plain supervisor, whose configuration stays in its place
	Serves    func() bool          // this init supervises the profiles and services
	Change    func(*config.Config) // puts another configuration in force
	Remembers bool                 // the volume has a place to write down when tasks ran
	Doubt     func(error)          // is told what can't be written down
}

// Registry registers services. Its methods may be called from any goroutine.
type Registry struct {
	Loop

	// Turn is held by a caller that changes all services: the boot, a reload, another topology.
	Turn sync.Mutex

	// Times starts the tasks that have a schedule. It is used while Turn is held.
	Times *timetable.Table

	o   Options
	met needs

	mu       sync.Mutex
	follower Follower        // nil for none
	slots    map[string]slot // by name of the service
	down     map[string]bool // what the down file of a profile's slot says, where it is known
	present  map[string]bool // profiles that are on the volume, as far as is known
}

// New makes a Registry that knows no service.
func New(o Options) *Registry {
	var memory timetable.Memory
	if o.Remembers {
		memory = timetable.LastRuns{Home: o.Config().Home, Actor: o.Actor}
	}
	return &Registry{Loop: o.Loop, Times: timetable.New(o.Loop, memory, o.Doubt), o: o, slots: make(map[string]slot), down: make(map[string]bool), present: make(map[string]bool)}
}

// Register makes a service known together with its log and its checks. A known service gets a new definition and keeps its want.
func (r *Registry) Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return r.register(ctx, u, want)()
}

// register is Register for one of many, see [supervisor.Loop.RegisterSoon]. The caller must call answer. Every service gets to the
// supervisor through this function.
func (r *Registry) register(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error) {
	if u.Kind == supervisor.KindCmd || u.Kind == supervisor.KindRun { // their output is their own, and they come after the boot
		return r.Loop.RegisterSoon(ctx, u, want)
	}
	u.Needs = r.unmet(u)
	r.o.Health.Equip(&u)
	release := r.o.Logs.Hold(u.Name)
	r.o.Logs.Open(u.Name, u.Profile, u.Log, u.Kind)
	if u.Kind == supervisor.KindGateway {
		r.o.Logs.MaskSecrets(u.Name, u.Profile)
	}
	known := r.knows(u.Name)
	if !known { // a check may look out for the first line
		r.o.Health.Check(&u)
	}
	registered := r.Loop.RegisterSoon(ctx, u, want)
	return func() error {
		defer release()
		if err := registered(); err != nil {
			return fmt.Errorf("cannot register %s: %w", u.Name, err)
		}
		if known { // the run so far counts no more
			r.o.Health.Check(&u)
		}
		r.meetLate(u)
		return nil
	}
}

func (r *Registry) knows(service string) bool { return r.Snapshot().Find(service) != nil }

// Observe forgets the log and the checks of a service that the supervisor has forgotten. It does not block.
func (r *Registry) Observe(rec supervisor.Record) {
	if !rec.Dropped {
		return
	}
	if !r.knows(rec.Service) {
		r.o.Health.Drop(rec.Service)
		r.o.Units.Ungroup(rec.Service)
	}
	r.o.Logs.Drop(rec.Service, r.knows)
}

// Reserved says why somebody else's service may not have a name, "" when it may.
func (r *Registry) Reserved(name string) string {
	switch {
	case name == units.CmdName, name == MainHermes, strings.HasPrefix(name, units.HookPrefix):
		return "the name is taken by hinit itself"
	case r.knows(name):
		return "hinit has a service of that name; `hinit start " + name + "` brings its slot back"
	}
	return ""
}

// Settings returns the settings of a service that differ from the defaults; of the container all that are in force for "".
func (r *Registry) Settings(service string) (out []client.ConfigEntry) {
	cfg := r.o.Config()
	entries := cfg.InForce(service)
	if service == "" {
		entries = cfg.Effective()
	}
	for _, e := range entries {
		out = append(out, client.ConfigEntry{Key: e.Key, Value: e.Value, Origin: e.Origin})
	}
	return out
}

// Identity returns how somebody else's service runs, but for its command: as root, without anything from the agent, or as the agent.
func (r *Registry) Identity(root bool) proc.Spec { return r.o.Units.Foreign(r.o.Config(), root) }

// Room says why there is no room for somebody else's service, nil when there is. Such a service costs more descriptors than others.
func (r *Registry) Room() error { return tuning.SpareDescriptors() }

// The needs of services (contract, section 2).
const (
	NeedBoot     = "boot"     // the hooks have run, and the profiles have been read or do not answer
	NeedProfiles = "profiles" // the profiles have been read, and what their last gateways have left is removed
)

// needs says which needs are met. A need is set here before the supervisor is told.
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

// Meet starts everything that waits for a need. It fails when the container has ended.
func (r *Registry) Meet(ctx context.Context, need string) error {
	r.met.of(need).Store(true)
	return r.Do(ctx, supervisor.Met{Need: need})
}

// StartInOrder makes gateways wait until all profiles are known, so that the profile that was used last starts first.
func (r *Registry) StartInOrder(on bool) { r.met.inOrder.Store(on) }

// unmet returns what a service has to wait for: a gateway for the boot's decision about its profile, a hook for nothing, any other
// service for the boot.
func (r *Registry) unmet(u supervisor.Unit) []string {
	switch {
	case u.Name == config.LeaseName && !r.o.Plain: // the boot waits for it
	case u.Kind == supervisor.KindService && !r.met.boot.Load():
		return []string{NeedBoot}
	case u.Kind == supervisor.KindGateway && !r.met.profiles.Load() && (!r.Exists(u.Profile) || r.met.inOrder.Load()):
		return []string{NeedProfiles}
	}
	return nil
}

// meetLate tells the supervisor again of needs that were met while a service was registered.
func (r *Registry) meetLate(u supervisor.Unit) {
	for _, need := range u.Needs {
		if r.met.of(need).Load() {
			r.Post(supervisor.Met{Need: need})
		}
	}
}
