package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/sandbox/gate"
	"hinit/sandbox/mux"
)

// fakeEngine is an in-memory engine that records its calls.
type fakeEngine struct {
	mu              sync.Mutex
	calls           []string
	containers      []*Container
	specs           []Spec
	info            Info
	image           Image
	failures        map[string]error // Error of each call, by a prefix of the call; the longest matching prefix applies.
	stalledCall     string           // Prefix of the call that never returns.
	helperMute      bool             // Whether the helper does not answer.
	helperOnlyPings bool             // Whether the helper only answers pings.
	runCommand      func(c *Container, stdout io.Writer) (int, error)
	onStart         func(c *Container, n int) // Called at the n-th start of a container.
	nextID          int
}

// gateMount is the helper's mount, which the service adds to each container.
var gateMount = []Mount{{Type: "volume", Target: gate.DirPrefix + "x"}}

func newFake(have ...Container) *fakeEngine {
	f := &fakeEngine{failures: make(map[string]error)}
	for _, c := range have {
		if c.Labels == nil {
			c.Labels = AgentLabels(Key{})
		}
		c.Mounts = gateMount
		f.containers = append(f.containers, &c)
	}
	return f
}

// record records a call, and returns the error that the test has set for the call.
func (f *fakeEngine) record(ctx context.Context, format string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, engineAnswerTimeout) // The docker engine has the same time limit.
	defer cancel()
	call := strings.TrimSpace(fmt.Sprintf(format, args...))
	verb, _, _ := strings.Cut(call, " ")
	f.mu.Lock()
	f.calls = append(f.calls, call)
	err, stall := f.failures[call], f.stalledCall == verb
	if err == nil {
		err = f.failures[verb]
	}
	f.mu.Unlock()
	for stall {
		select {
		case <-ctx.Done():
			return engineError(call, ctx.Err())
		case <-time.After(time.Millisecond):
		}
		f.mu.Lock()
		stall = f.stalledCall == verb
		f.mu.Unlock()
	}
	return err
}

// callsOf returns the recorded calls whose first word is verb.
func (f *fakeEngine) callsOf(verb string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, call := range f.calls {
		if call == verb || strings.HasPrefix(call, verb+" ") {
			out = append(out, call)
		}
	}
	return out
}

func (f *fakeEngine) find(id string) *Container {
	for _, c := range f.containers {
		if c.ID == id || c.Name == id {
			return c
		}
	}
	return nil
}

// changeContainer changes a container without an engine call.
func (f *fakeEngine) changeContainer(id string, change func(*Container)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.find(id))
}

// removeContainer removes a container without an engine call.
func (f *fakeEngine) removeContainer(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers = slices.DeleteFunc(f.containers, func(c *Container) bool { return c.ID == id })
}

func (f *fakeEngine) Info(ctx context.Context) (Info, error) { return f.info, f.record(ctx, "info") }

func (f *fakeEngine) Image(ctx context.Context, ref string) (Image, error) {
	return f.image, f.record(ctx, "image %s", ref)
}

func (f *fakeEngine) Pull(ctx context.Context, ref string) error {
	return f.record(ctx, "pull %s", ref)
}

func (f *fakeEngine) List(ctx context.Context, labels map[string]string) ([]Container, error) {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, name+"="+labels[name])
	}
	if err := f.record(ctx, "list %s", strings.Join(words, " ")); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Container
	for _, c := range f.containers {
		fits := true
		for name, value := range labels {
			fits = fits && c.Labels[name] == value
		}
		if fits {
			out = append(out, *c)
		}
	}
	return out, nil
}

func (f *fakeEngine) Inspect(ctx context.Context, id string) (Container, error) {
	if err := f.record(ctx, "inspect %s", id); err != nil {
		return Container{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.find(id); c != nil {
		return *c, nil
	}
	return Container{}, fmt.Errorf("cannot inspect %s: %w", id, ErrGone)
}

func (f *fakeEngine) Create(ctx context.Context, spec Spec) (string, error) {
	if err := f.record(ctx, "create %s", spec.Name); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.find(spec.Name) != nil {
		return "", fmt.Errorf("cannot create %s: %w", spec.Name, ErrNameTaken)
	}
	f.nextID++
	id := fmt.Sprintf("new%d", f.nextID)
	f.containers = append(f.containers, &Container{ID: id, Name: spec.Name, Image: spec.Image, Labels: spec.Labels, State: Created, Created: time.Now(), Mounts: gateMount})
	f.specs = append(f.specs, spec)
	return id, nil
}

// setState records a call and sets the state of the container.
func (f *fakeEngine) setState(ctx context.Context, verb, id string, state State) error {
	if err := f.record(ctx, "%s %s", verb, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.find(id)
	if c == nil {
		return fmt.Errorf("cannot %s %s: %w", verb, id, ErrGone)
	}
	c.State = state
	return nil
}

func (f *fakeEngine) Start(ctx context.Context, id string) error {
	if f.onStart != nil {
		n := len(f.callsOf("start")) + 1
		f.changeContainer(id, func(c *Container) { f.onStart(c, n) })
	}
	return f.setState(ctx, "start", id, Running)
}

func (f *fakeEngine) Unpause(ctx context.Context, id string) error {
	return f.setState(ctx, "unpause", id, Running)
}

func (f *fakeEngine) Rename(ctx context.Context, id, name string) error {
	return f.record(ctx, "rename %s %s", id, name)
}

func (f *fakeEngine) Volumes(context.Context, string, map[string]string) ([]Volume, error) {
	return nil, nil
}

func (f *fakeEngine) CreateVolume(ctx context.Context, name string, _ map[string]string) error {
	return f.record(ctx, "volume %s", name)
}

func (f *fakeEngine) RemoveVolume(ctx context.Context, name string) error {
	return f.record(ctx, "rmvolume %s", name)
}

func (f *fakeEngine) Stop(ctx context.Context, id string, _ time.Duration) error {
	return f.setState(ctx, "stop", id, Exited)
}

func (f *fakeEngine) Remove(ctx context.Context, id string) error {
	if err := f.record(ctx, "remove %s", id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers = slices.DeleteFunc(f.containers, func(c *Container) bool { return c.ID == id || c.Name == id })
	return nil
}

func (f *fakeEngine) Exec(ctx context.Context, id string, spec ExecSpec) (Attachment, error) {
	if err := f.record(ctx, "exec %s %s", id, strings.Join(spec.Argv, " ")); err != nil {
		return nil, err
	}
	f.mu.Lock()
	c := f.find(id)
	f.mu.Unlock()
	switch {
	case c == nil:
		return nil, fmt.Errorf("cannot run a command in %s: %w", id, ErrGone)
	case c.State != Running:
		return nil, fmt.Errorf("cannot run a command in %s: %w: it is not running", id, ErrRefused)
	}
	near, far := net.Pipe()
	e := &fakeExec{near, far, f, c}
	go e.serve()
	return e, nil
}

func (f *fakeEngine) CopyIn(ctx context.Context, id, dir string, _ io.Reader) error {
	return f.record(ctx, "copyin %s %s", id, dir)
}

func (f *fakeEngine) CopyOut(context.Context, string, string) (io.ReadCloser, error) {
	return nil, errors.New("not here")
}

func (f *fakeEngine) Logs(context.Context, string, bool, io.Writer, io.Writer) error { return nil }
func (f *fakeEngine) Watch(context.Context, map[string]string, func(), func()) error { return nil }
func (f *fakeEngine) Close() error                                                   { return nil }

// fakeExec imitates the helper, reached through an exec. The function fake.run decides what a
// command does.
type fakeExec struct {
	net.Conn
	remoteConn net.Conn
	engine     *fakeEngine
	container  *Container
}

func (e *fakeExec) ErrorText() string { return "" }

func (e *fakeExec) serve() {
	defer e.remoteConn.Close()
	r, w := mux.NewReader(e.remoteConn), mux.NewWriter(e.remoteConn)
	for {
		f, err := r.Next()
		if err != nil {
			return
		}
		switch f.Kind {
		case mux.KindHello:
			_ = w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version, ID: e.container.ID})
		case mux.KindPing:
			if !e.isRunning() {
				return
			}
			e.engine.mu.Lock()
			mute := e.engine.helperMute
			e.engine.mu.Unlock()
			if !mute {
				_ = w.Write(mux.KindPong, 0, nil)
			}
		case mux.KindOpen:
			var open mux.Open
			if json.Unmarshal(f.Data, &open) == nil {
				go e.run(w, f.Channel, open)
			}
		default:
		}
	}
}

func (e *fakeExec) isRunning() bool {
	e.engine.mu.Lock()
	defer e.engine.mu.Unlock()
	now := e.engine.find(e.container.ID)
	return now != nil && now.State == Running
}

// run runs one command. If the container has ended during the command, no end frame is sent.
func (e *fakeExec) run(w *mux.Writer, channel uint32, open mux.Open) {
	if e.engine.helperOnlyPings {
		return
	}
	if open.Op == mux.OpJobs || open.Op == mux.OpKillLeftovers {
		_ = w.WriteJSON(mux.KindEnd, channel, mux.End{})
		return
	}
	_ = e.engine.record(context.Background(), "run %s", open.Command+strings.Join(open.Argv, " "))
	_ = w.Write(mux.KindBegun, channel, mux.EncodeNumber(7))
	var out bytes.Buffer
	code, err := 0, error(nil)
	if e.engine.runCommand != nil {
		code, err = e.engine.runCommand(e.container, &out)
	}
	_ = w.Write(mux.KindOutput, channel, out.Bytes())
	if !e.isRunning() || err != nil {
		_ = e.remoteConn.Close()
		return
	}
	_ = w.WriteJSON(mux.KindEnd, channel, mux.End{Code: code})
}

// fakeOptions returns options whose helper is this test binary. The fake engine never executes the
// helper.
func fakeOptions(t *testing.T) Options {
	t.Helper()
	o := DefaultOptions()
	o.Dir, o.Home, o.SweepOrphans, o.DiskMB, o.AttachOnly = t.TempDir(), t.TempDir(), false, 0, true
	var err error
	if o.HelperPath, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	return o
}

func fakeManager(t *testing.T, f *fakeEngine, change func(*Options)) *Manager {
	t.Helper()
	o := fakeOptions(t)
	if change != nil {
		change(&o)
	}
	m, err := NewManager(f, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func mustOpen(t *testing.T, m *Manager, key Key) *Sandbox {
	t.Helper()
	s, err := m.Open(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f *fakeEngine) wantCalls(t *testing.T, verb string, n int) {
	t.Helper()
	if got := f.callsOf(verb); len(got) != n {
		t.Errorf("%d calls of %s, want %d: %q", len(got), verb, n, f.calls)
	}
}

// warnings collects the warnings of a manager.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) contain(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.texts, func(text string) bool { return strings.Contains(text, part) })
}

func removeSandboxes(ctx context.Context, m *Manager, key Key) error {
	list, err := m.engine.List(ctx, AgentLabels(m.WithDefaults(key)))
	for _, c := range list {
		err = errors.Join(err, m.engine.Remove(ctx, c.ID))
	}
	return err
}
