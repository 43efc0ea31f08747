package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/profiles"
	"hinit/supervisor"
)

// keeper keeps the profiles on the disk and the gateways in the supervisor in step: profiles that come and go, readiness,
// intent, and what an exit meant. Its work waits for the disk, so none of it is done in the supervisor's loop.
type keeper struct {
	c       *container
	known   []profiles.Profile // of the boot pass
	watcher *profiles.Watcher
	unwatch context.CancelFunc // ends the watcher; under mu, like stopping

	jobs chan func() // one after the other, off the reporting goroutine

	mu         sync.Mutex
	inputs     map[string]profiles.Hash // by profile, as its gateway was started
	doubted    map[string]profiles.Hash // by profile: inputs that its gateway may not have been started with
	begun      map[string]time.Time     // by profile: when the last start began
	unrecorded map[string]bool          // by profile: an intent waits for the disk
	lanes      map[string]lane          // by profile
	present    map[string]bool          // profiles that are on the volume, as far as anybody has looked
	marked     map[string]bool          // by profile: what the down file of its slot was last made to say
	stopping   bool                     // the container is
}

// lane puts the commands for one profile into one order, on the disk and in the supervisor alike. Who holds it has put a
// token in.
type lane chan struct{}

// enter waits for its turn. A command that waits behind one that a hung disk holds gives up with ctx.
func (l lane) enter(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("an earlier command for this profile still waits for the data volume: %w", context.Cause(ctx))
	}
}

func (l lane) leave() { <-l }

func newKeeper(c *container) *keeper {
	return &keeper{
		c: c, jobs: make(chan func(), jobsKept),
		inputs: make(map[string]profiles.Hash), doubted: make(map[string]profiles.Hash), begun: make(map[string]time.Time),
		unrecorded: make(map[string]bool), lanes: make(map[string]lane), present: make(map[string]bool), marked: make(map[string]bool),
	}
}

// start begins to watch. Records that came in before are worked off then.
func (k *keeper) start(ctx context.Context) {
	notify := func(e profiles.Event) { k.profileEvent(ctx, e) }
	watching, unwatch := context.WithCancel(ctx)
	k.mu.Lock()
	k.watcher, k.unwatch = k.c.store.Watch(watching, profiles.WatchOptions{Notify: notify, Known: k.known}), unwatch
	if k.stopping {
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

// stop is called when the container is about to stop. What comes and goes on the volume makes no difference any more, and the
// kernel takes its time, up to 20 ms, to close what tells of it (inotify(7)): if that were left to the end, the end would
// wait for it.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopping = true
	if k.unwatch != nil {
		k.unwatch()
	}
}

func (k *keeper) isStopping() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopping
}

func (k *keeper) watch() *profiles.Watcher {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watcher
}

// lane returns that of a profile.
func (k *keeper) lane(profile string) lane {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lanes[profile] == nil {
		k.lanes[profile] = make(lane, 1)
	}
	return k.lanes[profile]
}

// forget drops what is kept of a profile that is gone. A command that is in its lane meanwhile finds no such profile.
func (k *keeper) forget(profile string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.inputs, profile)
	delete(k.doubted, profile)
	delete(k.begun, profile)
	delete(k.lanes, profile)
	delete(k.present, profile)
	delete(k.marked, profile)
}

// mark takes note of what the down file of a profile's slot says, and reports whether that is new.
func (k *keeper) mark(profile string, down bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, known := k.marked[profile]
	k.marked[profile] = down
	return !known || was != down
}

// markDown lets the down file of a profile's slot follow a change of the intent. Without a change nothing is written: who
// removes a slot removes its down file first, and must not find it there again.
func (k *keeper) markDown(profile string, down bool) {
	if k.mark(profile, down) {
		k.c.setDown(profile, down)
	}
}

// takeOver makes the keeper know what that of the image before this one did.
func (k *keeper) takeOver(old *legacy) {
	maps.Copy(k.inputs, old.Inputs)
	maps.Copy(k.present, old.Present)
	maps.Copy(k.marked, old.Marked)
}

// note says that a profile is on the volume.
func (k *keeper) note(profile string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.present[profile] = true
}

// exists says whether a profile is on the volume. One that is not can have a gateway all the same, whose slot somebody has
// registered.
func (k *keeper) exists(profile string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.present[profile]
}

// profileEvent is called by the watcher.
func (k *keeper) profileEvent(ctx context.Context, e profiles.Event) {
	c := k.c
	switch e := e.(type) {
	case profiles.Appeared:
		c.say("[hinit] profile %s appeared", e.Profile.Name)
		c.adopt(ctx, e.Profile.Name)
		k.note(e.Profile.Name)
		if err := c.registerGateway(ctx, c.cfg.Load(), e.Profile); err != nil && !errors.Is(err, supervisor.ErrStopping) {
			c.warn("%v", err)
		}
		state, _ := c.store.ReadState(e.Profile.Name) // without one it does not start by itself
		c.publishGateway(ctx, c.cfg.Load(), e.Profile, state.Prior() != profiles.Running)
	case profiles.Disappeared:
		c.say("[hinit] profile %s disappeared", e.Profile.Name)
		c.intents.Forget(e.Profile.Name)
		k.forget(e.Profile.Name)
		slot := profiles.SlotName(e.Profile.Name)
		_ = c.loop.Do(ctx, supervisor.Remove{Name: slot}) // it may be gone already
		if err := c.withdraw(ctx, slot); err != nil {
			c.say("[hinit] %v", err)
		}
	case profiles.StateChanged:
		slot := profiles.SlotName(e.Profile.Name)
		k.enqueue(slot, func() { k.followState(e.Profile.Name) })
	case profiles.InputsChanged:
		k.hideSecrets(profiles.SlotName(e.Profile.Name), e.Profile.Name)
		c.loop.Post(supervisor.Inputs{Name: profiles.SlotName(e.Profile.Name)})
	case profiles.Warned:
		c.warn("%s", e.Warning)
	}
}

// followState reads readiness and intent off a state file. It is a job, and reads the file itself, so that no older look is
// acted upon after a younger one.
func (k *keeper) followState(profile string) {
	state, _ := k.c.store.ReadState(profile) // the watcher warns of a file that tells nothing
	name := profiles.SlotName(profile)
	if s := k.c.loop.Snapshot().Find(name); s != nil && s.State == supervisor.Up && k.c.cfg.Load().Agent.Ready == config.ReadyState {
		ready := (state.Gateway == "running" || state.Gateway == "degraded") && ofRun(state.PID, s.PID)
		k.c.loop.Post(supervisor.Ready{Name: name, Run: s.Run, Ready: ready}) // which the snapshot may not know of yet
	}
	outcome, err := k.c.intents.Restore(profile, state)
	if want, asked := k.c.intents.Want(profile); asked {
		k.markDown(profile, want != profiles.Running)
	} else if state.HasDesired {
		k.markDown(profile, state.Desired != profiles.Running)
	}
	switch {
	case err != nil:
		k.c.say("[hinit] %s: cannot put desired_state back: %v", name, err)
	case outcome == profiles.Missing:
		k.lookLater(profile)
	case outcome == profiles.Restored:
		k.c.say("[hinit] %s: desired_state was lost in a rewrite of gateway_state.json and is back", name)
	}
}

// lookLater looks again at a state file that is not there, a little after it may be made again. A profile that is gone by
// then has nothing to restore.
func (k *keeper) lookLater(profile string) {
	time.AfterFunc(profiles.RestoreDelay+100*time.Millisecond, guard.Func("looking for a state file", func() {
		k.enqueue(profiles.SlotName(profile), func() { k.followState(profile) })
	}))
}

// ofRun reports whether pid is the main process of a run, or in the session it leads.
func ofRun(pid, main int) bool {
	if pid <= 0 || main <= 0 {
		return false
	}
	if pid == main {
		return true
	}
	session, err := unix.Getsid(pid)
	return err == nil && session == main
}

// jobsKept are more than one for each service of a big container, all of which come at once at its start.
const jobsKept = 8192

// observe takes note of a record of the supervisor. It does not block: what needs the disk is queued, and left out when
// the disk has hung for thousands of records.
func (k *keeper) observe(r supervisor.Record) {
	profile, ok := profiles.SlotProfile(r.Service)
	if !ok {
		return
	}
	if r.To == supervisor.Starting && r.From != r.To {
		k.begin(profile, r.At)
		if k.c.cfg.Load().Logs.Mask {
			k.enqueue(r.Service, func() { k.hideSecrets(r.Service, profile) })
		}
	}
	var job func()
	switch {
	case r.Dropped: // what came before it may have been noted after the profile had disappeared
		job = func() {
			if !k.exists(profile) && k.c.loop.Snapshot().Find(r.Service) == nil {
				k.forget(profile)
			}
		}
	case r.Exit != nil && r.Exit.Cause == supervisor.CauseClean && r.Exit.Code == 0:
		job = func() { k.explain(r.Service, profile, r.Exit, 0) }
	case r.To == supervisor.Parked && r.From != r.To && r.Reason == supervisor.ReasonReplaced:
		job = func() { k.watchReplacer(r.Service, profile) }
	case r.To == supervisor.Parked && r.From != r.To:
		job = func() { k.watch().Interest(profile, k.inputsOf(profile)) }
	case r.From == supervisor.Parked && r.From != r.To:
		job = func() { k.watch().Disinterest(profile) }
	case r.To == supervisor.Down && r.From != r.To && k.isStopping() && !k.asked(profile):
		// There is no intent that could have been lost, and nobody reads the rest any more.
	case r.To == supervisor.Up && r.From != r.To, r.To == supervisor.Down && r.From != r.To:
		job = func() {
			if r.To == supervisor.Up {
				k.noteInputs(r.Service, profile)
			}
			// The state file may have been rewritten before the supervisor knew of the start, or after the last look.
			k.followState(profile)
		}
	}
	if job != nil {
		k.enqueue(r.Service, job)
	}
}

func (k *keeper) asked(profile string) bool {
	_, asked := k.c.intents.Want(profile)
	return asked
}

// enqueue adds a job. It does not block: when the disk has hung for jobsKept jobs, this one is left out.
func (k *keeper) enqueue(name string, job func()) {
	select {
	case k.jobs <- job:
	default:
		k.c.say("[hinit] %s: the data volume does not answer, so its files are not followed", name)
	}
}

// takeoverLooks is how often, after a clean exit nobody asked for, the disk is asked whether another instance has taken
// over: the one that leaves removes its marker, and the new one writes its own file only when it sees that the other is
// gone. The looks, each twice as late as the one before, are over before the first restart delay is; while a longer delay lasts
// they go on, for a new instance that takes its time: to start the old one again would end it.
const takeoverLooks = 5

func (k *keeper) explain(name, profile string, exit *supervisor.Exit, looks int) {
	s := k.c.loop.Snapshot().Find(name)
	if s == nil || s.Run != exit.Run {
		return // it has been started again meanwhile
	}
	if k.c.store.TakeoverOf(profile, exit.PID) {
		k.c.loop.Post(supervisor.Explained{Name: name, Run: exit.Run, Cause: supervisor.CauseReplaced})
		return
	}
	if looks < takeoverLooks || s.State == supervisor.Backoff {
		time.AfterFunc(min(25*time.Millisecond<<min(looks, 10), replacerPoll), guard.Func("looking for a takeover", func() {
			k.enqueue(name, func() { k.explain(name, profile, exit, looks+1) })
		}))
	}
}

// replacerPoll is how often a gateway that was replaced looks whether the one that took over is still there.
const replacerPoll = 2 * time.Second

// watchReplacer starts a gateway that another instance has replaced when that instance is gone: the profile is wanted up,
// and nobody else would bring it back.
func (k *keeper) watchReplacer(name, profile string) {
	s := k.c.loop.Snapshot().Find(name)
	if s == nil || s.State != supervisor.Parked || s.LastExit == nil {
		return
	}
	if !k.c.store.TakeoverOf(profile, s.LastExit.PID) {
		k.c.say("[hinit] %s: the instance that took over is gone", name)
		k.c.loop.Post(supervisor.Inputs{Name: name})
		return
	}
	time.AfterFunc(replacerPoll, guard.Func("watching who took over", func() {
		k.enqueue(name, func() { k.watchReplacer(name, profile) })
	}))
}

// hideSecrets tells the console which values of the profile's .env it must not show, if it is to hide any. It reads the file:
// when the gateway becomes known, and whenever it is started.
func (k *keeper) hideSecrets(name, profile string) {
	if !k.c.cfg.Load().Logs.Mask {
		return
	}
	values, err := k.c.store.Secrets(profile)
	if err != nil {
		k.c.say("[hinit] %s: cannot read its secrets, so the values in its .env may be shown here: %v", name, err)
		return
	}
	k.c.logs.hide(name, values)
}

// secretsPatience is how long a start waits for the profile's .env: a volume that does not answer must not hold up others.
const secretsPatience = time.Second

// hideSecretsSoon is hideSecrets, for a gateway that may be started next.
func (k *keeper) hideSecretsSoon(name, profile string) {
	if !k.c.cfg.Load().Logs.Mask {
		return
	}
	read := make(chan struct{})
	guard.Go("reading secrets", func() {
		defer close(read)
		k.hideSecrets(name, profile)
	})
	select {
	case <-read:
	case <-time.After(secretsPatience):
	}
}

// begin takes note of when a start began.
func (k *keeper) begin(profile string, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begun[profile] = at
}

// otherInputs is the hash of no inputs: any that are there are a change.
const otherInputs profiles.Hash = "written since the start"

// noteInputs remembers what a gateway was started with: when it parks, a later change starts it again. It comes a little after
// the start, and the gateway may not have read what was written in between. So that counts as a change, but only once for the
// same content: a gateway that writes these files itself, or a volume with a clock of its own, must not start it for ever.
func (k *keeper) noteInputs(name, profile string) {
	hash, err := k.c.store.InputsHash(profile)
	if err != nil {
		k.c.say("[hinit] %s: cannot watch its inputs: %v", name, err)
	}
	k.mu.Lock()
	begun := k.begun[profile]
	k.mu.Unlock()
	late := err == nil && !begun.IsZero() && k.c.store.InputsChangedSince(profile, begun)
	k.mu.Lock()
	defer k.mu.Unlock()
	if late && k.doubted[profile] != hash {
		k.doubted[profile] = hash
		hash = otherInputs
	}
	k.inputs[profile] = hash
}

func (k *keeper) inputsOf(profile string) profiles.Hash {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inputs[profile]
}

// resume takes up what the keeper of the image before this one was at, or what it has not heard of.
func (k *keeper) resume() {
	for _, s := range k.c.loop.Snapshot().Services {
		profile, ok := profiles.SlotProfile(s.Name)
		x := s.LastExit
		switch {
		case !ok:
		case s.State == supervisor.Parked && s.Reason == supervisor.ReasonReplaced:
			k.enqueue(s.Name, func() { k.watchReplacer(s.Name, profile) })
		case s.State == supervisor.Parked:
			k.enqueue(s.Name, func() { k.watch().Interest(profile, k.inputsOf(profile)) })
		case s.State == supervisor.Backoff && x.Cause == supervisor.CauseClean && x.Code == 0:
			k.enqueue(s.Name, func() { k.explain(s.Name, profile, x, 0) })
		}
	}
}

// command records what the operator asked for and does it. The order of the two, and of commands for one profile, is
// that of the lane: the last command counts on the disk and in the supervisor alike.
func (k *keeper) command(ctx context.Context, verb, name string) error {
	event := verbEvent(verb, name)
	s := k.c.loop.Snapshot().Find(name)
	if s != nil && verb != "stop" {
		k.c.republish(ctx, name)
	}
	if s == nil || s.Kind != supervisor.KindGateway {
		return k.c.loop.Do(ctx, event) // only gateways have an intent on the volume
	}
	lane := k.lane(s.Profile)
	if err := lane.enter(ctx); err != nil {
		return fmt.Errorf("cannot %s %s: %w", verb, name, err)
	}
	defer lane.leave()
	if verb != "stop" && k.exists(s.Profile) {
		k.c.adopt(ctx, s.Profile) // files may have been put there since
	}
	want := profiles.Running
	if verb == "stop" {
		want = profiles.Stopped
	}
	record, intent := k.c.intents.Begin(s.Profile, want)
	switch {
	case intent == nil:
		k.mark(s.Profile, want != profiles.Running)
		k.c.setDown(s.Profile, want != profiles.Running)
	case !errors.Is(intent, profiles.ErrNotExist):
	case k.c.hasSlot(name) && !k.exists(s.Profile): // registered without a home, which is nobody's intent
		intent = nil
	default:
		return fmt.Errorf("%w: %w", supervisor.ErrUnknown, intent) // its directory is gone, and it is about to be
	}
	if verb == "stop" {
		k.plannedStop(name, s.Profile)
	}
	written := make(chan error, 1)
	if record != nil { // the disk syncs while the command is carried out; the answer waits for both
		guard.Go("recording an intent", func() { written <- record() })
	} else {
		written <- intent
	}
	err := k.c.loop.Do(ctx, event)
	intent = <-written
	if err != nil {
		return err
	}
	if intent != nil {
		k.recordLater(name, s.Profile)
		return fmt.Errorf("the %s is under way, but cannot be recorded, so a restart of the container may undo it: %w", verb, intent)
	}
	return nil
}

// intend records what is wanted of a gateway without doing it.
func (k *keeper) intend(ctx context.Context, profile, want string) error {
	lane := k.lane(profile)
	if err := lane.enter(ctx); err != nil {
		return fmt.Errorf("cannot record what is wanted of %s: %w", profile, err)
	}
	defer lane.leave()
	if err := k.c.intents.Set(profile, want); err != nil && !errors.Is(err, profiles.ErrNotExist) {
		k.recordLater(profiles.SlotName(profile), profile)
		return err
	}
	k.mark(profile, want != profiles.Running)
	k.c.setDown(profile, want != profiles.Running)
	return nil
}

// verbEvent is what a verb means to the supervisor.
func verbEvent(verb, name string) supervisor.Event {
	switch verb {
	case "stop":
		return supervisor.Stop{Name: name}
	case "restart":
		return supervisor.Restart{Name: name}
	}
	return supervisor.Start{Name: name}
}

// plannedStop leaves the marker by which a gateway knows that its end is wanted (contract, section 6.1).
func (k *keeper) plannedStop(name, profile string) {
	s := k.c.loop.Snapshot().Find(name)
	if s == nil || s.PID == 0 {
		return
	}
	started, err := profiles.StartTime(s.PID)
	if err != nil {
		return // it has just ended
	}
	if err := k.c.store.PlannedStop(profile, s.PID, started); err != nil {
		k.c.say("[hinit] %s: cannot leave the planned-stop marker: %v", name, err)
	}
}
