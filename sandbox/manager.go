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

// Key identifies a sandbox: there is one container for each task and profile.
type Key struct {
	Task    string // name of the task; "" stands for "default"
	Profile string // name of the profile; "" stands for Options.Profile
}

// Manager finds, makes, keeps and removes the sandboxes of one volume.
type Manager struct {
	engine      Engine
	opts        Options
	store       *store
	helper      string // the path of the helper program
	helperError error  // the reason why the helper was not found, or nil
	swept       sync.Once

	noMounts atomic.Bool // the engine can't see the paths of the volume

	mu      sync.Mutex
	open    map[Key]*Sandbox
	adopted map[string]*Sandbox // by container id, and by the names that callers have used
	closed  bool
}

// NewManager returns a manager. It creates the volume's state directory and does not connect to the engine yet. The manager takes
// ownership of engine and closes it in Close.
func NewManager(engine Engine, opts Options) (*Manager, error) {
	opts.State = cmp.Or(opts.State, filepath.Join(opts.Dir, ".hinit"))
	opts.Profile, opts.Session = cmp.Or(opts.Profile, "default"), cmp.Or(opts.Session, randomHex(6))
	if !filepath.IsAbs(opts.State) {
		return nil, &OptionError{Name: "TERMINAL_SANDBOX_DIR", Value: opts.Dir, Want: "an absolute path"}
	}
	m := &Manager{engine: engine, opts: opts, open: make(map[Key]*Sandbox), adopted: make(map[string]*Sandbox)}
	m.noMounts.Store(opts.AttachOnly)
	var err error
	if m.helper, m.helperError = FindHelper(opts.Helper); m.helperError != nil && opts.Helper != "" {
		return nil, m.helperError
	}
	newBytes.Store(rememberedCheckBytes) // so that the first Remember checks the limits
	m.store, err = openStore(opts.State)
	return m, err
}

// Engine returns the engine of the sandboxes.
func (m *Manager) Engine() Engine { return m.engine }

// Key returns key with its empty fields set to the defaults.
func (m *Manager) Key(key Key) Key {
	return Key{cmp.Or(key.Task, "default"), cmp.Or(key.Profile, m.opts.Profile)}
}

// Open returns the sandbox for a key. It finds, starts or makes the container. Callers with the same key get the same sandbox.
// The first call also removes orphaned containers if Options.SweepOrphans is set.
func (m *Manager) Open(ctx context.Context, key Key) (*Sandbox, error) {
	key = m.Key(key)
	if m.opts.SweepOrphans { // ignore errors: a failed sweep must not prevent work
		m.swept.Do(func() { _, _, _ = m.Sweep(ctx, SweepOptions{Profile: key.Profile}) })
	}
	m.mu.Lock()
	s := m.open[key]
	if s == nil {
		s = m.newSandbox(key, Labels(key))
		s.closed = m.closed
		m.open[key] = s
	}
	m.mu.Unlock()
	_, err := s.currentLink()
	if err == nil && s.ID() == "" {
		_, err = s.ensureLink(ctx)
	}
	if down := (*StateError)(nil); err == nil || s.ID() != "" && errors.As(err, &down) {
		return s, nil // the next command returns an error that says that the container is paused
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open[key] == s {
		delete(m.open, key)
	}
	return nil, err
}

func (m *Manager) newSandbox(key Key, labels map[string]string) *Sandbox {
	return &Sandbox{manager: m, key: key, labels: labels, forwardPending: true, repairTurn: make(chan struct{}, 1), dir: m.opts.Cwd}
}

// maxAdopted is the maximum number of adopted containers' names that a Manager remembers.
const maxAdopted = 1024

// Adopt returns the sandbox of a running container by its id or name, even if another program has created it. All callers get the
// same sandbox. An adopted container is never created or started again. The error is a *StateError if the container is not
// running.
func (m *Manager) Adopt(ctx context.Context, ref string) (*Sandbox, error) {
	m.mu.Lock()
	s := m.adopted[ref]
	m.mu.Unlock()
	if s != nil {
		return s, nil
	}
	var l *link
	c, found := m.store.findByID(ref)
	if found {
		l = m.dialDirect(c.ID, c.Name, helperAnswerTime) // if the helper answers, the container runs
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
			if !s.busy() {
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

// Forget makes the next Adopt of a container ask the engine again. Running commands continue.
func (m *Manager) Forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.adopted[id]
	if s == nil {
		return
	}
	maps.DeleteFunc(m.adopted, func(_ string, other *Sandbox) bool { return other == s })
	s.shutDown(false)
}

// Spec returns the container that Open would create. It creates the host directories that the container would mount.
func (m *Manager) Spec(ctx context.Context, key Key) (Spec, error) {
	limitsDisk := false
	if m.opts.DiskMB > 0 {
		info, err := m.engine.Info(ctx)
		limitsDisk = err == nil && info.Driver == "overlay2"
	}
	return buildSpec(m.opts, m.Key(key), hasOwnInit(ctx, m.engine, m.opts.Image), limitsDisk)
}

// Close ends the commands that this process runs, and closes the engine. The containers are left as they are.
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

// LastUse returns the time at which the last command in a container ended. While a command is running, it returns the
// current time. If no command has run since the sandbox was opened or adopted, it returns the zero time.
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

// usedSandboxes returns the sandboxes that were opened or adopted, without duplicates. The caller holds the lock.
func (m *Manager) usedSandboxes() []*Sandbox {
	return lo.Uniq(append(lo.Values(m.adopted), lo.Values(m.open)...))
}

// crashPoint is called at each place where a test may kill the process.
var crashPoint = func(point string) {}
