package gateways

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

// A profile is served by its own gateway, or by the default profile's gateway (a multiplexer).

// serving is what is known of the default profile's gateway. It is immutable.
type serving struct {
	profiles.Topology        // as the gateway was started, or would be started
	noted             uint64 // run to which Topology belongs; 0 for none

	said  bool           // the running gateway has reported which profiles it serves
	run   uint64         // the run of that report
	state profiles.State // the report
}

// by reports whether the default profile's gateway serves another profile. said says that the gateway itself has reported so;
// otherwise hinit only expects it.
func (k *Reconciler) by(profile string) (serves, said bool) {
	d := k.Registry.Snapshot().Find(profiles.SlotName(profiles.Default))
	now := k.serving.Load()
	switch {
	case profile == profiles.Default || d == nil || d.Want != supervisor.WantUp:
		return false, false
	case now.said && d.Run == now.run && d.PID != 0:
		return now.state.Serves(profile), true
	}
	return now.Serves(profile), false
}

// ServedBy returns which gateway serves the profile of a gateway, in a word of the API. It is "" if each gateway serves its own
// profile, and for a profile that need not be served.
func (k *Reconciler) ServedBy(s *supervisor.Service) string {
	if s.Kind != supervisor.KindGateway || s.Profile == profiles.Default {
		return ""
	}
	serves, said := k.by(s.Profile)
	own := s.State != supervisor.Down
	switch {
	case serves && own:
		return client.ServedTwice
	case serves && said:
		return client.ServedByDefault
	case serves:
		return client.ServedExpected
	case !k.serving.Load().Multiplexed:
		return ""
	case own:
		return client.ServedItself
	case k.wanted(s.Profile):
		return client.ServedByNone
	}
	return ""
}

const servedByDefault = "served by the multiplexer of profile " + profiles.Default

// Note returns a remark for the status: which gateway serves the profile, and which exclusive values it shares with another
// gateway.
func (k *Reconciler) Note(s *supervisor.Service) string {
	switch k.ServedBy(s) {
	case client.ServedTwice:
		return "served twice: by its own gateway and by the multiplexer of profile " + profiles.Default + "; end one: hinit stop " + s.Profile
	case client.ServedByDefault:
		return servedByDefault
	case client.ServedExpected:
		return "expected to be " + servedByDefault
	case client.ServedByNone:
		return "no gateway serves it, and it is wanted: hinit start " + s.Profile
	}
	if s.State == supervisor.Down && s.Run == 0 && s.Kind == supervisor.KindGateway {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.get(s.Profile).prior
	}
	return k.clash(s)
}

// wanted reports whether the state file of a profile wants its gateway up.
func (k *Reconciler) wanted(profile string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.gateways[profile]
	return g != nil && g.wanted
}

// Beside lets the gateway of a profile run although the multiplexer serves the profile, until the gateway is stopped.
func (k *Reconciler) Beside(service string) {
	profile, ok := profiles.SlotProfile(service)
	if serves, _ := k.by(profile); ok && serves {
		k.Registry.SetBeside(context.Background(), profile, true) // the context is not needed: the call ends with the supervisor's loop
	}
}

// Refuse returns an error for a gateway that must not be started, because the default profile's gateway serves its profile.
func (k *Reconciler) Refuse(service string) error {
	profile, ok := profiles.SlotProfile(service)
	if serves, _ := k.by(profile); !ok || !serves || k.Registry.Beside(profile) {
		return nil
	}
	return &client.Error{Kind: client.KindFailed, Message: servedByDefault + " (`--force` to run it beside)"}
}

// served returns the gateways that run although, according to the configuration, the default profile's gateway serves their
// profiles.
func (k *Reconciler) served(t profiles.Topology) []string {
	return k.others(func(s *supervisor.Service) bool {
		return s.State != supervisor.Down && t.Serves(s.Profile) && !k.Registry.Beside(s.Profile)
	})
}

// unserved returns the gateways that are down, although they are wanted and the default profile's gateway does not serve their
// profiles.
func (k *Reconciler) unserved(t profiles.Topology) []string {
	return k.others(func(s *supervisor.Service) bool {
		return s.State == supervisor.Down && !t.Serves(s.Profile) && k.wanted(s.Profile)
	})
}

// others returns the gateways that match, without the default profile's.
func (k *Reconciler) others(match func(*supervisor.Service) bool) (names []string) {
	for _, s := range k.Registry.Snapshot().Services {
		if s.Kind == supervisor.KindGateway && s.Profile != profiles.Default && match(s) {
			names = append(names, s.Name)
		}
	}
	return names
}

// retireTime limits the wait for gateways to end before the multiplexer starts. A KILL comes earlier.
const retireTime = 2 * time.Minute

// retire ends the gateways whose profiles the default profile's gateway will serve, and returns when all their processes have
// ended. Their desired states stay on the volume.
func (k *Reconciler) retire(ctx context.Context, t profiles.Topology) error {
	names := k.served(t)
	for _, name := range names {
		k.say("%s: it ends, because the gateway of profile %s serves its profile", name, profiles.Default)
	}
	return k.end(ctx, names...)
}

// end ends gateways. It returns when all their processes have ended, or when one is wanted again.
func (k *Reconciler) end(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := k.Registry.Do(ctx, supervisor.Stop{Name: name}); err != nil {
			return err
		}
	}
	return k.await(ctx, func(snap *supervisor.Snapshot) string {
		for _, name := range names {
			if s := snap.Find(name); s != nil && s.State != supervisor.Down && s.Want == supervisor.WantDown {
				return name + " has not ended"
			}
		}
		return ""
	})
}

// await waits until the function what returns "". Any other result describes what is missing, and becomes part of the error.
func (k *Reconciler) await(ctx context.Context, what func(*supervisor.Snapshot) string) error {
	ctx, cancel := context.WithTimeout(ctx, retireTime)
	defer cancel()
	for {
		news := k.Registry.News()
		missing := what(k.Registry.Snapshot())
		if missing == "" {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("cannot change who serves the profiles: %s: %w", missing, context.Cause(ctx))
		}
	}
}

// noteTopology reads how the default profile's gateway, which has just started, serves the profiles. After a change it ends
// gateways whose profiles would be served twice, or starts wanted gateways again.
func (k *Reconciler) noteTopology(ctx context.Context) {
	run := k.defaultRun() // read before the rest: a run that begins later is handled separately
	t, err := k.Store.Topology(os.Getenv, "")
	if err != nil {
		k.say("cannot tell whether the default profile serves the others: %v", err)
	}
	k.mu.Lock()
	was := k.serving.Swap(&serving{Topology: t, noted: run})
	k.mu.Unlock()
	if t.Multiplexed && !was.Multiplexed {
		k.say("gateways that are down are " + servedByDefault)
	}
	if len(k.served(t)) > 0 {
		guard.Go("ending gateways whose profiles are served", func() {
			if err := k.makeWay(ctx, t); err != nil {
				k.say("%v", err)
			}
		})
	}
	if was.Multiplexed && !t.Multiplexed {
		k.startUnserved(ctx, t)
	}
	if t.Multiplexed != was.Multiplexed {
		for _, p := range k.Registry.Present() {
			if !t.Multiplexed {
				k.Registry.SetBeside(ctx, p.Name, false)
			}
			if p.Name != profiles.Default {
				k.enqueue(profiles.SlotName(p.Name), func() { k.followState(p.Name) }) // updates its down file
			}
		}
	}
}

// makeWay is called when a default gateway that was started without a command, as after a crash, now serves profiles of other
// gateways. It ends the default gateway at once, then the others, and then starts the default gateway again.
func (k *Reconciler) makeWay(ctx context.Context, t profiles.Topology) error {
	name := profiles.SlotName(profiles.Default)
	k.say("%s: it waits until the gateways whose profiles it serves now have ended", name)
	if err := k.end(ctx, name); err != nil {
		return err
	}
	if err := k.retire(ctx, t); err != nil {
		return err
	}
	if want, asked := k.Intents.Want(profiles.Default); asked && want != profiles.Running {
		return nil // it was stopped by an operator meanwhile
	}
	return k.Registry.Do(ctx, supervisor.Start{Name: name})
}

// startUnserved starts the wanted gateways whose profiles no gateway serves.
func (k *Reconciler) startUnserved(ctx context.Context, t profiles.Topology) {
	for _, name := range k.unserved(t) {
		_ = k.Registry.Do(ctx, supervisor.Start{Name: name}) // fails if the service was removed
	}
}

// defaultRun returns the run of the default profile's gateway, 0 for none.
func (k *Reconciler) defaultRun() uint64 {
	if d := k.Registry.Snapshot().Find(profiles.SlotName(profiles.Default)); d != nil {
		return d.Run
	}
	return 0
}

// noteServed reads from the state file of the default profile's running gateway which profiles it serves. If these are more than
// expected, the configuration has changed while the gateway was starting, so the configuration is read again.
func (k *Reconciler) noteServed(s *supervisor.Service, state profiles.State) {
	said := state.HasServed && proc.InRun(state.PID, state.StartTime, s.PID)
	was := k.serving.Load()
	more := func(o *supervisor.Service) bool {
		return o.State != supervisor.Down && state.Serves(o.Profile) && !was.Serves(o.Profile)
	}
	if said && !(was.said && was.run == s.Run) && len(k.others(more)) > 0 {
		k.noteTopology(context.Background()) // the context is not needed: the call ends with the supervisor's loop
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := *k.serving.Load()
	now.said, now.run, now.state = said, s.Run, state
	k.serving.Store(&now)
}

// Topology changes which gateways serve the profiles. With dry it only reports the effect of such a change. During the change no
// profile is served twice. A change that has begun is completed, even if the client stops waiting.
func (k *Reconciler) Topology(ctx context.Context, mode string, dry bool) (out client.TopologyReply, err error) {
	if !k.Route().HasProfiles() {
		return out, errors.New("this container has no gateways")
	}
	if err := k.MayServe(); err != nil {
		return out, err
	}
	select {
	case k.changing <- struct{}{}:
		defer func() { <-k.changing }()
	case <-ctx.Done():
		return out, fmt.Errorf("cannot change who serves the profiles: another change is not done: %w", context.Cause(ctx))
	}
	t, err := k.Store.Topology(os.Getenv, mode)
	if err != nil {
		return out, err
	}
	out = client.TopologyReply{Mode: profiles.PerProfile, From: t.From, DryRun: dry, Steps: []string{}}
	if t.Multiplexed {
		out.Mode = profiles.Multiplex
	}
	if mode == "" {
		return out, nil
	}
	d := k.Registry.Snapshot().Find(profiles.SlotName(profiles.Default))
	restart := d != nil && d.Want == supervisor.WantUp && k.serving.Load().Multiplexed != t.Multiplexed
	for _, name := range k.served(t) {
		out.Steps = append(out.Steps, "stop "+name)
	}
	if restart {
		out.Steps = append(out.Steps, "restart "+d.Name)
	}
	if !t.Multiplexed {
		for _, name := range k.unserved(t) {
			out.Steps = append(out.Steps, "start "+name)
		}
	}
	if dry {
		return out, nil
	}
	ctx = context.WithoutCancel(ctx)
	if err := k.Store.SetTopology(mode); err != nil {
		return out, fmt.Errorf("cannot record the topology: %w", err)
	}
	if err := k.Registry.SetTopology(ctx, t); err != nil {
		return out, err
	}
	if err := k.retire(ctx, t); err != nil {
		return out, err
	}
	if restart {
		if err := k.Registry.Do(ctx, supervisor.Restart{Name: d.Name}); err != nil {
			return out, err
		}
		err := k.await(ctx, func(snap *supervisor.Snapshot) string {
			if s := snap.Find(d.Name); s != nil && s.Run <= d.Run {
				return d.Name + " has not ended"
			}
			return ""
		})
		if err != nil {
			return out, err
		}
	}
	k.noteTopology(ctx)
	if !t.Multiplexed {
		k.startUnserved(ctx, t)
	}
	return out, nil
}

// noteExclusives stores the exclusive values of a gateway that has come up, and warns if another living gateway uses one of them
// too.
func (k *Reconciler) noteExclusives(service, profile string) {
	list, _ := k.Store.Exclusives(profile) // an unreadable file can't be compared
	k.mu.Lock()
	k.get(profile).exclusives = list
	k.mu.Unlock()
	if s := k.Registry.Snapshot().Find(service); s != nil {
		if text := k.clash(s); text != "" {
			k.say("%s: warning: %s", service, text)
		}
	}
}

// clash describes an exclusive value that a living gateway shares with another one: two programs that use one token lose
// messages.
func (k *Reconciler) clash(s *supervisor.Service) string {
	if s.Kind != supervisor.KindGateway || s.PID == 0 {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	mine := k.get(s.Profile).exclusives
	if len(mine) == 0 {
		return ""
	}
	var told []string
	for _, o := range k.Registry.Snapshot().Services {
		if o.Kind != supervisor.KindGateway || o.PID == 0 || o.Name == s.Name {
			continue
		}
		for _, x := range k.get(o.Profile).exclusives {
			if text := "it has the same " + x.Name + " as " + o.Name; slices.Contains(mine, x) && len(told) < 4 {
				told = append(told, text)
			}
		}
	}
	return strings.Join(told, "; ")
}
