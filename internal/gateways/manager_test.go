package gateways_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/container/bootstatus"
	"hinit/internal/gateways"
	"hinit/internal/gateways/orders"
	"hinit/profiles"
	"hinit/supervisor"
)

// desired_state must be on the disk when the command gets its answer. A stop of the container right after the answer must not
// lose the command.
func TestACommandIsOnTheVolumeBeforeItIsAnswered(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	for _, tt := range []struct {
		verb        client.Verb
		want, event string
		down        bool
	}{
		{client.VerbStart, profiles.Running, "Start{Name:gateway-coder}", false},
		{client.VerbStop, profiles.Stopped, "Stop{Name:gateway-coder}", true},
		{client.VerbRestart, profiles.Running, "Restart{Name:gateway-coder}", false},
		{orders.StayDown, profiles.Stopped, "StayDown{Name:gateway-coder}", true},
	} {
		h.forgetEvents()
		if err := m.Command(t.Context(), tt.verb, "gateway-coder"); err != nil {
			t.Fatalf("%s: %v", tt.verb, err)
		}
		if got := h.desiredState("coder"); got != tt.want || !slices.Equal(h.copyCalls().events, []string{tt.event}) || h.copyCalls().down["coder"] != tt.down {
			t.Errorf("%s: desired_state is %q, the supervisor got %q, the down file is there: %v", tt.verb, got, h.copyCalls().events, h.copyCalls().down["coder"])
		}
		if adopted := slices.Contains(h.copyCalls().supervisorEvents, "adopted coder"); adopted == tt.down {
			t.Errorf("%s: its files were given to the agent's user: %v", tt.verb, adopted)
		}
	}
	// the queue is removed shortly after the answer
	for end := time.Now().Add(time.Minute); !m.IsIdle(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there are orders left")
		}
	}
}

// While another container serves the volume, a command must fail, write nothing and start nothing.
func TestWithoutTheLeaseNothingIsWrittenOrStarted(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	h.refuseServing("another hinit has the lease")
	if err := m.Command(t.Context(), client.VerbStart, "gateway-coder"); !errors.Is(err, h.MayServe()) {
		t.Errorf("got %v", err)
	}
	if got := h.desiredState("coder"); got != "" || len(h.copyCalls().events) > 0 {
		t.Errorf("desired_state is %q, the supervisor got %q", got, h.copyCalls().events)
	}
}

// A command for a service that is no gateway goes straight to the supervisor and needs no volume.
func TestAServiceHasNoIntent(t *testing.T) {
	h, m := newHost(t)
	h.setSnapshot(supervisor.Snapshot{Services: []*supervisor.Service{{Name: "dashboard", Kind: supervisor.KindService}}})
	if err := m.Command(t.Context(), client.VerbStop, "dashboard"); err != nil || !h.hasEvent("Stop{Name:dashboard}")() {
		t.Errorf("got %v, the supervisor got %q", err, h.copyCalls().events)
	}
}

// desired_state must be written again after the gateway has rewritten its state file from an older copy.
func TestAnIntentThatTheGatewayOverwritesComesBack(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	if err := m.Command(t.Context(), client.VerbStop, "gateway-coder"); err != nil {
		t.Fatal(err)
	}
	h.writeState("coder", map[string]any{"gateway_state": "stopped"})
	h.awaitCondition("desired_state is back", h.hasLogged("is back"))
	if got := h.desiredState("coder"); got != profiles.Stopped {
		t.Errorf("desired_state is %q", got)
	}
}

// Only a state file of the present run makes a gateway ready, not a state file of another process.
func TestReadinessIsReadOffTheStateFile(t *testing.T) {
	started, err := profiles.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h, m := newHost(t, "coder")
	h.startManager(m)
	h.setService("coder", supervisor.Service{State: supervisor.Up, PID: os.Getpid(), Run: 7})
	for _, tt := range []struct {
		keys map[string]any
		want string
	}{
		{map[string]any{"gateway_state": "running", "pid": 1 << 30}, "Ready{Name:gateway-coder Run:7 Ready:false Text:gateway_state.json says nothing of this run yet}"},
		{map[string]any{"gateway_state": "starting", "pid": os.Getpid(), "start_time": started}, "Ready{Name:gateway-coder Run:7 Ready:false Text:gateway_state.json says starting}"},
		{map[string]any{"gateway_state": "running", "pid": os.Getpid()}, "Ready{Name:gateway-coder Run:7 Ready:false Text:gateway_state.json says nothing of this run yet}"},
		{map[string]any{"gateway_state": "running", "pid": os.Getpid(), "start_time": started}, "Ready{Name:gateway-coder Run:7 Ready:true Text:}"},
	} {
		h.forgetEvents()
		h.writeState("coder", tt.keys)
		h.awaitCondition(tt.want, h.hasEvent(tt.want))
	}
}

// A state file with another start time must not count. After docker stop and docker start, the gateway has the same PID again.
func TestAGatewayIsNotReadyByTheFileOfTheContainersRunBefore(t *testing.T) {
	h, m := newHost(t, "coder")
	h.writeState("coder", map[string]any{"gateway_state": "running", "pid": os.Getpid(), "start_time": 1})
	h.startManager(m)
	h.setService("coder", supervisor.Service{State: supervisor.Up, PID: os.Getpid(), Run: 1})
	m.Observe(stateChange("coder", supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("it is looked at", h.hasEvent("Ready{Name:gateway-coder Run:1 Ready:false Text:gateway_state.json says nothing of this run yet}"))
}

// A new profile must be registered. A removed profile must be removed with its slot and its record in the Manager.
func TestAProfileThatComesAndGoes(t *testing.T) {
	h, m := newHost(t)
	h.startManager(m)
	h.makeProfile("coder")
	if err := m.FindProfile(t.Context(), "gateway-coder"); err != nil {
		t.Fatal(err)
	}
	if start, registered := h.copyCalls().startByProfile["coder"]; !registered || start || !m.Registry.ProfileExists("coder") {
		t.Fatalf("registered %v, started %v, exists %v", registered, start, m.Registry.ProfileExists("coder"))
	}
	m.Observe(stateChange("coder", supervisor.Down, supervisor.Up, ""))
	h.awaitCondition("its inputs are known", func() bool { return m.HandOver().Inputs["coder"] != "" })
	if err := os.RemoveAll(h.dir("coder")); err != nil {
		t.Fatal(err)
	}
	if err := m.Rescan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !h.hasEvent("Remove{Name:gateway-coder}")() || !slices.Contains(h.copyCalls().removedSlots, "gateway-coder") || m.Registry.ProfileExists("coder") {
		t.Errorf("events %q, withdrawn %q, exists %v", h.copyCalls().events, h.copyCalls().removedSlots, m.Registry.ProfileExists("coder"))
	}
	// A job from before the removal stores another record of the profile.
	h.setSnapshot(supervisor.Snapshot{})
	m.Observe(stateChange("coder", supervisor.Down, supervisor.Up, ""))
	m.Observe(supervisor.Record{Service: "gateway-coder", Dropped: true})
	m.WarnIfMissing("gateway-coder", "coder") // the message of this last job shows that all earlier jobs are done
	h.awaitCondition("the last job is done", h.hasLogged("there is no profile"))
	if s := m.HandOver(); len(s.Inputs) > 0 || m.Registry.ProfileExists("coder") {
		t.Errorf("it is remembered: %+v", s)
	}
}

// A waiting job must not restore the record of a removed profile. hinit reads a missing state file again after two seconds, and
// an agent can make and remove any number of profiles.
func TestALateJobDoesNotBringARemovedProfileBack(t *testing.T) {
	h, m := newHost(t)
	h.startManager(m)
	m.ReadStateFile("coder")
	m.WarnIfMissing("gateway-coder", "coder") // the message of this job shows that the previous job is done
	h.awaitCondition("the jobs are done", h.hasLogged("there is no profile"))
	if n := m.RecordCount(); n > 0 {
		t.Errorf("%d profiles are remembered", n)
	}
}

// A renamed profile must start under its new name after the end of its old gateway. A copied profile must not start then.
func TestARenamedProfileRunsOn(t *testing.T) {
	h, m := newHost(t, "old")
	if _, err := h.store.HomeID("old"); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the file system does not tell when a directory was made")
	}
	h.startManager(m)
	h.setService("old", supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1})
	m.Observe(stateChange("old", supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("its home is known", h.hasEvent("Ready{Name:gateway-old Run:1 Ready:false Text:there is no gateway_state.json yet; for an agent that never writes it there, set agent.ready to up in hinit.yaml}"))
	h.makeProfile("copy")
	if err := os.Rename(h.dir("old"), h.dir("new")); err != nil {
		t.Fatal(err)
	}
	if err := m.Rescan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.hasEvent("Start{Name:gateway-new}")() {
		t.Error("it was started although the old one runs in the same home")
	}
	h.setService("old", supervisor.Service{State: supervisor.Down})
	h.awaitCondition("the new one is started", h.hasEvent("Start{Name:gateway-new}"))
	if h.hasEvent("Start{Name:gateway-copy}")() {
		t.Error("the copy was started")
	}
}

// A profile whose state could be read only after the boot must start if its gateway ran at the end of the last container.
func TestAProfileThatAnswersLateIsStarted(t *testing.T) {
	h, m := newHost(t)
	h.startManager(m)
	m.StoreUnread(profiles.Plan{SilentHomes: []string{"ran", "stopped", "younger"}})
	for name, state := range map[string]string{"ran": profiles.Running, "stopped": profiles.Stopped, "younger": profiles.Running, "other": profiles.Running} {
		at := time.Now().Add(-time.Hour)
		if name == "younger" {
			at = time.Now().Add(time.Hour)
		}
		if err := os.MkdirAll(h.dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		h.writeState(name, map[string]any{"desired_state": state})
		if err := os.Chtimes(filepath.Join(h.dir(name), profiles.StateFile), at, at); err != nil {
			t.Fatal(err)
		}
		h.makeProfile(name)
	}
	if err := m.Rescan(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"ran": true, "stopped": false, "younger": false, "other": false}
	if fmt.Sprint(h.copyCalls().startByProfile) != fmt.Sprint(want) {
		t.Errorf("started are %v, not %v", h.copyCalls().startByProfile, want)
	}
}

// The warning about an order that can't be recorded must not repeat itself. It must not be "cannot record that the gateway is
// wanted: cannot be recorded, so …".
func TestTheBootReportsAnUnrecordedOrderOnce(t *testing.T) {
	h, m := newHost(t)
	h.runPlan = boot.RunPlan{Supervise: true, Profile: profiles.Default}
	writes := 0
	h.intents.CheckWrite = func() error { // the first call precedes the write of the intent, so it succeeds
		writes++
		return map[bool]error{true: errors.New("no space left on device")}[writes > 1]
	}
	if _, err := m.RegisterProfiles(t.Context(), gateways.BootInput{Status: bootstatus.New(), Logger: m.Logger, SlotsMade: func() <-chan struct{} { return nil }}); err != nil {
		t.Fatal(err)
	}
	const want = `warning: the order of the CMD to run the gateway of "default" cannot be recorded, so a restart of the container may undo it: no space left on device`
	if !slices.Contains(h.copyCalls().supervisorEvents, want) {
		t.Errorf("the log has %q", h.copyCalls().supervisorEvents)
	}
}
