package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	known   []profiles.Profile // of the image before this one
	watcher *profiles.Watcher
	unwatch context.CancelFunc // ends the watcher; under mu, like stopping

	renames renames
	late    late // what the boot could not decide about

	jobs   chan func() // one after the other, off the reporting goroutine
	orders orders

	multiplexes atomic.Bool // the default profile's gateway serves the others, as it was started

	inherited []unfinished // orders that the image before this one has not finished

	mu         sync.Mutex
	inputs     map[string]profiles.Hash // by profile, as its gateway was started
	doubted    map[string]profiles.Hash // by profile: inputs that its gateway may not have been started with
	begun      map[string]time.Time     // by profile: when the last start began
	unrecorded map[string]bool          // by profile: an intent waits for the disk
	present    map[string]bool          // profiles that are on the volume, as far as anybody has looked
	troubled   map[string]string        // by profile: what was last said of its platforms
	marked     map[string]bool          // by profile: what the down file of its slot was last made to say
	stopping   bool                     // the container is
}

func newKeeper(c *container) *keeper {
	k := &keeper{
		c: c, jobs: make(chan func(), jobsKept),
		inputs: make(map[string]profiles.Hash), doubted: make(map[string]profiles.Hash), begun: make(map[string]time.Time),
		unrecorded: make(map[string]bool), present: make(map[string]bool), marked: make(map[string]bool),
		troubled: make(map[string]string),
	}
	k.orders.record, k.orders.act = k.recordOrder, k.act
	k.orders.retry = func(o *order) { k.recordLater(o.service, o.profile) }
	return k
}

// start begins to watch the volume, on which there are the known profiles. Records that came in before are worked off then.
func (k *keeper) start(ctx context.Context, known []profiles.Profile) {
	notify := func(e profiles.Event) { k.profileEvent(ctx, e) }
	watching, unwatch := context.WithCancel(ctx)
	k.mu.Lock()
	k.watcher, k.unwatch = k.c.store.Watch(watching, profiles.WatchOptions{Notify: notify, Known: known}), unwatch
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

// reset forgets everything, because another init has the profiles now. What comes from the watcher ends with its context.
func (k *keeper) reset() {
	k.c.intents.Clear()
	k.mu.Lock()
	defer k.mu.Unlock()
	for drained := false; !drained; {
		select {
		case <-k.jobs:
		default:
			drained = true // the goroutine that works the jobs off may have taken the last one
		}
	}
	clear(k.inputs)
	clear(k.doubted)
	clear(k.begun)
	clear(k.unrecorded)
	clear(k.present)
	clear(k.troubled)
	clear(k.marked)
	k.multiplexes.Store(false)
	k.renames.reset()
	k.late.expect(false)
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

// forget drops what is kept of a profile that is gone. An order in its queue finds no such profile.
func (k *keeper) forget(profile string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.inputs, profile)
	delete(k.doubted, profile)
	delete(k.begun, profile)
	delete(k.present, profile)
	delete(k.marked, profile)
	delete(k.troubled, profile)
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
	k.inherited = old.Orders
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
		state, _ := c.store.ReadState(e.Profile.Name) // without one it does not start by itself
		want := supervisor.WantDown
		if k.late.start(e.Profile.Name, state, c.started) {
			want = c.wantAtBoot(profiles.Decision{Profile: e.Profile, Start: true})
		}
		if err := c.registerGatewaySoon(ctx, c.cfg.Load(), e.Profile, want)(); err != nil && !errors.Is(err, supervisor.ErrStopping) {
			c.warn("%v", err)
		}
		c.publishGateway(ctx, c.cfg.Load(), e.Profile, state.Prior() != profiles.Running)
		k.noteHome(e.Profile.Name)
		if old := k.renames.to(e.Profile.Name); old != "" {
			k.runOn(ctx, old, e.Profile.Name)
		}
	case profiles.Disappeared:
		c.say("[hinit] profile %s disappeared", e.Profile.Name)
		slot := profiles.SlotName(e.Profile.Name)
		s := c.loop.Snapshot().Find(slot)
		renamed := k.renames.from(e.Profile.Name, s != nil && s.Want == supervisor.WantUp)
		c.intents.Forget(e.Profile.Name)
		k.forget(e.Profile.Name)
		if takenAway(s, time.Now()) {
			_ = c.loop.Do(ctx, supervisor.Explained{Name: slot, Run: s.LastExit.Run, Cause: supervisor.CauseOperator})
		}
		_ = c.loop.Do(ctx, supervisor.Remove{Name: slot}) // it may be gone already
		if err := c.withdraw(ctx, slot); err != nil {
			c.say("[hinit] %v", err)
		}
		if renamed != "" {
			k.runOn(ctx, e.Profile.Name, renamed)
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
	k.noteHome(profile)
	state, _ := k.c.store.ReadState(profile) // the watcher warns of a file that tells nothing
	name := profiles.SlotName(profile)
	if s := k.c.loop.Snapshot().Find(name); s != nil && s.State == supervisor.Up && k.c.cfg.Load().Agent.Ready == config.ReadyState {
		ready, said := k.announced(profile, state, s.PID)
		k.c.loop.Post(supervisor.Ready{Name: name, Run: s.Run, Ready: ready, Said: said}) // which the snapshot may not know of yet
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

// needsUp is for an agent that was never made for hinit.
const needsUp = "; for an agent that never writes it there, set agent.ready to up in hinit.yaml"

// announced reads what a state file tells of the run whose main process is main: whether it is ready, why it isn't, and what is wrong
// though it is.
func (k *keeper) announced(profile string, state profiles.State, main int) (ready bool, said string) {
	ready = (state.Gateway == "running" || state.Gateway == "degraded") && ofRun(state.PID, main)
	hint := ""
	switch {
	case !state.Exists:
		return false, "there is no " + profiles.StateFile + " yet" + needsUp
	case !ofRun(state.PID, main):
		if !state.HasGateway {
			hint = needsUp // only hinit has written it
		}
		return false, profiles.StateFile + " says nothing of this run yet" + hint
	case !ready && !state.HasGateway:
		said = profiles.StateFile + " does not say in what state it is"
	case !ready:
		said = profiles.StateFile + " says " + state.Gateway
		if state.ExitReason != "" {
			said += ": " + state.ExitReason
		}
	}
	return ready, strings.Join(slices.DeleteFunc([]string{said, k.trouble(profile, state)}, func(s string) bool { return s == "" }), "; ")
}

// trouble says what is wrong with the platforms of a running gateway, once in the container log when it changes.
func (k *keeper) trouble(profile string, state profiles.State) string {
	text := state.Trouble()
	k.mu.Lock()
	defer k.mu.Unlock()
	if was := k.troubled[profile]; text != "" && text != was {
		k.c.say("[hinit] %s: %s", profiles.SlotName(profile), text)
	}
	k.troubled[profile] = text
	return text
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
	case r.Exit != nil && r.Exit.Cause == supervisor.CauseOperator:
		job = func() { k.c.store.ForgetPlannedStop(profile, r.Exit.PID) } // a gateway that ended early has left it
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
				if profile == profiles.Default {
					k.noteMultiplex()
				}
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

// noteMultiplex finds out whether the gateway of the default profile, which has just been started, serves the other profiles too, and
// says so once in the container log when it becomes so.
func (k *keeper) noteMultiplex() {
	on, err := k.c.store.Multiplexed(os.Getenv)
	if err != nil {
		k.c.say("[hinit] cannot tell whether the default profile serves the others: %v", err)
	}
	if was := k.multiplexes.Swap(on); on && !was {
		k.c.say("[hinit] gateways that are down are served by the multiplexer of profile %s", profiles.Default)
	}
}

// servedBy says of a gateway that is down that another one serves its profile, if so.
func (k *keeper) servedBy(s *supervisor.Service) string {
	if s.Kind != supervisor.KindGateway || s.Profile == profiles.Default || !k.multiplexes.Load() {
		return ""
	}
	if d := k.c.loop.Snapshot().Find(profiles.SlotName(profiles.Default)); d == nil || d.Want != supervisor.WantUp {
		return ""
	}
	return "served by the multiplexer of profile " + profiles.Default
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
		case s.State == supervisor.Up && profile == profiles.Default:
			k.enqueue(s.Name, func() { k.noteMultiplex(); k.followState(profile) })
		case s.State == supervisor.Parked && s.Reason == supervisor.ReasonReplaced:
			k.enqueue(s.Name, func() { k.watchReplacer(s.Name, profile) })
		case s.State == supervisor.Parked:
			k.enqueue(s.Name, func() { k.watch().Interest(profile, k.inputsOf(profile)) })
		case s.State == supervisor.Up: // what was known of its readiness may be that of the image before
			k.enqueue(s.Name, func() { k.followState(profile) })
		case s.State == supervisor.Backoff && x.Cause == supervisor.CauseClean && x.Code == 0:
			k.enqueue(s.Name, func() { k.explain(s.Name, profile, x, 0) })
		}
	}
	for _, profile := range k.c.intents.Pending() {
		k.recordLater(profiles.SlotName(profile), profile)
	}
}

// command records what the operator asked for and does it, see [orders]. When ctx ends first, the order stays in force.
func (k *keeper) command(ctx context.Context, verb, name string) error {
	s := k.c.loop.Snapshot().Find(name)
	if s != nil && verb != "stop" {
		k.c.republish(ctx, name)
	}
	if s == nil || s.Kind != supervisor.KindGateway {
		return k.c.loop.Do(ctx, verbEvent(verb, name)) // only gateways have an intent on the volume
	}
	return k.order(ctx, verb, name, s.Profile)
}

// order gives an order about a gateway and waits for its result.
func (k *keeper) order(ctx context.Context, verb, name, profile string) error {
	var patience time.Duration
	if end, limited := ctx.Deadline(); limited {
		patience = max(time.Until(end), 1)
	}
	return k.orders.wait(ctx, k.orders.submit(verb, name, profile, patience))
}

// recordOrder writes the intent of an order to the volume, and what goes with it.
func (k *keeper) recordOrder(o *order) (sync func() error, err error) {
	if err := k.c.lease.Check(); err != nil {
		return nil, err
	}
	down := o.want() != profiles.Running
	if !down && k.exists(o.profile) {
		k.c.adopt(context.Background(), o.profile) // files may have been put there since
	}
	sync, err = k.c.intents.Begin(o.profile, o.want())
	switch {
	case err == nil:
		k.mark(o.profile, down)
		k.c.setDown(o.profile, down)
	case !errors.Is(err, profiles.ErrNotExist):
		sync = func() error { return err }
	case k.c.hasSlot(o.service) && !k.exists(o.profile): // registered without a home, which is nobody's intent
	default:
		return nil, fmt.Errorf("%w: %w", supervisor.ErrUnknown, err) // its directory is gone, and it is about to be
	}
	if o.verb == "stop" {
		k.plannedStop(o.service, o.profile)
	}
	return sync, nil
}

// act hands an order to the supervisor.
func (k *keeper) act(o *order) (effect string, err error) {
	if err := k.c.lease.Check(); err != nil {
		return "", err
	}
	s := k.c.loop.Snapshot().Find(o.service)
	if err := k.c.loop.Do(context.Background(), o.event()); err != nil { // it ends with the loop
		return "", err
	}
	if s != nil && s.PID != 0 && o.verb == "stop" {
		signal := strings.TrimPrefix(unix.SignalName(k.c.cfg.Load().Stop.Signal), "SIG")
		return fmt.Sprintf("%s got %s", o.service, signal), nil
	}
	return "", nil
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
