// Package health finds out how services are, and does about it what the configuration says.
//
// It joins checks, the messages of services on their sockets, deaf gateways and limits of memory. It equips each service before
// its start, reports findings to the supervisor, and gives status one view. The rooms below it own their goroutines; this one
// owns one while it reads the output of a check.
package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/notify"
	"hinit/internal/probe"
	"hinit/internal/proc"
	"hinit/logrotate"
	"hinit/profiles"
	"hinit/supervisor"
)

// Options are what a Health works with. The functions may be called from any goroutine.
type Options struct {
	Config    func() *config.Config
	Loop      *supervisor.Loop
	Store     *profiles.Store
	Agent     boot.Agent
	Plain     bool                                // there are no gateways
	Log       func(service string) *logrotate.Log // nil for none
	SocketDir func() string                       // where sockets of services have a place, "" for nowhere
	Warn      func(format string, args ...any)    // is shown in status too
	Lease     func(words string)                  // is told what the program of the lease says of it
}

// Health is the health of all services. Its methods may be called from any goroutine.
type Health struct {
	o Options

	checks *probe.Prober
	deaf   *probe.DeafWatch
	memory *memoryWatch
	notify *notify.Hub

	lastStranger atomic.Int64 // when somebody said something for a service that is not of it; nanoseconds since 1970
}

// New makes the health of a container that has no services yet, with the configuration that it has now.
func New(o Options) *Health {
	h := &Health{o: o}
	h.notify = notify.New(h.told)
	h.checks = probe.New(probe.Options{
		Snapshot: o.Loop.Snapshot, News: o.Loop.News, Ended: o.Loop.Ended(), Post: o.Loop.Post,
		Env: func(profile string) (map[string]string, error) {
			if profile == "" {
				profile = profiles.Default
			}
			return o.Store.Env(profile)
		},
		State: func(profile string) (profiles.State, error) {
			return ofRun(o.Loop.Snapshot().Find(profiles.SlotName(profile)), profile, o.Store.ReadState)
		},
		Watch: func(service string, seen func([]byte)) {
			if l := o.Log(service); l != nil {
				l.Watch(seen)
			}
		},
		Hear:     h.notify.Drain,
		Deafness: func(service string) (probe.Deafness, bool) { return h.deaf.Deafness(service) },
		Run:      h.runCheck,
	})
	meter := sync.OnceValue(proc.NewMeter) // where nothing is limited there is none
	h.memory = &memoryWatch{loop: o.Loop, container: proc.ReadContainerMemory, measure: func(mains []int) []proc.Memory { return meter().Measure(mains) }}
	h.deaf = h.newDeafWatch()
	h.Configure(o.Config())
	return h
}

// Configure applies a configuration's settings for memory and deaf gateways. Its settings for a service's checks and socket apply
// when that service is registered again.
func (h *Health) Configure(cfg *config.Config) {
	h.memory.limit(cfg)
	h.watchDeaf(cfg)
}

// checksOf returns the checks that the configuration has for a service.
func checksOf(cfg *config.Config, u *supervisor.Unit) []config.Check {
	switch u.Kind {
	case supervisor.KindGateway:
		return cfg.ChecksOf(u.Profile)
	case supervisor.KindService:
		s := cfg.Services[u.Name]
		return s.AllChecks()
	case supervisor.KindCmd, supervisor.KindHook, supervisor.KindStandIn, supervisor.KindRun, supervisor.KindCheck:
	}
	return nil
}

// Equip prepares a service that is about to be registered: it adds the socket for its messages, and says whether its checks
// decide its readiness.
func (h *Health) Equip(u *supervisor.Unit) {
	h.giveSocket(u)
	u.Checked = probe.Gates(probe.RulesOf(checksOf(h.o.Config(), u)))
}

// Check begins the checks of a service at its next start, or now if the service is running.
func (h *Health) Check(u *supervisor.Unit) {
	cfg := h.o.Config()
	checks := checksOf(cfg, u)
	t := probe.Target{Checks: checks, Profile: u.Profile, Spec: u.Spec}
	if len(checks) > 0 {
		t.Actor = h.actorOf(u.Spec.Cred)
		vars := map[string]string{}
		t.Env = cfg.Services[u.Name].Env
		t.AgentDecides = !h.o.Plain && h.o.Agent.Is(u.Spec.Cred)
		if u.Kind == supervisor.KindGateway {
			t.Env = maps.Clone(cfg.Agent.Env)
			maps.Copy(t.Env, cfg.Profiles.Own[u.Profile].Env)
			if p, err := h.o.Store.Profile(u.Profile); err == nil {
				vars["profile"], vars["profile_home"] = p.Name, p.Home
			}
		}
		t.Expand = func(text string) string { return cfg.ExpandString(text, vars) }
	}
	h.checks.Set(u.Name, t)
}

// actorOf acts as the user that a service runs as.
func (h *Health) actorOf(cred *proc.Cred) *fsutil.Actor {
	switch {
	case cred == nil:
		return fsutil.Self().In(blocking.Volume)
	case h.o.Agent.Is(cred):
		return h.o.Agent.Actor.In(blocking.Volume)
	}
	return fsutil.NewActor(fsutil.Identity{UID: cred.UID, GID: cred.GID, Groups: slices.Clone(cred.Groups)}).In(blocking.Volume)
}

// Note is what people should know of a service that is up, "" for nothing.
func (h *Health) Note(v *supervisor.Service) string {
	if d, deaf := h.deafness(v); deaf {
		return probe.IsDeaf + d.Why
	}
	return h.memory.note(v.Name)
}

// Beat notes a heartbeat of a profile's gateway.
func (h *Health) Beat(profile string) { h.deaf.Beat(profile) }

// Drop forgets a service that is gone.
func (h *Health) Drop(service string) {
	h.checks.Drop(service)
	h.notify.Drop(service)
}

// Handover is the state that a Health hands over to the Health of PID 1's next image.
type Handover struct {
	Checks *probe.Handover  // nil where there are no checks
	Notify *notify.Handover // nil where no service says anything
}

// HandOver returns it.
func (h *Health) HandOver() Handover { return Handover{h.checks.HandOver(), h.notify.HandOver()} }

// TakeOver takes it over together with the services, whose logs must be open. It ends the checks that run as commands: their answers are not
// waited for any more.
func (h *Health) TakeOver(old Handover, services *supervisor.Handover) {
	for _, s := range h.o.Loop.Snapshot().Services {
		if s.Kind == supervisor.KindCheck {
			h.o.Loop.Resume(supervisor.Evict{Names: []string{s.Name}, Reason: "another image asks again"})
		}
	}
	h.checks.TakeOver(old.Checks)
	for _, u := range services.Units {
		h.Check(&u.Unit)
	}
	h.notify.TakeOver(old.Notify) // last: what is said goes to the checks
}

// Steer pauses the checks of a service until a time, or asks them now where that is zero.
func (h *Health) Steer(service string, paused time.Time) error {
	if h.checks.Steer(service, paused) {
		return nil
	}
	return fmt.Errorf("%s has no checks; write some into hinit.yaml", service)
}

// Checks returns the results of the checks of a service, nil for none.
func (h *Health) Checks(service string) []client.Check {
	deaf := h.deafCheck(service)
	found, types, ok := h.checks.Health(service)
	if !ok {
		return deaf
	}
	out := make([]client.Check, len(found.Checks))
	for i := range found.Checks {
		p := &found.Checks[i]
		c := client.Check{Name: p.Rule.Name, Kind: p.Rule.Kind, Type: types[i], State: string(p.Verdict), Since: p.Since, Answer: p.Answer, Failures: p.Failures(), Failed: p.Verdict == probe.Failing}
		if found.Held(i) && p.Verdict == probe.Pending {
			c.State = client.CheckHeld
		}
		if !found.Paused.IsZero() {
			c.State, c.Failed = client.CheckPaused, false
		}
		if !p.Asked.IsZero() {
			c.At = &p.Asked
		}
		out[i] = c
	}
	return append(out, deaf...)
}

// ofRun reads the state file of a profile, and refuses one that names a process of another run.
func ofRun(s *supervisor.Service, profile string, read func(string) (profiles.State, error)) (profiles.State, error) {
	st, err := read(profile)
	if st.StartTime != 0 && s != nil && s.PID != 0 && !proc.InRun(st.PID, st.StartTime, s.PID) {
		return profiles.State{}, errors.New(profiles.StateFile + " says nothing of this run yet")
	}
	return st, err
}
