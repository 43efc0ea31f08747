package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
	"hinit/profiles"
	"hinit/supervisor"
)

// keeper keeps the profiles on the disk and the gateways in the supervisor in step: profiles that come and go, readiness,
// intent, and what an exit meant. Its work waits for the disk, so none of it is done in the supervisor's loop.
type keeper struct {
	c       *container
	known   []profiles.Profile // of the boot pass
	watcher *profiles.Watcher

	jobs   chan func()              // one after the other, off the reporting goroutine
	inputs map[string]profiles.Hash // by profile, as its gateway was started; belongs to the jobs

	mu    sync.Mutex
	lanes map[string]*sync.Mutex // by profile: intent and command in one order
}

func newKeeper(c *container) *keeper {
	return &keeper{c: c, jobs: make(chan func(), 1024), lanes: make(map[string]*sync.Mutex), inputs: make(map[string]profiles.Hash)}
}

// start begins to watch. Records that came in before are worked off then.
func (k *keeper) start(ctx context.Context) {
	notify := func(e profiles.Event) { k.profileEvent(ctx, e) }
	k.mu.Lock()
	k.watcher = k.c.store.Watch(ctx, profiles.WatchOptions{Notify: notify, Known: k.known})
	k.mu.Unlock()
	go func() {
		for {
			select {
			case job := <-k.jobs:
				job()
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (k *keeper) watch() *profiles.Watcher {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watcher
}

// lane returns the lock that puts the commands for one profile into an order.
func (k *keeper) lane(profile string) *sync.Mutex {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lanes[profile] == nil {
		k.lanes[profile] = new(sync.Mutex)
	}
	return k.lanes[profile]
}

// profileEvent is called by the watcher.
func (k *keeper) profileEvent(ctx context.Context, e profiles.Event) {
	c := k.c
	switch e := e.(type) {
	case profiles.Appeared:
		c.say("[hinit] profile %s appeared", e.Profile.Name)
		c.adopt(ctx, e.Profile.Name)
		if err := c.register(ctx, c.gatewayUnit(c.cfg.Load(), e.Profile), supervisor.WantDown); err != nil && !errors.Is(err, supervisor.ErrStopping) {
			c.warn("%v", err)
		}
	case profiles.Disappeared:
		c.say("[hinit] profile %s disappeared", e.Profile.Name)
		c.intents.Forget(e.Profile.Name)
		_ = c.loop.Do(ctx, supervisor.Remove{Name: profiles.SlotName(e.Profile.Name)}) // it may be gone already
	case profiles.StateChanged:
		k.stateChanged(e.Profile, e.State)
	case profiles.InputsChanged:
		c.loop.Post(supervisor.Inputs{Name: profiles.SlotName(e.Profile.Name)})
	case profiles.Warned:
		c.warn("%s", e.Warning)
	}
}

// stateChanged reads readiness and intent off a state file.
func (k *keeper) stateChanged(p profiles.Profile, state profiles.State) {
	name := profiles.SlotName(p.Name)
	if s := k.c.loop.Snapshot().Find(name); s != nil && s.State == supervisor.Up && k.c.cfg.Load().Agent.Ready == config.ReadyState {
		ready := (state.Gateway == "running" || state.Gateway == "degraded") && ofRun(state.PID, s.PID)
		if ready != s.Ready {
			k.c.loop.Post(supervisor.Ready{Name: name, Run: s.Run, Ready: ready})
		}
	}
	outcome, err := k.c.intents.Restore(p.Name, state)
	switch {
	case err != nil:
		k.c.say("[hinit] %s: cannot put desired_state back: %v", name, err)
	case outcome == profiles.Restored:
		k.c.say("[hinit] %s: desired_state was lost in a rewrite of gateway_state.json and is back", name)
	}
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

// observe takes note of a record of the supervisor. It does not block: what needs the disk is queued, and left out when
// the disk has hung for a thousand records.
func (k *keeper) observe(r supervisor.Record) {
	profile, ok := profiles.SlotProfile(r.Service)
	if !ok {
		return
	}
	var job func()
	switch {
	case r.Exit != nil && r.Exit.Cause == supervisor.CauseClean && r.Exit.Code == 0:
		job = func() { k.explain(r.Service, profile, r.Exit, 0) }
	case r.To == supervisor.Parked && r.From != r.To && r.Reason == supervisor.ReasonReplaced:
		job = func() { k.watchReplacer(r.Service, profile) }
	case r.To == supervisor.Parked && r.From != r.To:
		job = func() { k.watch().Interest(profile, k.inputs[profile]) }
	case r.From == supervisor.Parked && r.From != r.To:
		job = func() { k.watch().Disinterest(profile) }
	case r.To == supervisor.Up && r.From != r.To, r.To == supervisor.Down && r.From != r.To:
		job = func() {
			if r.To == supervisor.Up {
				k.noteInputs(r.Service, profile)
			}
			// The state file may have been rewritten before the supervisor knew of the start, or after the last look.
			state, err := k.c.store.ReadState(profile)
			if err == nil {
				k.stateChanged(profiles.Profile{Name: profile}, state)
			}
		}
	}
	if job != nil {
		k.enqueue(r.Service, job)
	}
}

// enqueue adds a job. It does not block: when the disk has hung for a thousand jobs, this one is left out.
func (k *keeper) enqueue(name string, job func()) {
	select {
	case k.jobs <- job:
	default:
		k.c.say("[hinit] %s: the data volume does not answer, so its files are not followed", name)
	}
}

// takeoverLooks is how often, after a clean exit nobody asked for, the disk is asked whether another instance has taken
// over: the one that leaves removes its marker, and the new one writes its own file only when it sees that the other is
// gone. The looks, each twice as late as the one before, are over before the first restart delay is.
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
	if looks < takeoverLooks {
		time.AfterFunc(25*time.Millisecond<<looks, func() {
			k.enqueue(name, func() { k.explain(name, profile, exit, looks+1) })
		})
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
	time.AfterFunc(replacerPoll, func() {
		k.enqueue(name, func() { k.watchReplacer(name, profile) })
	})
}

// noteInputs remembers what a gateway was started with: when it parks, a later change starts it again.
func (k *keeper) noteInputs(name, profile string) {
	hash, err := k.c.store.InputsHash(profile)
	if err != nil {
		k.c.say("[hinit] %s: cannot watch its inputs: %v", name, err)
	}
	k.inputs[profile] = hash
}

// command records what the operator asked for and does it. The order of the two, and of commands for one profile, is
// that of the lane: the last command counts on the disk and in the supervisor alike.
func (k *keeper) command(ctx context.Context, verb, name string) error {
	event := map[string]supervisor.Event{
		"start": supervisor.Start{Name: name}, "stop": supervisor.Stop{Name: name}, "restart": supervisor.Restart{Name: name},
	}[verb]
	s := k.c.loop.Snapshot().Find(name)
	if s == nil || s.Kind != supervisor.KindGateway {
		return k.c.loop.Do(ctx, event) // only gateways have an intent on the volume
	}
	lane := k.lane(s.Profile)
	lane.Lock()
	defer lane.Unlock()
	if verb != "stop" {
		k.c.adopt(ctx, s.Profile) // files may have been put there since
	}
	want := profiles.Running
	if verb == "stop" {
		want = profiles.Stopped
	}
	intent := k.c.intents.Set(s.Profile, want)
	if errors.Is(intent, profiles.ErrNotExist) {
		return fmt.Errorf("%w: %w", supervisor.ErrUnknown, intent) // its directory is gone, and it is about to be
	}
	if verb == "stop" {
		k.plannedStop(name, s.Profile)
	}
	if err := k.c.loop.Do(ctx, event); err != nil {
		return err
	}
	if intent != nil {
		return fmt.Errorf("the %s is under way, but cannot be recorded, so a restart of the container may undo it: %w", verb, intent)
	}
	return nil
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
