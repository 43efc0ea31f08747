package gateways_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/health"
	"hinit/internal/container/initlog"
	"hinit/internal/container/logs"
	"hinit/internal/container/units"
	"hinit/internal/fsutil"
	"hinit/internal/gateways"
	"hinit/internal/registry"
	"hinit/internal/testkit"
	"hinit/profiles"
	"hinit/supervisor"
)

// fakeHost replaces the other parts of PID 1: a supervisor that only records its calls, and slots that consist of their down
// files.
type fakeHost struct {
	t       *testing.T
	home    string
	store   *profiles.Store
	intents *profiles.Intents
	runPlan boot.RunPlan

	mu sync.Mutex
	hostCalls
	cfg           *config.Config
	snap          *supervisor.Snapshot
	changed       chan struct{}
	mayServeError error // result of MayServe; nil if hinit may serve the volume
}

// hostCalls holds the recorded calls of a host.
type hostCalls struct {
	events           []string // events sent to the supervisor
	supervisorEvents []string
	maskedSecrets    map[string][]string
	down             map[string]bool // state of the down file, by profile
	removedSlots     []string
	startByProfile   map[string]bool // whether to start a registered profile, by profile
	diskJobs         int
}

func (h *fakeHost) countJob() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.diskJobs++
}

// copyCalls returns a copy of the recorded calls, because the Manager's goroutine keeps adding calls.
func (h *fakeHost) copyCalls() hostCalls {
	h.mu.Lock()
	defer h.mu.Unlock()
	return hostCalls{
		events: slices.Clone(h.events), supervisorEvents: slices.Clone(h.supervisorEvents), maskedSecrets: maps.Clone(h.maskedSecrets), down: maps.Clone(h.down),
		removedSlots: slices.Clone(h.removedSlots), startByProfile: maps.Clone(h.startByProfile), diskJobs: h.diskJobs,
	}
}

// newHost makes a host whose volume has the named profiles, and its Manager.
func newHost(t *testing.T, names ...string) (*fakeHost, *gateways.Manager) {
	t.Helper()
	home, err := os.MkdirTemp("", "hinit-gateways-") //nolint:usetesting // its removal would fail while goroutines of the Manager still write
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.Until(t, "the volume is removed", func() bool { return os.RemoveAll(home) == nil }) })
	h := &fakeHost{
		t: t, home: home, cfg: new(config.Config), snap: new(supervisor.Snapshot), changed: make(chan struct{}),
		hostCalls: hostCalls{maskedSecrets: make(map[string][]string), down: make(map[string]bool), startByProfile: make(map[string]bool)},
	}
	h.cfg.Agent.ReadyWhen, h.cfg.Logs.Console = config.ReadyByStateFile, "raw"
	h.store = profiles.Open(h.home, nil, "SOUL.md")
	h.intents = profiles.NewIntents(h.store)
	for _, name := range names {
		h.makeProfile(name)
		h.setService(name, supervisor.Service{State: supervisor.Down})
	}
	return h, h.newManager()
}

// newManager makes a Manager over a real registry.
func (h *fakeHost) newManager() *gateways.Manager {
	h.t.Helper()
	own := initlog.New(func() io.Writer { return h }, func(string) bool { return true }, initlog.NewTerminationLog())
	l := logs.New(logs.Options{Config: h.Config, Actor: fsutil.ProcessActor(), ReadSecrets: h.store.Secrets, Say: h.Say, Warn: h.Say})
	h.t.Cleanup(func() { _ = l.Close(context.Background()) })
	reg := registry.New(registry.Options{
		Loop: h, Config: h.Config, Store: h.store, Units: units.NewMaker(boot.CallerAsAgent(), h.home, nil, false), Logs: l, Logger: own,
		Health: health.New(health.Options{Config: h.Config, Loop: supervisor.NewLoop(supervisor.Config{}), Store: h.store, Agent: boot.CallerAsAgent(), ServicesOnly: true, ServiceLog: l.Get, Warn: h.Say}),
	})
	reg.SetSlotMaker(h, nil)
	return gateways.New(gateways.Options{
		Registry: reg, Logger: own, Config: h.Config, RunPlan: func() *boot.RunPlan { return &h.runPlan }, Store: h.store, Intents: h.intents, Started: time.Now(),
		MayServe: h.MayServe, CorrectOwner: h.Adopt, ReadSecrets: h.ReadSecrets, OnStateWritten: func(string) {}, OnDiskJob: h.countJob,
	})
}

// startManager starts the Manager with the profiles on the volume.
func (h *fakeHost) startManager(m *gateways.Manager) {
	h.t.Helper()
	found, _, err := h.store.Discover()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range found {
		m.Registry.AddProfile(p.Name)
	}
	m.Start(h.t.Context(), found)
}

func (h *fakeHost) dir(profile string) string {
	if profile == profiles.Default {
		return h.home
	}
	return filepath.Join(h.home, "profiles", profile)
}

func (h *fakeHost) makeProfile(profile string) {
	h.writeFile(profile, "SOUL.md", "you are "+profile)
}

func (h *fakeHost) writeFile(profile, name, text string) {
	h.t.Helper()
	file := filepath.Join(h.dir(profile), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		h.t.Fatal(err)
	}
}

// writeState writes a state file as a gateway does.
func (h *fakeHost) writeState(profile string, keys map[string]any) {
	h.t.Helper()
	text, err := json.Marshal(keys)
	if err != nil {
		h.t.Fatal(err)
	}
	temp := filepath.Join(h.dir(profile), ".state")
	if err := errors.Join(os.WriteFile(temp, text, 0o600), os.Rename(temp, filepath.Join(h.dir(profile), profiles.StateFile))); err != nil {
		h.t.Fatal(err)
	}
}

func (h *fakeHost) setService(profile string, s supervisor.Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Name, s.Profile, s.Kind = profiles.SlotName(profile), profile, supervisor.KindGateway
	all := slices.DeleteFunc(slices.Clone(h.snap.Services), func(o *supervisor.Service) bool { return o.Name == s.Name })
	h.snap = &supervisor.Snapshot{Services: append(all, &s)}
	close(h.changed)
	h.changed = make(chan struct{})
}

// setSnapshot replaces the snapshot without notifying the Manager.
func (h *fakeHost) setSnapshot(s supervisor.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.snap = &s
}

func (h *fakeHost) Do(_ context.Context, e supervisor.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, strings.TrimPrefix(fmt.Sprintf("%T%+v", e, e), "supervisor."))
	return nil
}

func (h *fakeHost) ReapNow(context.Context, ...int) error { return nil }

func (h *fakeHost) Post(e supervisor.Event) { _ = h.Do(context.Background(), e) }

func (h *fakeHost) Snapshot() *supervisor.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.snap
}

func (h *fakeHost) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *fakeHost) Config() *config.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cfg
}

func (h *fakeHost) Say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.supervisorEvents = append(h.supervisorEvents, fmt.Sprintf(format, args...))
}

// Write records a line for the container log.
func (h *fakeHost) Write(line []byte) (int, error) {
	h.Say("%s", strings.TrimPrefix(strings.TrimSpace(string(line)), "[hinit] "))
	return len(line), nil
}

func (h *fakeHost) IsForeign(string) bool { return false }

func (h *fakeHost) MayServe() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mayServeError
}

// refuseServing makes MayServe return an error, as if another container served the volume.
func (h *fakeHost) refuseServing(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mayServeError = errors.New(why)
}

func (h *fakeHost) Adopt(_ context.Context, profile string) { h.Say("adopted %s", profile) }

func (h *fakeHost) RegisterSoon(_ context.Context, u *supervisor.Unit, want supervisor.Want) func() error {
	if h.Snapshot().Find(u.Name) == nil {
		h.setService(u.Profile, supervisor.Service{State: supervisor.Down})
	}
	h.Say("%s beside: %v", u.Profile, slices.Contains(u.Spec.Argv, "--force"))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.startByProfile[u.Profile] = h.startByProfile[u.Profile] || want == supervisor.WantUp
	return func() error { return nil }
}

func (h *fakeHost) Ended() <-chan struct{} { return nil }

func (h *fakeHost) ReadSecrets(service, profile string) {
	secrets, _, _ := h.store.Secrets(profile)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.maskedSecrets[service] = secrets
}

func (h *fakeHost) Enqueue(s registry.Slot) { h.Say("slot of %s soon, down: %v", s.Name, s.Down) }

func (h *fakeHost) Publish(_ context.Context, s registry.Slot) {
	h.Say("slot of %s, down: %v", s.Name, s.Down)
}

func (h *fakeHost) SetDown(name string, down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	profile, _ := profiles.SlotProfile(name)
	h.down[profile] = down
}

func (h *fakeHost) RemoveSlot(_ context.Context, service string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removedSlots = append(h.removedSlots, service)
	return nil
}

// awaitCondition polls until cond holds. The failure contains the name what of the condition.
func (h *fakeHost) awaitCondition(what string, cond func() bool) {
	h.t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(end) {
			s := h.copyCalls()
			h.t.Fatalf("%s: not so after 20 s; events %q; said %q", what, s.events, s.supervisorEvents)
		}
	}
}

func (h *fakeHost) hasEvent(event string) func() bool {
	return func() bool { return slices.Contains(h.copyCalls().events, event) }
}

// hasLogged returns a function that reports whether a message with this text was logged.
func (h *fakeHost) hasLogged(text string) func() bool {
	return func() bool {
		return slices.ContainsFunc(h.copyCalls().supervisorEvents, func(s string) bool { return strings.Contains(s, text) })
	}
}

func (h *fakeHost) desiredState(profile string) string {
	h.t.Helper()
	s, err := h.store.ReadState(profile)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Desired
}

func (h *fakeHost) forgetEvents() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events, h.supervisorEvents = nil, nil
}

// stateChange returns a record of a gateway's change of state.
func stateChange(profile string, from, to supervisor.State, reason string) supervisor.Record {
	return supervisor.Record{Service: profiles.SlotName(profile), From: from, To: to, Reason: reason, At: time.Now()}
}
