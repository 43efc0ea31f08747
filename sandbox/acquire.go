package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"hinit/internal/pause"
	"hinit/sandbox/mux"
)

// probeTime is how long the engine may take to say what there is.
var probeTime = 10 * time.Second

const (
	startTime  = 30 * time.Second
	createTime = 120 * time.Second // an image may have to be fetched
	undoTime   = 10 * time.Second
	wakeTries  = 5
	takenTime  = 5 * time.Second // a container that is being made or removed may have the name
)

// acquire finds or makes the sandbox's container, by the lock of the key: another process may just be doing it. An engine goes on to make
// the container of a killed process, and does not list it yet: but its name, which is the key's, is taken.
func (s *Sandbox) acquire(ctx context.Context) error {
	unlock, err := s.m.Lock(ctx, s.labels)
	if err != nil {
		return err
	}
	defer unlock()
	crash("locked")
	none := func(Container) bool { return false }
	c, found, err := s.m.Find(ctx, s.Labels(), none)
	var plan Spec
	if err == nil && !found {
		plan, err = s.plan(ctx)
	}
	for limit := time.Now().Add(takenTime); err == nil && !found; {
		spec := plan
		if time.Now().After(limit) { // it is of a container that can't be used
			spec.Name = newName()
		}
		c.Name = spec.Name
		c.ID, err = s.m.Make(ctx, spec)
		if plan.Storage["size"] != "" && noLimits(err) {
			s.m.opts.warn(noDiskLimit)
			delete(plan.Storage, "size")
			err = nil
			continue
		}
		if !errors.Is(err, ErrTaken) {
			break
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
		c, found, err = s.m.Find(ctx, s.Labels(), none)
	}
	if err != nil {
		return err
	}
	crash("attach")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.name, s.fresh = c.ID, c.Name, true
	return nil
}

// noLimits reports whether an engine has said that it can't limit the size of a file system.
func noLimits(err error) bool { return err != nil && strings.Contains(err.Error(), "storage-opt") }

// plan is the container to make: what the options say, to begin in the tracked directory.
func (s *Sandbox) plan(ctx context.Context) (Spec, error) {
	spec, err := s.m.Spec(ctx, s.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if spec.Name = s.m.nameOf(s.labels); s.dir != s.m.opts.Cwd { // a command has left the session there
		spec.Dir = s.dir
	}
	return spec, err
}

// Find looks for a container by its labels, but for those that are to be skipped, and makes it run: the running one, else the first. One
// that can't be made to run is none, and is left to the sweep. An engine that doesn't answer is an error: it may have one, and a second is
// not to be made. The caller has the lock of the key.
func (m *Manager) Find(ctx context.Context, labels map[string]string, skip func(Container) bool) (Container, bool, error) {
	look, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	list, err := m.engine.List(look, labels)
	switch {
	case look.Err() != nil && ctx.Err() == nil:
		return Container{}, false, fmt.Errorf("%w: it is not responding (no list of containers within %v)", ErrNoEngine, probeTime)
	case errors.Is(err, ErrNoEngine), ctx.Err() != nil:
		return Container{}, false, err
	case err != nil:
		m.opts.warn("containers can't be listed, so a new one is made: " + err.Error())
		return Container{}, false, nil
	}
	list = slices.DeleteFunc(list, func(c Container) bool { return m.ofAnotherVolume(c) || skip(c) })
	for _, state := range []State{Running, Paused, Exited, Created, Restarting} {
		for _, c := range list {
			switch {
			case c.State != state:
				continue
			case state == Paused: // whoever runs a command is told, and how it goes on
				return c, true, nil
			}
			if err := m.Wake(ctx, c); errors.Is(err, ErrNoEngine) {
				return Container{}, false, err
			} else if err != nil {
				m.opts.warn(fmt.Sprintf("the container %s can't be used again, so another is made: %v", short(c.ID), err))
				continue
			}
			return c, true, nil
		}
	}
	return Container{}, false, nil
}

// Wake makes a container run. That somebody stops, kills or pauses it meanwhile is no reason to make another.
func (m *Manager) Wake(ctx context.Context, c Container) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for try := 1; ; try++ {
		err := fmt.Errorf("it is %s: %w", c.State, ErrGone)
		switch c.State {
		case Running:
			return nil
		case Paused:
			err = m.engine.Unpause(ctx, c.ID)
		case Exited, Created, Restarting:
			err = m.engine.Start(ctx, c.ID)
		case Removing, Dead, Gone:
		}
		if err == nil || try == wakeTries || errors.Is(err, ErrRefused) || ctx.Err() != nil {
			return err
		}
		before := c.Started
		if c = m.state(ctx, c.ID); c.State == "" || c.State == Exited && !c.Started.After(before) {
			return err
		}
	}
}

// Make makes a container with the program inside, and starts it. The caller has the lock of the key. A failure leaves no container
// behind. A caller that gives up still waits a little for the engine's answer: the engine goes on with the request, and the container
// would appear after its removal.
func (m *Manager) Make(caller context.Context, spec Spec) (id string, err error) {
	spec.Name = cmp.Or(spec.Name, newName())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), createTime)
	defer cancel()
	if caller.Err() != nil {
		return "", context.Cause(caller)
	}
	defer context.AfterFunc(caller, func() { time.AfterFunc(undoTime, cancel) })()
	if spec.Labels == nil {
		spec.Labels = make(map[string]string)
	}
	spec.Labels[LabelVolume] = m.store.id
	own, err := m.addHelper(&spec)
	if errors.Is(err, fs.ErrExist) && m.state(ctx, spec.Name).State == Gone { // left by a container of this name that somebody has removed
		m.store.forget(spec.Name)
		own, err = m.addHelper(&spec)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // the engine says in its words that the name is taken
		m.opts.warn("the program inside can't be mounted: " + err.Error())
	}
	crash("create")
	id, err = m.engine.Create(ctx, spec)
	if errors.Is(err, ErrNoImage) {
		if err = m.pull(caller, spec.Image); err == nil {
			id, err = m.engine.Create(ctx, spec)
		}
	}
	if err != nil && own && strings.Contains(err.Error(), "bind source path does not exist") {
		m.mu.Lock()
		m.noMounts = true // the engine is on another machine, or this process is in a container
		m.mu.Unlock()
		m.store.forget(spec.Name)
		spec.Mounts, own = slices.DeleteFunc(slices.Clone(spec.Mounts), isHelperMount), false
		id, err = m.engine.Create(ctx, spec)
	}
	if err == nil && !own && !m.opts.Apart && m.why == nil {
		if _, err := m.copyHelper(ctx, id); err != nil {
			m.opts.warn("the program inside can't be copied before the start: " + err.Error()) // it is tried again when it is needed
		}
	}
	if err == nil && own {
		err = m.store.made(spec.Name, id)
	}
	crash("created")
	if err == nil && caller.Err() != nil {
		err = context.Cause(caller)
	}
	if err == nil {
		err = m.engine.Start(ctx, id)
	}
	if err == nil {
		crash("started")
		return id, nil
	}
	if !noLimits(err) { // whoever can go without is told of that only
		m.opts.warn(fmt.Sprintf("the container %s could not be made, and what there is of it is removed: %v", spec.Name, err))
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if id != "" || !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNoImage) { // else another container has the name, if any
		if err := m.engine.Remove(undo, cmp.Or(id, spec.Name)); err != nil {
			m.opts.warn(err.Error())
		}
	}
	if own { // else the name is another one's
		m.store.forget(spec.Name)
	}
	return "", err
}

// pull fetches an image for as long as the caller waits, and no longer than a container may take to be made.
func (m *Manager) pull(ctx context.Context, image string) error {
	ctx, cancel := context.WithTimeout(ctx, createTime)
	defer cancel()
	return m.engine.Pull(ctx, image)
}

// isHelperMount reports whether a mount is this package's own.
func isHelperMount(m Mount) bool { return m.Target == mux.RunDir || m.Target == mux.ToolsDir }

// addHelper adds the mounts of the program inside to a container. own is whether it did.
func (m *Manager) addHelper(spec *Spec) (own bool, err error) {
	m.mu.Lock()
	skip := m.noMounts
	m.mu.Unlock()
	if m.why != nil || skip || slices.ContainsFunc(spec.Mounts, isHelperMount) {
		return false, nil
	}
	data, hash, err := m.readHelper()
	if err != nil {
		return false, err
	}
	tools, err := m.store.install(data, hash)
	if err != nil {
		return false, err
	}
	dir, err := m.store.makeRun(spec.Name, spec.Labels)
	if err != nil {
		return false, err
	}
	spec.Mounts = append(slices.Clone(spec.Mounts),
		Mount{Type: "bind", Source: dir, Target: mux.RunDir},
		Mount{Type: "bind", Source: tools, Target: mux.ToolsDir, ReadOnly: true})
	return true, nil
}

// state asks the engine for the state of a container. Without an answer there is no State.
func (m *Manager) state(ctx context.Context, id string) Container {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
	defer cancel()
	c, err := m.engine.Inspect(ctx, id)
	switch {
	case errors.Is(err, ErrGone):
		c = Container{ID: id, State: Gone}
		if gone := (*GoneError)(nil); errors.As(err, &gone) {
			c.Reason = gone.Why
		}
	case err != nil:
		return Container{ID: id}
	}
	return c
}
