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
	startTimeout        = 30 * time.Second
	createTimeout       = 120 * time.Second // Time limit for creating a container. The engine may have to pull its image.
	awaitRemovalTimeout = 10 * time.Second
	maxWakeTries        = 5
	nameTakenTimeout    = 5 * time.Second // How long to retry while a container with the same name is being created or removed.
)

// findOrMake finds or makes the sandbox's container. It holds the lock of the key, so that no other process does the same at
// that time.
//
// The engine may still be making a container for a process that was killed, and does not list it yet. The container's name is
// derived from the key, so the engine refuses a second container with this name. findOrMake then searches again.
func (s *Sandbox) findOrMake(ctx context.Context) error {
	unlock, err := s.manager.Lock(ctx, s.labels)
	if err != nil {
		return err
	}
	defer unlock()
	reachCrashPoint("locked")
	none := func(Container) bool { return false }
	c, found, err := s.manager.FindContainer(ctx, s.Labels(), none)
	var plan Spec
	if err == nil && !found {
		plan, err = s.manager.ContainerSpec(ctx, s.key)
		plan.Name = s.manager.containerName(s.labels)
	}
	for limit := time.Now().Add(nameTakenTimeout); err == nil && !found; {
		if time.Now().After(limit) { // The container with this name can't be used, so use another name.
			plan.Name = randomName()
		}
		c.Name = plan.Name
		c.ID, err = s.manager.MakeContainer(ctx, plan)
		if plan.Storage["size"] != "" && refusesDiskLimit(err) {
			s.manager.opts.warn(noDiskLimitWarning)
			delete(plan.Storage, "size")
			err = nil
			continue
		}
		if !errors.Is(err, ErrNameTaken) {
			break
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
		c, found, err = s.manager.FindContainer(ctx, s.Labels(), none)
	}
	if err != nil {
		return err
	}
	reachCrashPoint("attach")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.name, s.mustForward = c.ID, c.Name, true
	return nil
}

// refusesDiskLimit reports whether the engine's error means that it can't limit the size of a container's file system.
func refusesDiskLimit(err error) bool {
	return err != nil && strings.Contains(err.Error(), "storage-opt")
}

// FindContainer finds a container by its labels and makes it run. It prefers a running container. It ignores containers for
// which skip returns true, and containers that it can't start; the sweep removes these later. If the engine doesn't answer,
// FindContainer returns an error: the container may exist, so the caller must not make a second one. The caller holds the lock
// of the key.
func (m *Manager) FindContainer(ctx context.Context, labels map[string]string, skip func(Container) bool) (Container, bool, error) {
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
			case state == Paused: // A command in a paused container fails with an error that says how to unpause it.
				return c, true, nil
			}
			if err := m.WakeContainer(ctx, c); errors.Is(err, ErrNoEngine) {
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

// WakeContainer starts or unpauses a container. If another process stops, kills or pauses it in the meantime, WakeContainer
// tries again, at most maxWakeTries times. It tries hard because a new container would not have the state of this one.
func (m *Manager) WakeContainer(ctx context.Context, c Container) error {
	defer setTimeLimit(&ctx, startTimeout)()
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
		if c = m.inspectState(ctx, c.ID); c.State == "" || c.State == Exited && !c.Started.After(before) {
			return err
		}
	}
}

// MakeContainer creates a container with the helper, and starts it. The caller holds the lock of the key. If MakeContainer
// fails, it removes the container. When the caller's context ends, MakeContainer still waits a short time for the engine's
// answer. Without an answer it could not remove the container, which the engine would still make.
func (m *Manager) MakeContainer(caller context.Context, spec Spec) (id string, err error) {
	spec.Name = cmp.Or(spec.Name, randomName())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), createTimeout)
	defer cancel()
	if caller.Err() != nil {
		return "", context.Cause(caller)
	}
	defer context.AfterFunc(caller, func() { time.AfterFunc(awaitRemovalTimeout, cancel) })()
	if spec.Labels == nil {
		spec.Labels = make(map[string]string)
	}
	spec.Labels[LabelVolume] = m.store.id
	m.moveDirToLabel(&spec)
	own, err := m.addHelperMounts(&spec)
	// An earlier container of this name has left the directory.
	if errors.Is(err, fs.ErrExist) && m.inspectState(ctx, spec.Name).State == Gone {
		m.store.removeRecord(spec.Name)
		own, err = m.addHelperMounts(&spec)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // If only the name is taken, Create below reports that.
		m.opts.warn("the helper can't be mounted: " + err.Error())
	}
	reachCrashPoint("create")
	id, err = m.engine.Create(ctx, spec)
	if errors.Is(err, ErrNoImage) {
		if err = m.engine.Pull(ctx, spec.Image); err == nil {
			id, err = m.engine.Create(ctx, spec)
		}
	}
	if err != nil && own && strings.Contains(err.Error(), "bind source path does not exist") {
		// The engine can't see the paths of this process, because one of the two is on another machine or in a container.
		m.mountsUnusable.Store(true)
		m.store.removeRecord(spec.Name)
		spec.Mounts, own = slices.DeleteFunc(slices.Clone(spec.Mounts), isHelperMount), false
		id, err = m.engine.Create(ctx, spec)
	}
	if err == nil && !own && !m.opts.AttachOnly && m.helperError == nil {
		if _, err := m.copyHelper(ctx, id); err != nil {
			// Only warn: the next command that needs the helper copies it.
			m.opts.warn("the helper can't be copied before the start: " + err.Error())
		}
	}
	if err == nil && own {
		err = m.store.writeRecord(spec.Name, containerRecord{id, spec.Labels})
	}
	reachCrashPoint("created")
	if err == nil && caller.Err() != nil {
		err = context.Cause(caller)
	}
	if err == nil {
		err = m.engine.Start(ctx, id)
	}
	if err == nil {
		reachCrashPoint("started")
		return id, nil
	}
	if !refusesDiskLimit(err) { // Don't warn if the caller tries again without the limit.
		m.opts.warn(fmt.Sprintf("the container %s could not be made, and is removed: %v", spec.Name, err))
	}
	if id == "" && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNoImage) { // The engine may have created the container in spite of the error.
		// Remove only a container that was never started; a started one is older than this call.
		if c := m.inspectState(ctx, spec.Name); c.State == Created {
			id = c.ID
		}
	}
	if id != "" {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), awaitRemovalTimeout)
		defer cancel()
		if err := m.engine.Remove(undo, id); err != nil {
			m.opts.warn(err.Error())
		}
	}
	if own { // The record is from this call, and not from another process.
		m.store.removeRecord(spec.Name)
	}
	return "", err
}

// moveDirToLabel makes a container start in the root directory, if its first process only waits. A label keeps the working
// directory, which the helper enters later. In the working directory, an earlier command may have made a link to a descriptor
// of the engine's runtime. The runtime would follow the link and leave the container (CVE-2024-21626). With AttachOnly, the
// service's guard does the same for every container.
func (m *Manager) moveDirToLabel(spec *Spec) {
	if !m.opts.AttachOnly && m.helperError == nil && spec.Dir != "" && len(spec.Entrypoint) == 0 && slices.Equal(spec.Cmd, []string{"sleep", "infinity"}) {
		spec.Labels[LabelDir], spec.Dir = spec.Dir, "/"
	}
}

func isHelperMount(m Mount) bool { return m.Target == mux.RunDir || m.Target == mux.ToolsDir }

// addHelperMounts adds the mounts of the helper to a Spec. If it has added them, own is true and the container has a record in
// the store. Otherwise own is false, for instance because the engine can't see this process's paths.
func (m *Manager) addHelperMounts(spec *Spec) (own bool, err error) {
	if m.helperError != nil || m.mountsUnusable.Load() || slices.ContainsFunc(spec.Mounts, isHelperMount) {
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

func (m *Manager) inspectState(ctx context.Context, id string) Container {
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
