package gateways_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/gateways"
	"hinit/internal/reexec"
	"hinit/profiles"
	"hinit/supervisor"
)

// newMultiplexingHost makes a host whose default gateway runs and is configured to serve all profiles. says lists the served
// profiles in its state file.
func newMultiplexingHost(t *testing.T, says []string, names ...string) (*fakeHost, *gateways.Manager) {
	t.Helper()
	h, m := newHost(t, names...)
	started, err := profiles.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h.writeFile(profiles.Default, "config.yaml", "gateway:\n  multiplex_profiles: true\n")
	h.setService(profiles.Default, supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1})
	keys := map[string]any{"gateway_state": "running", "pid": os.Getpid(), "start_time": started}
	if says != nil {
		keys["served_profiles"] = says
	}
	h.writeState(profiles.Default, keys)
	for _, name := range names {
		h.writeState(name, map[string]any{"desired_state": "running"})
	}
	h.startManager(m)
	m.Observe(stateChange(profiles.Default, supervisor.Starting, supervisor.Up, ""))
	return h, m
}

func (h *fakeHost) checkServedBy(m *gateways.Manager, profile, want string) {
	h.t.Helper()
	h.awaitCondition(profile+" is served by "+want, func() bool { return m.ServedBy(h.Snapshot().Find(profiles.SlotName(profile))) == want })
}

// The state file of the default gateway's run says which profiles it serves. Without the file, hinit follows the configuration.
func TestWhoServesAProfileIsKnown(t *testing.T) {
	h, m := newMultiplexingHost(t, []string{"default", "a"}, "a", "b")
	h.checkServedBy(m, "a", client.ServedByDefault)
	h.checkServedBy(m, "b", client.ServedByNone)
	if err := m.Command(t.Context(), client.VerbStart, "gateway-a"); err == nil || err.Error() != "served by the multiplexer of profile default (`--force` to run it beside)" {
		t.Errorf("a second poller is started: %v", err)
	}
	if h.desiredState("a") != "running" {
		t.Error("the refusal was recorded")
	}
	h.setService("a", supervisor.Service{State: supervisor.Up, PID: os.Getpid()})
	h.checkServedBy(m, "a", client.ServedByBoth)
	m.SetOwnGatewayAllowed("gateway-a")
	if m.CheckMayStart("gateway-a") != nil || !h.hasLogged("a beside: true")() {
		t.Error("an operator's --force is refused")
	}

	h, m = newMultiplexingHost(t, nil, "a")
	h.checkServedBy(m, "a", client.ServedByDefaultExpected)
}

// A false list of served profiles in the default gateway's state file is shown and refuses a start, but ends no other gateway.
// Only the configuration may do that.
func TestALyingDefaultAgentStopsNobody(t *testing.T) {
	h, m := newHost(t, "a")
	started, err := profiles.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h.setService("a", supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 2})
	h.setService(profiles.Default, supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1})
	h.writeState(profiles.Default, map[string]any{"gateway_state": "running", "pid": os.Getpid(), "start_time": started, "served_profiles": []string{"a", "../b", "c/d"}})
	h.startManager(m)
	m.Observe(stateChange(profiles.Default, supervisor.Starting, supervisor.Up, ""))
	h.checkServedBy(m, "a", client.ServedByBoth)
	for _, event := range h.copyCalls().events {
		if strings.HasPrefix(event, "Stop{") || strings.HasPrefix(event, "Restart{") {
			t.Errorf("it made hinit do %s", event)
		}
	}
}

// Two gateways with the same token must cause a warning without the token.
func TestTwoGatewaysWithOneTokenAreLoud(t *testing.T) {
	h, m := newHost(t, "a", "b")
	h.writeFile("a", ".env", "TELEGRAM_BOT_TOKEN=12345:secret\nOPENAI_API_KEY=same\n")
	h.writeFile("b", ".env", "OPENAI_API_KEY=same\nexport TELEGRAM_BOT_TOKEN='12345:secret'\n")
	h.startManager(m)
	for _, name := range []string{"a", "b"} {
		h.setService(name, supervisor.Service{State: supervisor.Up, PID: os.Getpid(), Run: 1})
		m.Observe(stateChange(name, supervisor.Starting, supervisor.Up, ""))
	}
	const want = "it has the same TELEGRAM_BOT_TOKEN as gateway-a"
	h.awaitCondition("status says it", func() bool { return m.StatusRemark(h.Snapshot().Find("gateway-b")) == want })
	h.awaitCondition("the log says it", h.hasLogged("gateway-b: warning: "+want))
	if h.hasLogged("secret")() {
		t.Error("the token is in the log")
	}
	h.setService("a", supervisor.Service{State: supervisor.Down})
	if got := m.StatusRemark(h.Snapshot().Find("gateway-b")); got != "" {
		t.Errorf("one of them is down: %q", got)
	}
	h.writeFile("b", ".env", strings.Repeat("\n", 10_001))
	m.Observe(stateChange("b", supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("the log says why they are not compared", h.hasLogged("gateway-b: cannot tell whether another gateway has its tokens"))
}

// The search for shared tokens must be fast. Comparing each gateway with all others takes 12 ms for 100 profiles, and agents
// choose the tokens.
func TestTheTokensOfManyGatewaysDoNotSlowDownTheStatus(t *testing.T) {
	const gateways, tokens = 60, 16
	names := make([]string, gateways)
	for i := range names {
		names[i] = fmt.Sprintf("p%02d", i)
	}
	h, m := newHost(t, names...)
	for i, name := range names {
		var env strings.Builder
		for token := range tokens {
			fmt.Fprintf(&env, "T%d_BOT_TOKEN=%d:%d\n", token, i/6, token) // six gateways share each token
		}
		h.writeFile(name, ".env", env.String())
	}
	h.startManager(m)
	for _, name := range names {
		h.setService(name, supervisor.Service{State: supervisor.Up, PID: os.Getpid(), Run: 1})
		m.Observe(stateChange(name, supervisor.Starting, supervisor.Up, ""))
	}
	h.awaitStopped(m)
	status := func() (notes []string) {
		for _, s := range h.Snapshot().Services {
			notes = append(notes, m.StatusRemark(s))
		}
		return notes
	}
	for i, note := range status() {
		if strings.Count(note, "_BOT_TOKEN as gateway-p") != 4 || strings.Contains(note, names[i]) {
			t.Errorf("the note of %s: %s", names[i], note)
		}
	}
	if allocs := testing.AllocsPerRun(3, func() { status() }); allocs > 20*gateways {
		t.Errorf("one status makes %.0f allocations", allocs)
	}
}

// The warning about a shared token must stay after a re-execution.
func TestAReexecKeepsTheWarningOfASharedToken(t *testing.T) {
	h, m := newHost(t, "a", "b")
	for _, name := range []string{"a", "b"} {
		h.writeFile(name, ".env", "TELEGRAM_BOT_TOKEN=12345:secret\n")
		h.setService(name, supervisor.Service{State: supervisor.Up, PID: os.Getpid(), Run: 1})
	}
	next := h.reexecManager(m)
	next.ResumeOrders(t.Context())
	h.awaitCondition("status says it", func() bool {
		return next.StatusRemark(h.Snapshot().Find("gateway-b")) == "it has the same TELEGRAM_BOT_TOKEN as gateway-a"
	})
}

func (h *fakeHost) reexecManager(m *gateways.Manager) *gateways.Manager {
	h.t.Helper()
	old := m.HandOver()
	var state gateways.Handover
	data, err := reexec.NewCodec().Encode(&old)
	if err == nil {
		err = reexec.NewCodec().Decode(data, &state)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.forgetEvents()
	next := h.newManager()
	next.Registry.TakeOver(m.Registry.HandOver())
	next.TakeOver(state)
	return next
}

// awaitStopped waits for the queued jobs of a Manager, and returns the gateways that it has stopped.
func (h *fakeHost) awaitStopped(m *gateways.Manager) (stopped []string) {
	h.t.Helper()
	m.WarnIfMissing("gateway-missing", "missing") // the message of this last job shows that all jobs are done
	h.awaitCondition("the last job is done", h.hasLogged("there is no profile \"missing\""))
	<-time.After(50 * time.Millisecond) // another goroutine ends the gateways, so wait a moment
	for _, event := range h.copyCalls().events {
		if strings.HasPrefix(event, "Stop{") {
			stopped = append(stopped, event)
		}
	}
	return stopped
}

// The agent has written multiplex_profiles since the start of the default gateway. hinit reexec must end no gateway: until its
// restart, the default gateway serves only itself.
func TestAReexecEndsNoGatewayForAnEditOfTheAgents(t *testing.T) {
	h, m := newHost(t, "a")
	h.setService(profiles.Default, supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1})
	h.setService("a", supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 2})
	h.startManager(m)
	m.Observe(stateChange(profiles.Default, supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("its run is noted", func() bool { return m.HandOver().TopologyRun == 1 })
	h.writeFile(profiles.Default, "config.yaml", "gateway:\n  multiplex_profiles: true\n")

	next := h.reexecManager(m)
	next.ResumeOrders(t.Context())
	if stopped := h.awaitStopped(next); len(stopped) > 0 {
		t.Errorf("the supervisor got %q", stopped)
	}
	h.checkServedBy(next, "a", "")
	h.setService(profiles.Default, supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 3})
	next.CatchUp() // CatchUp finds the new start of the default gateway
	h.awaitCondition("the restart of the default one ends it", h.hasEvent("Stop{Name:gateway-a}"))
}

// A gateway that an operator forced to run beside the multiplexer must survive hinit reexec, and must start later. A profile
// without a gateway must still be reported.
func TestAReexecKeepsTheGatewayThatAnOperatorForced(t *testing.T) {
	h, m := newMultiplexingHost(t, []string{"default", "p2"}, "p2", "p3")
	h.checkServedBy(m, "p2", client.ServedByDefault)
	m.SetOwnGatewayAllowed("gateway-p2")
	h.setService("p2", supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 2})
	h.checkServedBy(m, "p3", client.ServedByNone)

	next := h.reexecManager(m)
	if !next.HandOver().Wanted["p3"] {
		t.Error("it is forgotten that p3 is wanted")
	}
	next.ResumeOrders(t.Context())
	h.checkServedBy(next, "p3", client.ServedByNone)
	h.setService(profiles.Default, supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 3})
	next.Observe(stateChange(profiles.Default, supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("the new run is noted", func() bool { return next.HandOver().TopologyRun == 3 })
	if stopped := h.awaitStopped(next); len(stopped) > 0 {
		t.Errorf("the supervisor got %q", stopped)
	}
	if err := next.CheckMayStart("gateway-p2"); err != nil {
		t.Errorf("its start is refused: %v", err)
	}
}

// After a crash, a default gateway that would serve all profiles must wait until their own gateways have drained. The agent has
// written multiplex_profiles before the crash.
func TestACrashedDefaultGatewayThatWouldServeAllWaits(t *testing.T) {
	h, m := newHost(t, "a")
	up := supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1}
	h.setService(profiles.Default, up)
	h.setService("a", up)
	h.startManager(m)
	h.writeFile(profiles.Default, "config.yaml", "multiplex_profiles: true\n")
	// A stop must be visible before the Manager asks for it, or the gateway seems to be wanted again.
	stopping := func(profile string) {
		h.setService(profile, supervisor.Service{State: supervisor.Stopping, Want: supervisor.WantDown, PID: os.Getpid(), Run: 1})
	}
	ends := func(profile string, others ...string) {
		t.Helper()
		h.awaitCondition(profile+" is ended", h.hasEvent("Stop{Name:gateway-"+profile+"}"))
		for _, event := range others {
			if h.hasEvent(event)() {
				t.Errorf("%s, and %s has not ended", event, profile)
			}
		}
	}
	stopping(profiles.Default)
	m.Observe(stateChange(profiles.Default, supervisor.Starting, supervisor.Up, ""))
	ends(profiles.Default, "Stop{Name:gateway-a}", "Start{Name:gateway-default}")
	stopping("a")
	h.setService(profiles.Default, supervisor.Service{State: supervisor.Down})
	ends("a", "Start{Name:gateway-default}")
	h.setService("a", supervisor.Service{State: supervisor.Down})
	h.awaitCondition("the default one is started", h.hasEvent("Start{Name:gateway-default}"))
}

// The agent writes multiplex_profiles between the start of the default gateway and its reading of the configuration. The new
// value must count, because otherwise two gateways would serve each profile.
func TestAnEditDuringTheImportsIsSeen(t *testing.T) {
	h, m := newHost(t, "a")
	up := supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1}
	h.setService(profiles.Default, up)
	h.setService("a", up)
	h.startManager(m)
	m.Observe(stateChange(profiles.Default, supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("its run is noted", func() bool { return m.HandOver().TopologyRun == 1 })
	h.writeFile(profiles.Default, "config.yaml", "multiplex_profiles: true\n")
	started, err := profiles.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h.writeState(profiles.Default, map[string]any{"gateway_state": "running", "pid": os.Getpid(), "start_time": started, "served_profiles": []string{"a"}})
	h.awaitCondition("the default one makes way", h.hasEvent("Stop{Name:gateway-default}"))
}

// PID 1 must complete a change of topology even if the command hinit topology was killed. Otherwise no gateway would serve the
// profiles of the ended gateways.
func TestATopologyIsChangedToTheEnd(t *testing.T) {
	h, m := newHost(t, "a")
	h.writeState("a", map[string]any{"desired_state": "running"})
	up := supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1}
	h.setService(profiles.Default, up)
	h.setService("a", up)
	h.startManager(m)
	m.Observe(stateChange("a", supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("it is known that a is wanted", func() bool { return m.HandOver().Wanted["a"] })
	ctx, gone := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := m.ChangeTopology(ctx, profiles.Multiplex, false)
		done <- err
	}()
	h.awaitCondition("a is ended", h.hasEvent("Stop{Name:gateway-a}"))
	gone()
	h.setService("a", supervisor.Service{State: supervisor.Down})
	h.awaitCondition("the default one is restarted", h.hasEvent("Restart{Name:gateway-default}"))
	up.Run = 2
	h.setService(profiles.Default, up)
	if err := <-done; err != nil {
		t.Error(err)
	}

	// A change back to one gateway per profile must start the wanted gateways, even after a failed change.
	out, err := m.ChangeTopology(t.Context(), profiles.PerProfile, true)
	if err != nil || !slices.Contains(out.Steps, "start gateway-a") {
		t.Errorf("%+v: %v", out, err)
	}
}
