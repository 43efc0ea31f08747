package sandbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
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
	helper string // path of the program inside
	why    error  // there is none
	swept  sync.Once

	remembered atomic.Int64 // bytes, since they were checked

	mu       sync.Mutex
	open     map[Key]*Sandbox
	adopted  map[string]*Sandbox // by the container's id, and by what callers call it
	noMounts bool                // the engine can't see the volume's paths
	closed   bool
}

// NewManager returns a manager. It makes the volume's state directory; it does not ask the engine anything yet. The manager closes the engine.
func NewManager(engine Engine, opts Options) (*Manager, error) {
	opts.State = cmp.Or(opts.State, filepath.Join(opts.Dir, ".hinit"))
	opts.Profile, opts.Session = cmp.Or(opts.Profile, "default"), cmp.Or(opts.Session, randomHex(6))
	if !filepath.IsAbs(opts.State) {
		return nil, &OptionError{Name: "TERMINAL_SANDBOX_DIR", Value: opts.Dir, Want: "an absolute path"}
	}
	m := &Manager{
		engine: engine, opts: opts, open: make(map[Key]*Sandbox), adopted: make(map[string]*Sandbox), noMounts: opts.Apart,
	}
	var err error
	if m.helper, m.why = FindHelper(opts.Helper); m.why != nil && opts.Helper != "" {
		return nil, m.why
	}
	m.remembered.Store(rememberedCheck) // the first value has what there is checked
	m.store, err = openStore(opts.State)
	return m, err
}

// Engine returns the engine of the sandboxes.
func (m *Manager) Engine() Engine { return m.engine }

// Key fills in what a key leaves open.
func (m *Manager) Key(key Key) Key {
	return Key{cmp.Or(key.Task, "default"), cmp.Or(key.Profile, m.opts.Profile)}
}

// Open returns the sandbox of a key, found, started or made. Callers of one key get the same one. The first call of a manager
// sweeps orphans first, if the options say so.
func (m *Manager) Open(ctx context.Context, key Key) (*Sandbox, error) {
	key = m.Key(key)
	m.sweepOnce(ctx, key.Profile)
	m.mu.Lock()
	s := m.open[key]
	if s == nil {
		s = m.handle(key, Labels(key))
		s.closed = m.closed
		m.open[key] = s
	}
	m.mu.Unlock()
	_, err := s.current()
	if err == nil && s.ID() == "" {
		_, err = s.ready(ctx)
	}
	if down := (*StateError)(nil); err == nil || s.ID() != "" && errors.As(err, &down) {
		return s, nil // whoever runs a command is told of a pause
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open[key] == s {
		delete(m.open, key)
	}
	return nil, err
}

func (m *Manager) handle(key Key, labels map[string]string) *Sandbox {
	return &Sandbox{m: m, key: key, labels: labels, fresh: true, turn: make(chan struct{}, 1), dir: m.opts.Cwd}
}

// Lock waits for the lock of the key in labels, which whoever finds, makes, starts or removes its container has.
func (m *Manager) Lock(ctx context.Context, labels map[string]string) (unlock func(), err error) {
	return m.store.lock(ctx, labels, m.opts.warn)
}

// adoptedMost is how many names of adopted containers a Manager keeps.
const adoptedMost = 1024

// Adopt returns the sandbox of a container that exists and runs, whoever made it, by its id or name: one for all callers. It is never
// created or started again. The error is a *StateError for a container that does not run.
func (m *Manager) Adopt(ctx context.Context, ref string) (*Sandbox, error) {
	m.mu.Lock()
	s := m.adopted[ref]
	m.mu.Unlock()
	if s != nil {
		return s, nil
	}
	var l *link
	c, found := m.store.find(ref)
	if found {
		l = m.dialDirect(c.ID, c.Name, signTime) // what answers runs
	}
	if l == nil {
		var err error
		if c, err = m.engine.Inspect(ctx, ref); err == nil && c.State != Running {
			err = &StateError{c}
		}
		if err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		l.close()
		return nil, ErrClosed
	}
	if len(m.adopted) >= adoptedMost {
		for name, s := range m.adopted {
			if _, busy := s.over(); !busy {
				s.leave(false)
				delete(m.adopted, name)
			}
		}
	}
	if s = m.adopted[c.ID]; s == nil {
		s = m.handle(Key{c.Labels[LabelTask], c.Labels[LabelProfile]}, c.Labels)
		s.id, s.name, s.adopted, s.link = c.ID, c.Name, true, l
		m.adopted[c.ID] = s
	} else {
		l.close()
	}
	m.adopted[ref] = s
	return s, nil
}

// Forget has the next Adopt of a container ask the engine again. Commands that run in it go on.
func (m *Manager) Forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.adopted[id]
	if s == nil {
		return
	}
	maps.DeleteFunc(m.adopted, func(_ string, other *Sandbox) bool { return other == s })
	s.leave(false)
}

// Spec returns what Open would create. It makes the directories of the host that would be mounted.
func (m *Manager) Spec(ctx context.Context, key Key) (Spec, error) {
	limitsDisk := false
	if m.opts.DiskMB > 0 {
		info, err := m.engine.Info(ctx)
		limitsDisk = err == nil && info.Driver == "overlay2"
	}
	return buildSpec(m.opts, m.Key(key), ownInit(ctx, m.engine, m.opts.Image), limitsDisk)
}

// ofAnotherVolume reports whether a container belongs to another volume.
func (m *Manager) ofAnotherVolume(c Container) bool {
	label := c.Labels[LabelVolume]
	return label != "" && label != m.store.id
}

// Close ends the commands that this process runs, gives all sandboxes up, which stay as they are, and closes the engine.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	for s := range m.used() {
		s.leave(true)
	}
	m.store.dir.Close()
	return m.engine.Close()
}

// LastUse is when the last command in a container ended: now if one runs, zero if there was none since the sandbox was adopted.
func (m *Manager) LastUse(id string) (last time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.used() {
		if at := s.lastUse(); s.ID() == id && at.After(last) {
			last = at
		}
	}
	return last
}

// used are the sandboxes that were opened or adopted. The caller holds the lock.
func (m *Manager) used() map[*Sandbox]bool {
	all := make(map[*Sandbox]bool)
	for _, s := range m.adopted {
		all[s] = true
	}
	for _, s := range m.open {
		all[s] = true
	}
	return all
}

// crash is a point at which tests end the process.
var crash = func(point string) {}
