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

// host replaces the other parts of PID 1: a supervisor that only records its calls, and slots that consist of their down files.
type host struct {
	t       *testing.T
	home    string
	store   *profiles.Store
	intents *profiles.Intents
	route   boot.RunPlan

	mu sync.Mutex
	hostCalls
	cfg    *config.Config
	snap   *supervisor.Snapshot
	news   chan struct{}
	refuse error // result of MayServe; nil if hinit may serve the volume
}

// hostCalls holds the recorded calls of a host.
type hostCalls struct {
	events           []string // events sent to the supervisor
	supervisorEvents []string
	masked           map[string][]string
	down             map[string]bool // state of the down file, by profile
	gone             []string
	starts           map[string]bool // whether to start a registered profile, by profile
	jobs             int
}

func (h *host) worked() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobs++
}

// copyCalls returns a copy of the recorded calls, because the Manager's goroutine keeps adding calls.
func (h *host) copyCalls() hostCalls {
	h.mu.Lock()
	defer h.mu.Unlock()
	return hostCalls{
		events: slices.Clone(h.events), supervisorEvents: slices.Clone(h.supervisorEvents), masked: maps.Clone(h.masked), down: maps.Clone(h.down),
		gone: slices.Clone(h.gone), starts: maps.Clone(h.starts), jobs: h.jobs,
	}
}

// newHost makes a host whose volume has the named profiles, and its Manager.
func newHost(t *testing.T, names ...string) (*host, *gateways.Manager) {
	t.Helper()
	home, err := os.MkdirTemp("", "hinit-gateways-") //nolint:usetesting // its removal would fail while goroutines of the Manager still write
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.Until(t, "the volume is removed", func() bool { return os.RemoveAll(home) == nil }) })
	h := &host{
		t: t, home: home, cfg: new(config.Config), snap: new(supervisor.Snapshot), news: make(chan struct{}),
		hostCalls: hostCalls{masked: make(map[string][]string), down: make(map[string]bool), starts: make(map[string]bool)},
	}
	h.cfg.Agent.ReadyWhen, h.cfg.Logs.Console = config.ReadyState, "raw"
	h.store = profiles.Open(h.home, nil, "SOUL.md")
	h.intents = profiles.NewIntents(h.store)
	for _, name := range names {
		h.make(name)
		h.service(name, supervisor.Service{State: supervisor.Down})
	}
	return h, h.reconciler()
}

// reconciler makes a Manager over a real registry.
func (h *host) reconciler() *gateways.Manager {
	h.t.Helper()
	own := initlog.New(func() io.Writer { return h }, func(string) bool { return true }, initlog.NewTerminationLog())
	l := logs.New(logs.Options{Config: h.Config, Actor: fsutil.Self(), Secrets: h.store.Secrets, Say: h.Say, Warn: h.Say})
	h.t.Cleanup(func() { _ = l.Close(context.Background()) })
	reg := registry.New(registry.Options{
		Loop: h, Config: h.Config, Store: h.store, Units: units.NewMaker(boot.CallerAsAgent(), h.home, nil, false), Logs: l, Logger: own,
		Health: health.New(health.Options{Config: h.Config, Loop: supervisor.NewLoop(supervisor.Config{}), Store: h.store, Agent: boot.CallerAsAgent(), ServicesOnly: true, Log: l.Get, Warn: h.Say}),
	})
	reg.SetSlotMaker(h, nil)
	return gateways.New(gateways.Options{
		Registry: reg, Logger: own, Config: h.Config, RunPlan: func() *boot.RunPlan { return &h.route }, Store: h.store, Intents: h.intents, Started: time.Now(),
		MayServe: h.MayServe, CorrectOwner: h.Adopt, ReadSecrets: h.ReadSecrets, OnStateWritten: func(string) {}, OnDiskJob: h.worked,
	})
}

// start starts the Manager with the profiles on the volume.
func (h *host) start(m *gateways.Manager) {
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

func (h *host) dir(profile string) string {
	if profile == profiles.Default {
		return h.home
	}
	return filepath.Join(h.home, "profiles", profile)
}

func (h *host) make(profile string) {
	h.write(profile, "SOUL.md", "you are "+profile)
}

func (h *host) write(profile, name, text string) {
	h.t.Helper()
	file := filepath.Join(h.dir(profile), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		h.t.Fatal(err)
	}
}

// state writes a state file as a gateway does.
func (h *host) state(profile string, keys map[string]any) {
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

func (h *host) service(profile string, s supervisor.Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Name, s.Profile, s.Kind = profiles.SlotName(profile), profile, supervisor.KindGateway
	all := slices.DeleteFunc(slices.Clone(h.snap.Services), func(o *supervisor.Service) bool { return o.Name == s.Name })
	h.snap = &supervisor.Snapshot{Services: append(all, &s)}
	close(h.news)
	h.news = make(chan struct{})
}

// setSnapshot replaces the snapshot without notifying the Manager.
func (h *host) setSnapshot(s supervisor.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.snap = &s
}

func (h *host) Do(_ context.Context, e supervisor.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, strings.TrimPrefix(fmt.Sprintf("%T%+v", e, e), "supervisor."))
	return nil
}

func (h *host) ReapNow(context.Context, ...int) error { return nil }

func (h *host) Post(e supervisor.Event) { _ = h.Do(context.Background(), e) }

func (h *host) Snapshot() *supervisor.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.snap
}

func (h *host) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.news
}

func (h *host) Config() *config.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cfg
}

func (h *host) Say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.supervisorEvents = append(h.supervisorEvents, fmt.Sprintf(format, args...))
}

// Write records a line for the container log.
func (h *host) Write(line []byte) (int, error) {
	h.Say("%s", strings.TrimPrefix(strings.TrimSpace(string(line)), "[hinit] "))
	return len(line), nil
}

func (h *host) Foreign(string) bool { return false }

func (h *host) MayServe() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refuse
}

// refuseFrom makes MayServe return an error, as if another container served the volume.
func (h *host) refuseFrom(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = errors.New(why)
}

func (h *host) Adopt(_ context.Context, profile string) { h.Say("adopted %s", profile) }

func (h *host) RegisterSoon(_ context.Context, u *supervisor.Unit, want supervisor.Want) func() error {
	if h.Snapshot().Find(u.Name) == nil {
		h.service(u.Profile, supervisor.Service{State: supervisor.Down})
	}
	h.Say("%s beside: %v", u.Profile, slices.Contains(u.Spec.Argv, "--force"))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starts[u.Profile] = h.starts[u.Profile] || want == supervisor.WantUp
	return func() error { return nil }
}

func (h *host) Ended() <-chan struct{} { return nil }

func (h *host) ReadSecrets(service, profile string) {
	secrets, _, _ := h.store.Secrets(profile)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.masked[service] = secrets
}

func (h *host) Enqueue(s registry.Slot) { h.Say("slot of %s soon, down: %v", s.Name, s.Down) }

func (h *host) Publish(_ context.Context, s registry.Slot) {
	h.Say("slot of %s, down: %v", s.Name, s.Down)
}

func (h *host) SetDown(name string, down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	profile, _ := profiles.SlotProfile(name)
	h.down[profile] = down
}

func (h *host) RemoveSlot(_ context.Context, service string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = append(h.gone, service)
	return nil
}

// until polls until cond holds. The failure contains the name what of the condition.
func (h *host) until(what string, cond func() bool) {
	h.t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(end) {
			s := h.copyCalls()
			h.t.Fatalf("%s: not so after 20 s; events %q; said %q", what, s.events, s.supervisorEvents)
		}
	}
}

func (h *host) hasEvent(event string) func() bool {
	return func() bool { return slices.Contains(h.copyCalls().events, event) }
}

// logged returns a function that reports whether a message with this text was logged.
func (h *host) logged(text string) func() bool {
	return func() bool {
		return slices.ContainsFunc(h.copyCalls().supervisorEvents, func(s string) bool { return strings.Contains(s, text) })
	}
}

func (h *host) desired(profile string) string {
	h.t.Helper()
	s, err := h.store.ReadState(profile)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Desired
}

func (h *host) forgetEvents() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events, h.supervisorEvents = nil, nil
}

// changed returns a record of a gateway's change of state.
func changed(profile string, from, to supervisor.State, reason string) supervisor.Record {
	return supervisor.Record{Service: profiles.SlotName(profile), From: from, To: to, Reason: reason, At: time.Now()}
}
