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

const (
	startTime     = 30 * time.Second
	createTime    = 120 * time.Second // the engine may have to fetch an image
	removalLimit  = 10 * time.Second
	maxWakeTries  = 5
	nameTakenTime = 5 * time.Second // how long to wait for a container that has the name but is still being made or removed
)

// findOrMake finds or makes the sandbox's container. It holds the lock of the key, because another process may look for the same
// container.
//
// A process may have been killed after it asked the engine for the container. Then the engine may still be making the container,
// and does not list it yet. But the container's name is derived from the key and already taken. So the engine refuses a second
// container, and findOrMake searches again.
func (s *Sandbox) findOrMake(ctx context.Context) error {
	unlock, err := s.manager.Lock(ctx, s.labels)
	if err != nil {
		return err
	}
	defer unlock()
	crashPoint("locked")
	none := func(Container) bool { return false }
	c, found, err := s.manager.Find(ctx, s.Labels(), none)
	var plan Spec
	if err == nil && !found {
		plan, err = s.manager.Spec(ctx, s.key)
		plan.Name = s.manager.containerName(s.labels)
	}
	for limit := time.Now().Add(nameTakenTime); err == nil && !found; {
		if time.Now().After(limit) { // the container with the name can't be used
			plan.Name = randomName()
		}
		c.Name = plan.Name
		c.ID, err = s.manager.Make(ctx, plan)
		if plan.Storage["size"] != "" && refusesDiskLimit(err) {
			s.manager.opts.warn(noDiskLimit)
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
		c, found, err = s.manager.Find(ctx, s.Labels(), none)
	}
	if err != nil {
		return err
	}
	crashPoint("attach")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.name, s.forwardPending = c.ID, c.Name, true
	return nil
}

// refusesDiskLimit reports whether the engine's error means that it can't limit the size of a container's file system.
func refusesDiskLimit(err error) bool {
	return err != nil && strings.Contains(err.Error(), "storage-opt")
}

// Find finds a container by its labels and makes it run. It prefers a running container. It ignores containers for which skip
// returns true, and containers that it can't start, which the sweep removes later. If the engine doesn't answer, Find returns an
// error: the container may exist, so the caller must not make a second container. The caller holds the lock of the key.
func (m *Manager) Find(ctx context.Context, labels map[string]string, skip func(Container) bool) (Container, bool, error) {
	list, err := m.engine.List(ctx, labels)
	switch {
	case errors.Is(err, ErrNoEngine), ctx.Err() != nil:
		return Container{}, false, err
	case err != nil:
		m.opts.warn("containers can't be listed, so a new one is made: " + err.Error())
		return Container{}, false, nil
	}
	list = slices.DeleteFunc(list, func(c Container) bool { return cmp.Or(c.Labels[LabelVolume], m.store.id) != m.store.id || skip(c) })
	for _, state := range []State{Running, Paused, Exited, Created, Restarting} {
		for _, c := range list {
			switch {
			case c.State != state:
				continue
			case state == Paused: // return a paused container: the command's error then says that the container is paused, and how to unpause it
				return c, true, nil
			}
			if err := m.Wake(ctx, c); errors.Is(err, ErrNoEngine) {
				return Container{}, false, err
			} else if err != nil {
				m.opts.warn(fmt.Sprintf("the container %s can't be used again, so another is made: %v", shortID(c.ID), err))
				continue
			}
			return c, true, nil
		}
	}
	return Container{}, false, nil
}

// Wake starts or unpauses a container. If another process stops, kills or pauses it in the meantime, Wake tries again several times,
// because a new container would not have the state of this one.
func (m *Manager) Wake(ctx context.Context, c Container) error {
	defer setTimeLimit(&ctx, startTime)()
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
		if err == nil || try == maxWakeTries || errors.Is(err, ErrRefused) || ctx.Err() != nil {
			return err
		}
		before := c.Started
		if c = m.askState(ctx, c.ID); c.State == "" || c.State == Exited && !c.Started.After(before) {
			return err
		}
	}
}

// Make creates a container with the helper, and starts it. The caller holds the lock of the key. If Make fails, no container
// remains. If the caller's context ends, Make still waits a short time for the engine's answer. Otherwise the engine would go on
// with the request, and the container would appear after Make has tried to remove it.
func (m *Manager) Make(caller context.Context, spec Spec) (id string, err error) {
	spec.Name = cmp.Or(spec.Name, randomName())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), createTime)
	defer cancel()
	if caller.Err() != nil {
		return "", context.Cause(caller)
	}
	defer context.AfterFunc(caller, func() { time.AfterFunc(removalLimit, cancel) })()
	if spec.Labels == nil {
		spec.Labels = make(map[string]string)
	}
	spec.Labels[LabelVolume] = m.store.id
	m.hideDir(&spec)
	own, err := m.addHelper(&spec)
	if errors.Is(err, fs.ErrExist) && m.askState(ctx, spec.Name).State == Gone { // an earlier container of this name has left its directory
		m.store.removeRecord(spec.Name)
		own, err = m.addHelper(&spec)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // if the name is taken, the engine reports it
		m.opts.warn("the helper can't be mounted: " + err.Error())
	}
	crashPoint("create")
	id, err = m.engine.Create(ctx, spec)
	if errors.Is(err, ErrNoImage) {
		if err = m.engine.Pull(ctx, spec.Image); err == nil {
			id, err = m.engine.Create(ctx, spec)
		}
	}
	if err != nil && own && strings.Contains(err.Error(), "bind source path does not exist") {
		m.noMounts.Store(true) // the engine can't see the paths of this process: it is on another machine, or this process is in a container
		m.store.removeRecord(spec.Name)
		spec.Mounts, own = slices.DeleteFunc(slices.Clone(spec.Mounts), isHelperMount), false
		id, err = m.engine.Create(ctx, spec)
	}
	if err == nil && !own && !m.opts.AttachOnly && m.helperError == nil {
		if _, err := m.copyHelper(ctx, id); err != nil {
			m.opts.warn("the helper can't be copied before the start: " + err.Error()) // the next command that needs the helper copies it
		}
	}
	if err == nil && own {
		err = m.store.writeRecord(spec.Name, record{id, spec.Labels})
	}
	crashPoint("created")
	if err == nil && caller.Err() != nil {
		err = context.Cause(caller)
	}
	if err == nil {
		err = m.engine.Start(ctx, id)
	}
	if err == nil {
		crashPoint("started")
		return id, nil
	}
	if !refusesDiskLimit(err) { // otherwise the caller tries again without the limit
		m.opts.warn(fmt.Sprintf("the container %s could not be made, and is removed: %v", spec.Name, err))
	}
	if id == "" && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNoImage) { // the engine may have made the container in spite of the error
		if c := m.askState(ctx, spec.Name); c.State == Created { // a started container with this name is older
			id = c.ID
		}
	}
	if id != "" {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalLimit)
		defer cancel()
		if err := m.engine.Remove(undo, id); err != nil {
			m.opts.warn(err.Error())
		}
	}
	if own { // keep a record that another call has made
		m.store.removeRecord(spec.Name)
	}
	return "", err
}

// hideDir makes a container whose first process only waits start in the root directory, and labels it with its working directory,
// which the helper enters. The engine's runtime would follow a link of an earlier command to a descriptor that it has open itself
// (CVE-2024-21626). With AttachOnly, the service's guard does this for every container.
func (m *Manager) hideDir(spec *Spec) {
	if !m.opts.AttachOnly && m.helperError == nil && spec.Dir != "" && len(spec.Entrypoint) == 0 && slices.Equal(spec.Cmd, []string{"sleep", "infinity"}) {
		spec.Labels[LabelDir], spec.Dir = spec.Dir, "/"
	}
}

// isHelperMount reports whether a mount is one of the two that addHelper adds.
func isHelperMount(m Mount) bool { return m.Target == mux.RunDir || m.Target == mux.ToolsDir }

// addHelper adds the mounts of the helper to a Spec. If own is true, the container now has a record in the store. If own is false,
// addHelper has added no mount, because the engine can't see this process's paths.
func (m *Manager) addHelper(spec *Spec) (own bool, err error) {
	if m.helperError != nil || m.noMounts.Load() || slices.ContainsFunc(spec.Mounts, isHelperMount) {
		return false, nil
	}
	data, hash, err := m.readHelper()
	if err != nil {
		return false, err
	}
	tools, err := m.store.installHelper(data, hash)
	if err != nil {
		return false, err
	}
	dir, err := m.store.prepareRun(spec.Name)
	if err != nil {
		return false, err
	}
	spec.Mounts = append(slices.Clone(spec.Mounts),
		Mount{Type: "bind", Source: dir, Target: mux.RunDir},
		Mount{Type: "bind", Source: tools, Target: mux.ToolsDir, ReadOnly: true})
	return true, nil
}

// askState asks the engine for the state of a container. State is empty if the engine doesn't answer.
func (m *Manager) askState(ctx context.Context, id string) Container {
	c, err := m.engine.Inspect(context.WithoutCancel(ctx), id)
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
