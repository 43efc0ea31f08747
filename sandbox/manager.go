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

	"github.com/samber/lo"
)

// Key identifies a sandbox: each task of each profile has one container.
type Key struct {
	Task    string // Name of the task; "" means "default".
	Profile string // Name of the profile; "" means Options.Profile.
}

// Manager finds, makes, keeps and removes the sandboxes of one volume.
type Manager struct {
	engine      Engine
	opts        Options
	store       *store
	helper      string    // Path of the helper program.
	helperError error     // Reason why the helper was not found; nil if it was found.
	sweepOnce   sync.Once // Makes only the first Open remove orphans, see Options.SweepOrphans.

	mountsUnusable atomic.Bool // Whether the engine can't see the volume's paths, so that it can mount nothing from the volume.

	mu      sync.Mutex
	opened  map[Key]*Sandbox
	adopted map[string]*Sandbox // Adopted containers, by ID and by each name that a caller has used.
	closed  bool
}

// NewManager returns a manager. It makes the volume's state directory, and does not connect to the engine yet. The manager
// owns the engine, and closes it in [Manager.Close].
func NewManager(engine Engine, opts Options) (*Manager, error) {
	opts.State = cmp.Or(opts.State, filepath.Join(opts.Dir, ".hinit"))
	opts.Profile, opts.Session = cmp.Or(opts.Profile, "default"), cmp.Or(opts.Session, randomHex(6))
	if !filepath.IsAbs(opts.State) {
		return nil, &OptionError{Name: "TERMINAL_SANDBOX_DIR", Value: opts.Dir, Want: "an absolute path"}
	}
	m := &Manager{engine: engine, opts: opts, opened: make(map[Key]*Sandbox), adopted: make(map[string]*Sandbox)}
	m.mountsUnusable.Store(opts.AttachOnly)
	var err error
	if m.helper, m.helperError = FindHelper(opts.HelperPath); m.helperError != nil && opts.HelperPath != "" {
		return nil, m.helperError
	}
	m.store, err = openStore(opts.State)
	return m, err
}

// Engine returns the engine of the sandboxes.
func (m *Manager) Engine() Engine { return m.engine }

// WithDefaults returns a copy of key with the defaults in place of empty fields.
func (m *Manager) WithDefaults(key Key) Key {
	return Key{cmp.Or(key.Task, "default"), cmp.Or(key.Profile, m.opts.Profile)}
}

// Open returns the sandbox for a key. It finds, starts or makes the container. All callers with the same key get the same
// sandbox. If Options.SweepOrphans is set, the first call also removes orphaned containers.
func (m *Manager) Open(ctx context.Context, key Key) (*Sandbox, error) {
	key = m.WithDefaults(key)
	if m.opts.SweepOrphans { // Ignore errors of the sweep, which must not prevent work.
		m.sweepOnce.Do(func() { _, _, _ = m.Sweep(ctx, SweepOptions{Profile: key.Profile}) })
	}
	m.mu.Lock()
	s := m.opened[key]
	if s == nil {
		s = m.newSandbox(key, AgentLabels(key))
		s.closed = m.closed
		m.opened[key] = s
	}
	m.mu.Unlock()
	_, err := s.currentLink()
	if err == nil && s.ID() == "" {
		_, err = s.ensureLink(ctx)
	}
	if down := (*StateError)(nil); err == nil || s.ID() != "" && errors.As(err, &down) {
		return s, nil // Ignore the error: the next command returns it.
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.opened[key] == s {
		delete(m.opened, key)
	}
	return nil, err
}

func (m *Manager) newSandbox(key Key, labels map[string]string) *Sandbox {
	return &Sandbox{manager: m, key: key, labels: labels, mustForward: true, reconnectLock: make(chan struct{}, 1), dir: m.opts.Cwd}
}

// maxAdopted limits the names of adopted containers that a Manager remembers.
const maxAdopted = 1024

// Adopt returns the sandbox of a running container by its id or name, even if another program has made the container. All
// callers get the same sandbox. An adopted container is never made or started again. If it is not running, the error is a
// *StateError.
func (m *Manager) Adopt(ctx context.Context, ref string) (*Sandbox, error) {
	m.mu.Lock()
	s := m.adopted[ref]
	m.mu.Unlock()
	if s != nil {
		return s, nil
	}
	var l *helperLink
	c, found := m.store.findByID(ref)
	if found {
		// If the helper answers, the container runs, and the engine need not be asked.
		l = m.dialDirect(c.ID, c.Name, helperAnswerTime)
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
	if len(m.adopted) >= maxAdopted {
		for name, s := range m.adopted {
			if !s.isBusy() {
				s.shutDown(false)
				delete(m.adopted, name)
			}
		}
	}
	if s = m.adopted[c.ID]; s == nil {
		s = m.newSandbox(Key{c.Labels[LabelTask], c.Labels[LabelProfile]}, c.Labels)
		s.id, s.name, s.adopted, s.link = c.ID, c.Name, true, l
		m.adopted[c.ID] = s
	} else {
		l.close()
	}
	m.adopted[ref] = s
	return s, nil
}

// ForgetAdopted makes the next Adopt of a container ask the engine again. Call it when an error suggests that the container is
// gone. Running commands continue.
func (m *Manager) ForgetAdopted(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.adopted[id]
	if s == nil {
		return
	}
	maps.DeleteFunc(m.adopted, func(_ string, other *Sandbox) bool { return other == s })
	s.shutDown(false)
}

// ContainerSpec returns the description of the container that Open would make. It makes the host directories that the container
// would mount.
func (m *Manager) ContainerSpec(ctx context.Context, key Key) (Spec, error) {
	limitsDisk := false
	if m.opts.DiskMB > 0 {
		info, err := m.engine.Info(ctx)
		limitsDisk = err == nil && info.Driver == "overlay2"
	}
	return buildSpec(m.opts, m.WithDefaults(key), hasOwnInit(ctx, m.engine, m.opts.Image), limitsDisk)
}

// Close ends the commands that this process runs, and closes the engine. The containers keep running.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	for _, s := range m.usedSandboxes() {
		s.shutDown(true)
	}
	m.store.dir.Close()
	return m.engine.Close()
}

// LastUse returns when the last command in a container ended, or the current time while one runs. It is zero if no command has
// run since the sandbox was opened or adopted.
func (m *Manager) LastUse(id string) (last time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.usedSandboxes() {
		if at := s.lastUse(); s.ID() == id && at.After(last) {
			last = at
		}
	}
	return last
}

// usedSandboxes returns the opened and the adopted sandboxes, each only once. The caller holds the lock.
func (m *Manager) usedSandboxes() []*Sandbox {
	return lo.Uniq(append(lo.Values(m.adopted), lo.Values(m.opened)...))
}

// reachCrashPoint is called wherever a test may kill the process, to prove that another process can
// recover.
var reachCrashPoint = func(point string) {}
