package scandir

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	testkit.LimitParallel(8)
	goleak.VerifyTestMain(m)
}

const agentUID, agentGID = 10000, 10000

// mainHermes is the name of a slot without a service.
const mainHermes = "main-hermes"

// host is a fake PID 1. Every registered service that is wanted up is up.
type host struct {
	mu            sync.Mutex
	services      map[string]*supervisor.Service
	units         map[string]supervisor.Unit
	reservedNames map[string]string
	gateways      []string // registered gateways, with "+" if they must start
	removedSlots  []string
	events        []string
	messages      []string
	slotMadeErr   error // error that SlotMade returns
	capacityErr   error // error that CheckCapacity returns
}

func newHost() *host {
	return &host{
		services: make(map[string]*supervisor.Service), units: make(map[string]supervisor.Unit), reservedNames: make(map[string]string),
	}
}

func (h *host) SlotMade(_ context.Context, profile string, start bool, exports map[string]string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.slotMadeErr != nil {
		return h.slotMadeErr
	}
	if start {
		profile += "+"
	}
	for _, name := range slices.Sorted(maps.Keys(exports)) {
		profile += " " + name + "=" + exports[name]
	}
	h.gateways = append(h.gateways, profile)
	return nil
}

func (h *host) SlotRemoved(_ context.Context, service string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removedSlots = append(h.removedSlots, service)
}

func (h *host) WhyReserved(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reservedNames[name]
}

func (h *host) CheckCapacity() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.capacityErr
}

func (h *host) Register(_ context.Context, u supervisor.Unit, want supervisor.Want) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.units[u.Name] = u
	if h.services[u.Name] != nil {
		return nil
	}
	v := &supervisor.Service{Name: u.Name, Kind: u.Kind, Want: want, State: supervisor.Down}
	if want == supervisor.WantUp {
		v.State, v.PID = supervisor.Up, 7
	}
	h.services[u.Name] = v
	return nil
}

func (h *host) Do(_ context.Context, e supervisor.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf("%T %+v", e, e))
	switch e := e.(type) {
	case supervisor.Remove:
		if h.services[e.Name] == nil {
			return supervisor.ErrUnknown
		}
		delete(h.services, e.Name)
	case supervisor.StayDown:
		if v := h.services[e.Name]; v != nil {
			next := *v
			next.Want = supervisor.WantDown
			h.services[e.Name] = &next
		}
	}
	return nil
}

func (h *host) Snapshot() *supervisor.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &supervisor.Snapshot{}
	for _, v := range h.services {
		s.Services = append(s.Services, v)
	}
	return s
}

func (h *host) ForeignSpec(root bool) proc.Spec {
	spec := proc.Spec{Env: []string{"PATH=/bin:/usr/bin"}}
	if !root && os.Geteuid() == 0 {
		spec.Cred = &proc.Cred{UID: agentUID, GID: agentGID}
	}
	return spec
}

func (h *host) Say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages = append(h.messages, fmt.Sprintf(format, args...))
}

// whileLocked runs f while the host can't change.
func (h *host) whileLocked(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *host) unit(name string) supervisor.Unit {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.units[name]
}

func (h *host) has(name string) bool { return h.Snapshot().Find(name) != nil }

func (h *host) countMessages(text string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, line := range h.messages {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (h *host) unregistered() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.removedSlots)
}

// newLayout returns a layout in a directory that every user can reach.
func newLayout(t *testing.T) Layout {
	t.Helper()
	dir, err := os.MkdirTemp("", "scandir") //nolint:usetesting // the test's own directory is for its own user only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	agent := fsutil.ProcessActor()
	if os.Geteuid() == 0 {
		agent = fsutil.NewActor(fsutil.Identity{UID: agentUID, GID: agentGID})
	}
	return Layout{ScanDir: filepath.Join(dir, "run/service"), BaseDir: filepath.Join(dir, "run/s6"), Agent: agent}
}

func openScanner(t *testing.T, h Host, g Layout) *Scanner {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := Open(ctx, h, g)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		<-s.Ended()
		waitUntil(t, "what was moved aside is removed", func() bool { return countLeftovers(g) == 0 })
	})
	return s
}

func countLeftovers(g Layout) int {
	n := 0
	for _, dir := range []string{filepath.Dir(g.ScanDir), filepath.Dir(g.BaseDir)} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), oldDirPrefix) {
				n++
			}
		}
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testTimeout is the longest time that a test waits for something that must happen.
const testTimeout = 2 * time.Minute

func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func makeServiceDir(t *testing.T, g Layout, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(g.ScanDir, name)
	must(t, g.Agent.Do(func() error { return writeServiceDir(dir, files) }))
	return dir
}

func writeServiceDir(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		mode := os.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether there is a slot, or one is queued.
func (s *Scanner) Has(name string) bool {
	return s.queue.has(name) || s.table.Load().byName[name] != nil
}
