package personality

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/s6/scandir"
	"hinit/supervisor"
)

// host is a PID 1 that records its calls. Every registered service is up.
type host struct {
	mu          sync.Mutex
	services    []*supervisor.Service
	calls       []string
	commandGate chan struct{}
}

func (h *host) recordCall(format string, args ...any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, fmt.Sprintf(format, args...))
	return nil
}

func (h *host) Register(_ context.Context, u supervisor.Unit, _ supervisor.Want) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.services = append(h.services, &supervisor.Service{Name: u.Name, State: supervisor.Up, Want: supervisor.WantUp, PID: 7, Started: true})
	return nil
}

func (h *host) Do(_ context.Context, e supervisor.Event) error { return h.recordCall("%T", e) }

func (h *host) Snapshot() *supervisor.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &supervisor.Snapshot{Services: slices.Clone(h.services)}
}

func (h *host) Command(ctx context.Context, verb client.Verb, name string) error {
	if h.commandGate != nil {
		select {
		case <-h.commandGate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h.recordCall("%s %s", verb, name)
}

func (h *host) CheckMayStart(string) error { return nil }

func (h *host) Say(format string, args ...any)      { _ = h.recordCall("say "+format, args...) }
func (h *host) Warn(format string, args ...any)     { _ = h.recordCall("warn "+format, args...) }
func (h *host) WhyReserved(string) string           { return "" }
func (h *host) CheckCapacity() error                { return nil }
func (h *host) SlotRemoved(context.Context, string) {}

func (h *host) ForeignSpec(bool) proc.Spec { return proc.Spec{Env: os.Environ()} }

func (h *host) SlotMade(context.Context, string, bool, map[string]string) error { return nil }

func (h *host) takeCalls() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := strings.Join(h.calls, ", ")
	h.calls = nil
	return asked
}

// openTestS6 opens an S6 with a gateway, the slot of the container's CMD and a service of the agent.
func openTestS6(t *testing.T, h *host) (s *S6, scan string) {
	t.Helper()
	dir := t.TempDir()
	scan = filepath.Join(dir, "run/service")
	ctx, cancel := context.WithCancel(t.Context())
	scanner, err := scandir.Open(ctx, h, scandir.Layout{ScanDir: scan, BaseDir: filepath.Join(dir, "run/s6"), Agent: fsutil.ProcessActor()})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); <-scanner.Ended() })
	s = &S6{scanner, h, nil, time.Unix(1000, 0)}
	s.Publish(ctx, registry.Slot{Name: "gateway-coder", Argv: []string{"true"}})
	if err := errors.Join(
		h.Register(ctx, supervisor.Unit{Name: "gateway-coder"}, supervisor.WantUp),
		scanner.PublishFixed(ctx, registry.MainSlotName, scandir.Files{Run: "#!/bin/sh\n"}),
		os.Mkdir(filepath.Join(scan, "foreign"), 0o755),
		os.WriteFile(filepath.Join(scan, "foreign/run"), []byte("#!/bin/sh\n"), 0o755), //nolint:gosec // the file is a program
		s.ControlScanner(ctx, "a"),
	); err != nil {
		t.Fatal(err)
	}
	return s, scan
}

func TestCommandsReachWhoDoesThem(t *testing.T) {
	h := &host{}
	s, scan := openTestS6(t, h)
	h.takeCalls()
	for _, tt := range []struct{ slot, letters, want string }{
		{"gateway-coder", "d", "stop gateway-coder"},
		{"gateway-coder", "u", "start gateway-coder"},
		{"gateway-coder", "Q", "supervisor.StayDown, unwant gateway-coder"},
		{"gateway-coder", "t", "supervisor.Restart"},
		{"gateway-coder", "x", ""},
		{"foreign", "d", "supervisor.Stop"},
		{"foreign", "u", "supervisor.Start"},
		{"foreign", "t", "supervisor.SignalMain"},
		{"foreign", "oOpch", "supervisor.RunOnce, supervisor.StayDown, supervisor.Pause, supervisor.Continue, supervisor.SignalMain"},
		{registry.MainSlotName, "d", ""},
	} {
		if err := s.SlotControl(t.Context(), filepath.Join(scan, tt.slot), tt.letters); err != nil {
			t.Errorf("%s %s: %v", tt.letters, tt.slot, err)
		}
		if got := h.takeCalls(); got != tt.want {
			t.Errorf("%s %s: asked for %q, want %q", tt.letters, tt.slot, got, tt.want)
		}
	}
	if err := s.SlotControl(t.Context(), filepath.Join(scan, "foreign"), "D"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(scan, "foreign/down")); err != nil {
		t.Errorf("D makes no down file: %v", err)
	}
	unknown := &client.Error{}
	if err := s.SlotControl(t.Context(), filepath.Join(scan, "nobody"), "d"); !errors.As(err, &unknown) || unknown.Kind != client.KindUnknown {
		t.Errorf("a directory that is no slot: %v", err)
	}
	if _ = h.takeCalls(); s.ControlScanner(t.Context(), "t") != nil || h.takeCalls() != "supervisor.Shutdown" {
		t.Error("s6-svscanctl -t does not end the container")
	}
}

func TestACommandIsTakenInAlthoughTheVolumeDoesNotAnswer(t *testing.T) {
	h := &host{commandGate: make(chan struct{})}
	s, scan := openTestS6(t, h)
	h.takeCalls()
	if err := s.SlotControl(t.Context(), filepath.Join(scan, "gateway-coder"), "d"); err != nil {
		t.Errorf("the caller was told %v", err)
	}
	if got := h.takeCalls(); !strings.HasPrefix(got, "say gateway-coder: ") {
		t.Errorf("the log has %q", got)
	}
}

// If a slot can't be made yet, as on a full disk, hinit must say so once and make the slot later. It must not add a lasting
// warning to the status.
func TestASlotThatIsMadeLaterWasWarnedAboutForEver(t *testing.T) {
	h := &host{}
	s, scan := openTestS6(t, h)
	inTheWay := filepath.Join(scan, "dashboard")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.takeCalls()
	s.Publish(t.Context(), registry.Slot{Name: "dashboard", Argv: []string{"true"}})
	if output := h.takeCalls(); !strings.Contains(output, "say cannot make the slot of dashboard") || strings.Contains(output, "warn") {
		t.Errorf("about a slot that can't be made yet hinit says %q", output)
	}
	if err := errors.Join(os.Remove(inTheWay), s.ControlScanner(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(inTheWay, "run")); err != nil {
		t.Errorf("the slot is not made later: %v", err)
	}
}

func TestSlotsAreWhatTheSupervisorHas(t *testing.T) {
	h := &host{}
	s, scan := openTestS6(t, h)
	var names []string
	for _, slot := range s.Slots(t.Context()) {
		names = append(names, slot.Name)
	}
	if got := strings.Join(names, " "); got != "foreign gateway-coder "+registry.MainSlotName {
		t.Errorf("slots %q", got)
	}
	if slot, err := s.Slot(t.Context(), filepath.Join(scan, registry.MainSlotName)); err != nil || !slot.Up || slot.PID != os.Getpid() || slot.Since.Unix() != 1000 {
		t.Errorf("the container's slot: %+v, %v", slot, err)
	}
	if slot, err := s.Slot(t.Context(), filepath.Join(scan, "gateway-coder/log")); err != nil || slot.Name != "gateway-coder/log" {
		t.Errorf("the logger of a service whose log hinit writes: %+v, %v", slot, err)
	}
}

func TestASlotLooksAsTheServiceDoes(t *testing.T) {
	at := time.Date(2026, 11, 21, 1, 0, 0, 5, time.UTC)
	for name, tt := range map[string]struct {
		v    supervisor.Service
		want client.Slot
	}{
		"up": {
			supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: 9, Run: 4, Ready: true, ReadySince: at, Started: true, ProcessSince: at},
			client.Slot{Up: true, WantUp: true, PID: 9, PGID: 9, RunNumber: 4, EverStarted: true, ExitCode: -1, Since: at},
		},
		"up and ready": {
			supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: 9, Ready: true, ReportsReadiness: true, ReadySince: at, Started: true, ProcessSince: at},
			client.Slot{Up: true, WantUp: true, PID: 9, PGID: 9, Ready: true, Notifies: true, EverStarted: true, ExitCode: -1, Since: at, ReadySince: at},
		},
		"told to end": {
			supervisor.Service{State: supervisor.Stopping, Want: supervisor.WantDown, PID: 9, Started: true, ProcessSince: at, Paused: true},
			client.Slot{Up: true, PID: 9, PGID: 9, EverStarted: true, ExitCode: -1, Paused: true, Since: at},
		},
		"finishing": {
			supervisor.Service{State: supervisor.Finishing, Want: supervisor.WantUp, Started: true, ProcessSince: at, LastExit: &supervisor.Exit{Code: 1}},
			client.Slot{WantUp: true, Finishing: true, EverStarted: true, ExitCode: 1, Since: at},
		},
		"parked": {
			supervisor.Service{State: supervisor.Parked, Want: supervisor.WantUp, StaysDown: true, Started: true, ProcessSince: at, ReadySince: at, LastExit: &supervisor.Exit{Code: 78}},
			client.Slot{PermanentFailure: true, EverStarted: true, ExitCode: 78, Since: at, ReadySince: at},
		},
		"killed": {
			supervisor.Service{State: supervisor.Backoff, Want: supervisor.WantUp, Started: true, ProcessSince: at, ReadySince: at, LastExit: &supervisor.Exit{Code: -1, Signal: 9}},
			client.Slot{WantUp: true, EverStarted: true, ExitCode: -1, Signal: 9, Since: at, ReadySince: at},
		},
		"never started": {
			supervisor.Service{State: supervisor.Down, Want: supervisor.WantDown, ProcessSince: at, ReadySince: at},
			client.Slot{ExitCode: -1, Since: at, ReadySince: at},
		},
	} {
		tt.want.Dir = "/run/service/x"
		if got := clientSlotOfService(&tt.v, "/run/service/x", false); got != tt.want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, tt.want)
		}
	}
}
