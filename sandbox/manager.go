package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"hinit/internal/guard"
)

// Key names a sandbox: one container for each task and profile.
type Key struct {
	Task    string // "" is "default"
	Profile string // "" is Options.Profile
}

// Manager finds, makes, keeps and sweeps the sandboxes of one volume.
type Manager struct {
	engine Engine
	opts   Options
	store  *store
	helper *helper
	why    string // there is no helper

	mu        sync.Mutex
	open      map[Key]*Sandbox
	opening   map[Key]chan struct{}
	departing map[*Sandbox]bool // cleanup under way
	swept     bool
	noMounts  bool // the engine can't see the volume's paths
	idle      chan struct{}
	closed    bool

	infoOnce sync.Mutex
	info     *Info
	disk     *bool // the engine can limit disks; nil while nobody asked
}

// NewManager returns a manager. It makes the volume's state directory; it does not ask the engine anything yet. The manager closes the engine.
func NewManager(engine Engine, opts Options) (*Manager, error) {
	opts.State = cmp.Or(opts.State, filepath.Join(opts.Dir, ".hinit"))
	opts.Profile = cmp.Or(opts.Profile, "default")
	if !filepath.IsAbs(opts.State) {
		return nil, &OptionError{Name: "TERMINAL_SANDBOX_DIR", Value: opts.Dir, Want: "an absolute path"}
	}
	m := &Manager{
		engine: engine, opts: opts, open: make(map[Key]*Sandbox), opening: make(map[Key]chan struct{}), departing: make(map[*Sandbox]bool),
		noMounts: opts.Apart,
	}
	var err error
	if m.helper, err = findHelper(opts.Helper); err != nil {
		if bad := (*OptionError)(nil); errors.As(err, &bad) {
			return nil, err
		}
		m.why = err.Error()
	}
	m.store, err = openStore(opts.State)
	return m, err
}

// Options returns the options.
func (m *Manager) Options() Options { return m.opts }

// Engine returns the engine. The caller must not close it.
func (m *Manager) Engine() Engine { return m.engine }

// Volume returns the value of [LabelVolume] of this volume's containers.
func (m *Manager) Volume() string { return m.store.id }

func (m *Manager) fill(key Key) Key {
	return Key{cmp.Or(key.Task, "default"), cmp.Or(key.Profile, m.opts.Profile)}
}

// Open returns the sandbox of a key, found, started or made. Callers of one key get the same one. The first call of a manager
// sweeps orphans first, if the options say so.
func (m *Manager) Open(ctx context.Context, key Key) (*Sandbox, error) {
	key = m.fill(key)
	m.sweepOnce(ctx, key.Profile)
	for {
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return nil, ErrClosed
		}
		if s := m.open[key]; s != nil {
			m.mu.Unlock()
			s.touch()
			return s, nil
		}
		wait := m.opening[key]
		if wait == nil {
			m.opening[key] = make(chan struct{})
			m.mu.Unlock()
			break
		}
		m.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	s, err := m.find(ctx, key)
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.opening[key])
	delete(m.opening, key)
	if err != nil {
		return nil, err
	}
	m.open[key] = s
	m.mindIdle()
	return s, nil
}

// find makes the handle and the container.
func (m *Manager) find(ctx context.Context, key Key) (*Sandbox, error) {
	s := m.handle(key)
	s.labels = Labels(key)
	unlock, err := m.store.lock(ctx, s.labels, m.opts.warn)
	if err != nil {
		return nil, err
	}
	defer unlock()
	crash("locked")
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (m *Manager) handle(key Key) *Sandbox {
	session := m.opts.Session
	if session == "" {
		session = randomHex(6)
	}
	return &Sandbox{
		m: m, key: key, session: session, fresh: true, turn: make(chan struct{}, 1), used: time.Now(), persist: m.opts.Persist,
	}
}

// Adopt returns a sandbox for a container that exists, whoever made it. It is never created or started again, and [Sandbox.Cleanup] without
// force leaves it alone.
func (m *Manager) Adopt(ctx context.Context, id string) (*Sandbox, error) {
	c, err := m.engine.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	return m.AdoptContainer(c)
}

// AdoptContainer is Adopt of a container as the engine has just described it.
func (m *Manager) AdoptContainer(c Container) (s *Sandbox, err error) {
	s = m.handle(Key{c.Labels[LabelTask], c.Labels[LabelProfile]})
	s.labels, s.adopted, s.persist = c.Labels, true, true
	s.id, s.name, s.dir = c.ID, c.Name, m.opts.Cwd
	if s.lease, err = m.store.lease(c.ID); err != nil {
		return nil, err
	}
	return s, nil
}

// Prepare creates and starts a container as Open does (program inside, mounts for it, nothing left behind by a failure), of a caller's
// making: the docker personality's run. It returns the container's id.
func (m *Manager) Prepare(ctx context.Context, spec Spec) (id string, err error) {
	if spec.Labels[LabelAgent] != "" {
		unlock, err := m.store.lock(ctx, spec.Labels, m.opts.warn)
		if err != nil {
			return "", err
		}
		defer unlock()
	}
	spec.Name = cmp.Or(spec.Name, newName())
	return m.create(ctx, &spec)
}

// Spec returns what Open would create. It makes the directories of the host that would be mounted.
func (m *Manager) Spec(ctx context.Context, key Key) (Spec, error) {
	on := thisMachine(m.opts.warn)
	on.ownInit = ownInit(ctx, m.engine, m.opts.Image)
	if m.opts.DiskMB > 0 {
		on.disk = m.limitsDisk(ctx)
	}
	spec, err := buildSpec(m.opts, m.fill(key), on)
	if err == nil && !m.opts.Persist {
		spec.Labels[LabelEphemeral] = "1"
	}
	return spec, err
}

// limitsDisk reports whether the engine can limit the size of a container's file system. It tries once.
func (m *Manager) limitsDisk(ctx context.Context) bool {
	m.infoOnce.Lock()
	defer m.infoOnce.Unlock()
	if m.disk != nil {
		return *m.disk
	}
	info, err := m.engineInfo(ctx)
	if err != nil {
		return false // not remembered: the engine did not answer
	}
	can := false
	if info.Driver == "overlay2" {
		id, err := m.engine.Create(ctx, Spec{Image: m.opts.Image, Storage: map[string]string{"size": "1m"}, Cmd: []string{"true"}})
		if can = err == nil; can {
			_ = m.engine.Remove(context.WithoutCancel(ctx), id)
		}
		if errors.Is(err, ErrNoImage) {
			return false // not remembered either
		}
	}
	m.disk = &can
	return can
}

// engineInfo asks the engine what it is, once. The caller holds infoOnce.
func (m *Manager) engineInfo(ctx context.Context) (Info, error) {
	if m.info == nil {
		info, err := m.engine.Info(ctx)
		if err != nil {
			return Info{}, err
		}
		m.info = &info
	}
	return *m.info, nil
}

// Remove stops and removes the sandbox of a key, whoever uses it.
func (m *Manager) Remove(ctx context.Context, key Key) error {
	key = m.fill(key)
	m.mu.Lock()
	s := m.open[key]
	delete(m.open, key)
	m.mu.Unlock()
	if s != nil {
		s.disconnect(ErrClosed)
	}
	labels := Labels(key)
	unlock, err := m.store.lock(ctx, labels, m.opts.warn)
	if err != nil {
		return err
	}
	defer unlock()
	list, err := m.engine.List(ctx, labels)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if m.foreign(c) {
			continue
		}
		if err := m.destroy(ctx, c.ID, c.Name); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// foreign reports whether a container belongs to another volume.
func (m *Manager) foreign(c Container) bool {
	label := c.Labels[LabelVolume]
	return label != "" && label != m.store.id
}

const (
	stopGrace    = 10 * time.Second
	stopPatience = 30 * time.Second
)

// destroy stops and removes a container, and what is kept of it. Each step has a time of its own, and the next is done whatever
// became of the one before.
func (m *Manager) destroy(ctx context.Context, id, name string) error {
	ctx = context.WithoutCancel(ctx)
	step, cancel := context.WithTimeout(ctx, stopPatience)
	err := m.engine.Stop(step, id, stopGrace)
	cancel()
	if err != nil && !errors.Is(err, ErrGone) {
		m.opts.warn(err.Error())
	}
	step, cancel = context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if err := m.engine.Remove(step, id); err != nil {
		m.opts.warn(err.Error())
		return err
	}
	m.store.forget(name, id)
	return nil
}

// mindIdle starts the goroutine that closes idle sandboxes, once. The caller holds the lock.
func (m *Manager) mindIdle() {
	if m.idle != nil {
		return
	}
	m.idle = make(chan struct{})
	guard.Go("closing idle sandboxes", func() {
		for {
			select {
			case <-m.idle:
				return
			case <-time.After(m.closeIdle(time.Now())):
			}
		}
	})
}

// closeIdle gives up the sandboxes that nobody has used for the idle window, and returns when to look again.
func (m *Manager) closeIdle(now time.Time) time.Duration {
	next := max(m.opts.Lifetime, time.Second)
	m.mu.Lock()
	var idle []*Sandbox
	for _, s := range m.open {
		since, busy := s.idleSince()
		switch left := m.opts.Lifetime - now.Sub(since); {
		case busy:
		case left < 0:
			idle = append(idle, s)
		default:
			next = min(next, left+time.Millisecond)
		}
	}
	m.mu.Unlock()
	for _, s := range idle {
		if s.jobsRun() {
			s.touch()
			continue
		}
		if err := s.Cleanup(false); err != nil {
			m.opts.warn(err.Error())
		}
	}
	return next
}

// leave takes a sandbox out of the table.
func (m *Manager) leave(s *Sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open[s.key] == s {
		delete(m.open, s.key)
	}
}

// Close cleans up every sandbox that this manager has open, as [Sandbox.Cleanup] without force does, waits for that until the
// context ends, and closes the engine.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	if m.idle != nil {
		close(m.idle)
	}
	var all []*Sandbox
	for _, s := range m.open {
		all = append(all, s)
	}
	m.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Cleanup(false))
	}
	m.mu.Lock()
	for s := range m.departing {
		all = append(all, s)
	}
	m.mu.Unlock()
	for _, s := range all { // they leave at the same time, so waiting for one after the other takes as long as the slowest
		if !s.wait(ctx) {
			errs = append(errs, fmt.Errorf("cannot wait for the end of the container %s: %w", short(s.gone), context.Cause(ctx)))
		}
	}
	m.store.dir.Close()
	return errors.Join(append(errs, m.engine.Close())...)
}

// crash is a point at which tests end the process.
var crash = func(point string) {}
