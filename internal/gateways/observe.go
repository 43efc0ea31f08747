package gateways

import (
	"context"
	"slices"
	"strings"
	"time"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

// Observe handles a record of the supervisor. It does not block: work that needs the disk is queued.
func (k *Reconciler) Observe(r supervisor.Record) {
	profile, ok := profiles.SlotProfile(r.Service)
	if !ok {
		return
	}
	changed := r.From != r.To
	if r.To == supervisor.Starting && changed {
		k.mu.Lock()
		k.get(profile).begun = r.At
		k.mu.Unlock()
		k.enqueue(r.Service, func() { k.ReadSecrets(r.Service, profile) })
	}
	var job func()
	switch {
	case r.Dropped: // an earlier job may have stored a record after the profile disappeared
		job = func() {
			if !k.Registry.Exists(profile) && k.Registry.Snapshot().Find(r.Service) == nil {
				k.forget(profile)
			}
		}
	case r.Exit != nil && r.Exit.Cause == supervisor.CauseOperator:
		job = func() { k.Store.ForgetPlannedStop(profile, r.Exit.PID) } // a gateway that ended early has not removed the marker
	case r.Exit != nil && r.Exit.Cause == supervisor.CauseClean && r.Exit.Code == 0:
		job = func() { k.explain(r.Service, profile, r.Exit, 0) }
	case r.To == supervisor.Parked && changed:
		job = func() { k.parked(r.Service, profile, r.Reason) }
	case r.From == supervisor.Parked && changed:
		job = func() { k.watch().Disinterest(profile) }
	case r.To == supervisor.Up && changed:
		job = func() {
			k.noteInputs(r.Service, profile)
			k.noteExclusives(r.Service, profile)
			k.up(profile, false)
		}
	case r.To == supervisor.Down && changed && k.isStopping() && !k.asked(profile):
		// A stopped gateway needs no intent restored, and hinit does not use the rest of the file.
	case r.To == supervisor.Down && changed:
		job = func() { k.followState(profile) }
	}
	if job != nil {
		k.enqueue(r.Service, job)
	}
}

func (k *Reconciler) asked(profile string) bool {
	_, asked := k.Intents.Want(profile)
	return asked
}

// Catchup makes up for records that [Reconciler.Observe] has not seen: they were lost, or another program observed them.
func (k *Reconciler) Catchup() {
	for _, s := range k.Registry.Snapshot().Services {
		profile, ok := profiles.SlotProfile(s.Name)
		x := s.LastExit
		switch {
		case !ok:
		case s.State == supervisor.Up:
			k.enqueue(s.Name, func() { k.up(profile, true) })
		case s.State == supervisor.Parked:
			k.enqueue(s.Name, func() { k.parked(s.Name, profile, s.Reason) })
		case s.State == supervisor.Backoff && x.Cause == supervisor.CauseClean && x.Code == 0:
			k.enqueue(s.Name, func() { k.explain(s.Name, profile, x, 0) })
		}
	}
	for _, profile := range k.Intents.Pending() {
		k.recordLater(profiles.SlotName(profile), profile)
	}
}

// up handles a gateway that is up: its state file may have been written before the supervisor knew of the start. still says that
// the gateway may have been up for long. Then up keeps the topology that was stored for this run.
func (k *Reconciler) up(profile string, still bool) {
	if profile == profiles.Default && !(still && k.defaultRun() == k.serving.Load().noted) {
		k.noteTopology(context.Background()) // the context is not needed: the call ends with the supervisor's loop
	}
	k.followState(profile)
	service := profiles.SlotName(profile)
	if k.Config().Agent.Ready != config.ReadyState {
		return
	}
	k.enqueueIn(hintAfter, service, func() {
		if s := k.Registry.Snapshot().Find(service); s != nil && s.State == supervisor.Up && !s.Ready {
			k.followState(profile)
		}
	})
}

// parked watches for the event that ends the parking of a gateway.
func (k *Reconciler) parked(service, profile, reason string) {
	if reason == supervisor.ReasonReplaced {
		k.watchReplacer(service, profile)
		return
	}
	k.watch().Interest(profile, k.inputsOf(profile))
}

// followState updates readiness and intent from a state file. It runs as a job and reads the file itself, so older content never
// follows newer content.
func (k *Reconciler) followState(profile string) {
	k.noteHome(profile)
	state, _ := k.Store.ReadState(profile) // the watcher reports an unreadable file
	service := profiles.SlotName(profile)
	k.mu.Lock()
	k.get(profile).wanted = state.Start()
	k.mu.Unlock()
	s := k.Registry.Snapshot().Find(service)
	if s != nil && s.PID != 0 && profile == profiles.Default {
		k.noteServed(s, state)
	}
	if s != nil && s.State == supervisor.Up && k.Config().Agent.Ready == config.ReadyState {
		ready, said := k.readiness(profile, state, s)
		// sent even if the snapshot agrees, because the snapshot may be outdated
		k.Registry.Post(supervisor.Ready{Name: service, Run: s.Run, Ready: ready, Text: said})
	}
	outcome, err := k.Intents.Restore(profile, state)
	serves, _ := k.by(profile)
	serves = serves && !k.Registry.Beside(profile) // the agent's own boot leaves a down file for such a profile too
	if want, asked := k.Intents.Want(profile); asked {
		k.Registry.SetDown(profile, want != profiles.Running || serves || k.isCmd(profile), false)
	} else if state.HasDesired {
		k.Registry.SetDown(profile, state.Desired != profiles.Running || serves || k.isCmd(profile), false)
	}
	switch {
	case err != nil:
		k.say("%s: cannot put desired_state back: %v", service, err)
	case outcome == profiles.Missing:
		k.enqueueIn(profiles.RestoreDelay+100*time.Millisecond, service, func() { k.followState(profile) }) // then the file may be restored
	case outcome == profiles.Restored:
		k.say("%s: desired_state was lost in a rewrite of gateway_state.json and is back", service)
	}
}

// hintAfter is how long a gateway must be up and not ready before hintReady is added: just before a client that waits 30 s gives
// up.
const hintAfter = 29 * time.Second

// hintReady is advice for an agent that was not made for hinit.
const hintReady = "; for an agent that never writes it there, set agent.ready to up in hinit.yaml"

// readiness decides by a state file whether the run of a service is ready. said is why it isn't, or a warning if it is.
func (k *Reconciler) readiness(profile string, state profiles.State, s *supervisor.Service) (ready bool, said string) {
	ofRun, hint := proc.InRun(state.PID, state.StartTime, s.PID), ""
	if time.Since(s.Since) >= hintAfter {
		hint = hintReady
	}
	switch {
	case !state.Exists:
		return false, "there is no " + profiles.StateFile + " yet" + hint
	case !ofRun && !state.HasGateway: // hinit alone has written the file
		return false, profiles.StateFile + " says nothing of this run yet" + hint
	case !ofRun:
		return false, profiles.StateFile + " says nothing of this run yet"
	}
	ready = state.Gateway == "running" || state.Gateway == "degraded"
	switch {
	case ready:
	case !state.HasGateway:
		said = profiles.StateFile + " does not say in what state it is"
	default:
		said = profiles.StateFile + " says " + state.Gateway
		if state.ExitReason != "" {
			said += ": " + state.ExitReason
		}
	}
	return ready, strings.Join(slices.DeleteFunc([]string{said, k.trouble(profile, state)}, func(s string) bool { return s == "" }), "; ")
}

// trouble describes what is wrong with the platforms of a running gateway. It also writes that to the container log when it
// changes.
func (k *Reconciler) trouble(profile string, state profiles.State) string {
	text := state.Trouble()
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.get(profile)
	if text != "" && text != g.trouble {
		k.say("%s: %s", profiles.SlotName(profile), text)
	}
	g.trouble = text
	return text
}

const (
	// takeoverLooks is the least number of checks whether another instance has taken over, after a clean exit that no operator
	// requested. The new instance writes its marker only after the old one is gone. Each pause between checks is twice as long as
	// the one before. The checks also go on during the whole restart delay, because a start would end the new instance.
	takeoverLooks = 5
	// replacerPoll is the time between checks whether the instance that replaced a gateway still runs.
	replacerPoll = 2 * time.Second
)

// explain finds out whether a clean exit happened because another instance has taken over.
func (k *Reconciler) explain(service, profile string, exit *supervisor.Exit, looks int) {
	s := k.Registry.Snapshot().Find(service)
	if s == nil || s.Run != exit.Run {
		return // it has been started again meanwhile
	}
	if k.takenOver(profile, exit) {
		k.Registry.Post(supervisor.CorrectCause{Name: service, Run: exit.Run, Cause: supervisor.CauseReplaced})
		return
	}
	if looks < takeoverLooks || s.State == supervisor.Backoff {
		wait := min(25*time.Millisecond<<min(looks, 10), replacerPoll)
		k.enqueueIn(wait, service, func() { k.explain(service, profile, exit, looks+1) })
	}
}

// takenOver reports whether another instance has taken over from a run.
func (k *Reconciler) takenOver(profile string, exit *supervisor.Exit) bool {
	return k.Store.TakeoverOf(profile, exit.PID, exit.At.Add(-exit.Uptime))
}

// watchReplacer starts a wanted gateway when the instance that replaced it is gone.
func (k *Reconciler) watchReplacer(service, profile string) {
	s := k.Registry.Snapshot().Find(service)
	if s == nil || s.State != supervisor.Parked || s.LastExit == nil {
		return
	}
	if !k.takenOver(profile, s.LastExit) {
		k.say("%s: the instance that took over is gone", service)
		k.Registry.Post(supervisor.InputsChanged{Name: service})
		return
	}
	k.enqueueIn(replacerPoll, service, func() { k.watchReplacer(service, profile) })
}

// otherInputs is a hash that equals no real one, so all existing inputs count as changed.
const otherInputs profiles.Hash = "written since the start"

// noteInputs stores the inputs with which a gateway was started: a later change restarts it when it is parked. A change between
// the start and this reading counts too, but only once for the same content. Otherwise a gateway that writes these files itself
// would be restarted forever.
func (k *Reconciler) noteInputs(service, profile string) {
	hash, err := k.Store.InputsHash(profile)
	if err != nil {
		k.say("%s: cannot watch its inputs: %v", service, err)
	}
	k.mu.Lock()
	begun := k.get(profile).begun
	k.mu.Unlock()
	late := err == nil && !begun.IsZero() && k.Store.InputsChangedSince(profile, begun)
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.get(profile)
	if late && g.doubted != hash {
		g.doubted = hash
		hash = otherInputs
	}
	g.inputs = hash
}
