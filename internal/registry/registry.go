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

// MainSlotName is the name of the slot for the container's CMD in the image with s6. The slot always reports "up". hinit has no
// service of this name.
const MainSlotName = "main-hermes"

// Loop is the part of [supervisor.Loop] that a Registry and its callers use.
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Post(e supervisor.Event)
	ReapNow(ctx context.Context, dead ...int) error
	RegisterSoon(ctx context.Context, u *supervisor.Unit, want supervisor.Want) (answer func() error)
	supervisor.TaskLoop
}

// Options are the parts of hinit that a Registry uses.
type Options struct {
	Loop             Loop
	Config           func() *config.Config // returns the current configuration
	Store            *profiles.Store
	Units            *units.Maker
	Logs             *logs.Logs
	Health           *health.Health
	Logger           *initlog.Logger
	AgentUID         uint32
	Actor            *fsutil.Actor        // the agent's user, for opening the logs of runs
	CheckMayRun      func() error         // returns why clients may not start a run now; nil if they may
	ServicesOnly     bool                 // hinit is a plain supervisor, whose configuration keeps its path
	ServesVolume     func() bool          // reports whether this init serves the volume's profiles and services
	SetConfig        func(*config.Config) // makes another configuration the current one
	StoresTaskStarts bool                 // whether the starts of scheduled tasks are stored on the volume
	WarnNotStored    func(error)          // called if the start of a scheduled task can't be stored on the volume
}

// Registry registers services. Any goroutine may call its methods.
type Registry struct {
	Loop

	// ChangeLock is held during an operation that changes many services: the boot, a reload, or a change of the topology.
	ChangeLock sync.Mutex
	reloadLock sync.Mutex // held during a reload, including the reading of the configuration; lock it before ChangeLock

	// Timetable starts tasks by their schedule. The caller of its methods must hold ChangeLock.
	Timetable *timetable.Timetable

	options      Options
	needsMet     map[string]*atomic.Bool // whether each need is met; set before the supervisor is notified
	orderedStart atomic.Bool             // whether gateways wait for all profiles, see SetOrderedStart

	mu            sync.Mutex
	slotMaker     SlotMaker       // interface that makes the slots; nil before SetSlotMaker
	slots         map[string]slot // slots by the name of the service
	downFiles     map[string]bool
	knownProfiles map[string]bool
}

// New returns a Registry without services.
func New(o Options) *Registry {
	var memory timetable.RunStore
	if o.StoresTaskStarts {
		memory = timetable.LastRuns{Home: o.Config().Home, Actor: o.Actor}
	}
	met := map[string]*atomic.Bool{NeedBoot: {}, NeedProfiles: {}}
	return &Registry{Loop: o.Loop, Timetable: timetable.New(o.Loop, memory, o.WarnNotStored), options: o, needsMet: met, slots: make(map[string]slot), downFiles: make(map[string]bool), knownProfiles: make(map[string]bool)}
}

// Register registers a service with its log and checks. A registered service gets the new definition and keeps its desired
// state.
func (r *Registry) Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return r.register(ctx, u, want)()
}

// register queues a registration and returns at once, see [supervisor.Loop.RegisterSoon]. The caller must call the result,
// which waits. Every registration goes through this function.
func (r *Registry) register(ctx context.Context, u supervisor.Unit, want supervisor.Want) (answer func() error) {
	if u.Kind == supervisor.KindCmd || u.Kind == supervisor.KindRun { // the CMD and commands of clients have no log here, and don't wait for the boot
		return r.Loop.RegisterSoon(ctx, &u, want)
	}
	u.Needs = r.unmetNeeds(u)
	r.options.Health.PrepareUnit(&u)
	release := r.options.Logs.Protect(u.Name)
	r.options.Logs.Open(u.Name, u.Profile, u.LogFile, u.Kind)
	if u.Kind == supervisor.KindGateway {
		r.options.Logs.MaskSecrets(u.Name, u.Profile)
	}
	known := r.isKnown(u.Name)
	if !known { // begin the checks first, so that they see the first line of output
		r.options.Health.SetChecks(&u)
	}
	registered := r.Loop.RegisterSoon(ctx, &u, want)
	return func() error {
		defer release()
		if err := registered(); err != nil {
			return fmt.Errorf("cannot register %s: %w", u.Name, err)
		}
		if known { // replace the checks of the old definition
			r.options.Health.SetChecks(&u)
		}
		for _, need := range u.Needs {
			if r.needsMet[need].Load() { // the need was met during this call
				r.Post(supervisor.NeedMet{Need: need})
			}
		}
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
		r.options.Health.Drop(rec.Service)
		r.options.Units.RemoveCgroup(rec.Service)
	}
	r.options.Logs.Drop(rec.Service, r.isKnown)
}

// WhyReserved says why another program must not make a service directory of this name; "" if it may.
func (r *Registry) WhyReserved(name string) string {
	switch {
	case name == units.CmdName, name == MainSlotName, strings.HasPrefix(name, units.HookPrefix):
		return "the name is taken by hinit itself"
	case r.isKnown(name):
		return "hinit has a service of that name; `hinit start " + name + "` brings its slot back"
	}
	return ""
}

// NonDefaultSettings returns the settings of a service that differ from the defaults.
func (r *Registry) NonDefaultSettings(service string) []client.ConfigEntry {
	return r.options.Config().NonDefaultSettings(service)
}

// ForeignSpec returns user, environment and directory for a service whose s6 directory another program has made. A service that
// runs as root gets no setting from the agent. Any other such service runs as the agent.
func (r *Registry) ForeignSpec(root bool) proc.Spec {
	return r.options.Units.ForeignServiceSpec(r.options.Config(), root)
}

// CheckCapacity returns an error if the file descriptors don't suffice for one more service whose s6 directory another program
// has made.
func (r *Registry) CheckCapacity() error { return tuning.CheckDescriptors() }

// The needs: conditions that the boot meets, and for which services wait before their start (contract, section 2).
const (
	NeedBoot     = "boot"     // the hooks have run, and the profiles were read or the volume does not answer
	NeedProfiles = "profiles" // the profiles were read, and stale files of earlier gateways removed
)

// MarkNeedMet marks a need as met, which starts the services that wait for it. It fails only if the container has ended.
func (r *Registry) MarkNeedMet(ctx context.Context, need string) error {
	r.needsMet[need].Store(true)
	return r.Do(ctx, supervisor.NeedMet{Need: need})
}

// SetOrderedStart says whether gateways wait until all profiles are known, so that recently used gateways start first.
func (r *Registry) SetOrderedStart(on bool) { r.orderedStart.Store(on) }

// unmetNeeds returns the unmet needs of a new service. A gateway waits until the boot has decided about its profile. Any other
// service waits for the boot.
func (r *Registry) unmetNeeds(u supervisor.Unit) []string {
	switch {
	case u.Name == config.LeaseName && !r.options.ServicesOnly: // the boot waits for the lease program
	case u.Kind == supervisor.KindService && !r.needsMet[NeedBoot].Load():
		return []string{NeedBoot}
	case u.Kind == supervisor.KindGateway && !r.needsMet[NeedProfiles].Load() && (!r.ProfileExists(u.Profile) || r.orderedStart.Load()):
		return []string{NeedProfiles}
	}
	return nil
}
