package gateways_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/gateways"
	"hinit/internal/gateways/orders"
	"hinit/internal/registry"
	"hinit/internal/testkit"
	"hinit/profiles"
	"hinit/supervisor"
)

// A parked gateway must start when its configuration changes. After a change during a failed start, it must start only once for
// the same content.
func TestAParkedGatewayStartsWhenItsInputsChange(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	file := filepath.Join(h.dir("coder"), "config.yaml")
	put := func(text string, at time.Time) {
		h.writeFile("coder", "config.yaml", text)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	runs := 0
	// run starts the gateway and parks it. It returns when the Manager has recorded the inputs.
	run := func(begun time.Time) profiles.InputHash {
		starting := stateChange("coder", supervisor.Down, supervisor.Starting, "")
		starting.At = begun
		h.setService("coder", supervisor.Service{State: supervisor.Up, PID: os.Getpid()})
		m.Observe(starting)
		m.Observe(stateChange("coder", supervisor.Starting, supervisor.Up, ""))
		runs++
		missing := fmt.Sprint("missing", runs)
		m.WarnIfMissing("gateway-missing", missing) // the message of this last job shows that the jobs of the gateway are done
		h.awaitCondition("the jobs are done", h.hasLogged("there is no profile \""+missing+"\""))
		h.forgetEvents()
		return m.HandOver().Inputs["coder"]
	}
	content := func() profiles.InputHash {
		hash, err := h.store.InputsHash("coder")
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	begun := time.Now()
	put("wrong", begun.Add(-time.Minute))
	if err := os.Chtimes(filepath.Join(h.dir("coder"), "SOUL.md"), begun.Add(-time.Minute), begun.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if run(begun) != content() {
		t.Error("what was written before the start is not what the gateway was started with")
	}
	put("mended", begun.Add(time.Minute))
	if run(begun) == content() {
		t.Error("what was written during the start counts as what the gateway was started with")
	}
	if run(begun) != content() {
		t.Error("the same content starts the gateway for ever")
	}
	put("wrong again", begun.Add(time.Minute))
	if run(begun) == content() {
		t.Error("another content that was written during a start is not noticed")
	}
	if run(begun) != content() {
		t.Error("the content is still doubted")
	}
	h.setService("coder", supervisor.Service{State: supervisor.Parked})
	m.Observe(stateChange("coder", supervisor.Up, supervisor.Parked, ""))
	put("right", time.Now())
	h.awaitCondition("it is started", h.hasEvent("InputsChanged{Name:gateway-coder}"))
}

// After reading the files of profiles, PID 1 must collect garbage. Otherwise it would keep the memory for the files of 500
// profiles after a boot on a slow disk.
func TestReadingAProfileIsWorkThatLeavesGarbage(t *testing.T) {
	h, m := newHost(t, "a")
	h.startManager(m)
	m.Observe(supervisor.Record{Service: "gateway-a", From: supervisor.Starting, To: supervisor.Up})
	testkit.Until(t, "the work is reported", func() bool { return h.copyCalls().diskJobs > 0 })
}

// The secrets to mask must be read again at each start of a gateway, and after each change of its profile's .env.
func TestSecretsAreReadAgain(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	h.writeFile("coder", ".env", "API_KEY=sk-fedcba9876543210\n")
	m.Observe(stateChange("coder", supervisor.Down, supervisor.Starting, ""))
	h.awaitCondition("the new secret is masked", func() bool {
		return slices.Equal(h.copyCalls().maskedSecrets["gateway-coder"], []string{"sk-fedcba9876543210"})
	})
}

// The Manager of a re-executed hinit must get all state of the old Manager.
func TestWhatIsKnownIsHandedOver(t *testing.T) {
	h, m := newHost(t, "coder")
	m.Registry.AddProfile("coder")
	m.Registry.SetDown("coder", true, false)
	m.Registry.SetDown("other", false, false)
	h.startManager(m)
	m.Observe(stateChange("coder", supervisor.Starting, supervisor.Up, ""))
	h.awaitCondition("its inputs are known", func() bool { return m.HandOver().Inputs["coder"] != "" })
	old, slots := m.HandOver(), m.Registry.HandOver()
	next := h.newManager()
	next.Registry.TakeOver(slots)
	next.TakeOver(old)
	if got := next.HandOver(); !reflect.DeepEqual(got, old) {
		t.Errorf("handed over is %+v, not %+v", got, old)
	}
	if got := next.Registry.HandOver(); !reflect.DeepEqual(got, slots) || !got.Present["coder"] || !got.Marked["coder"] {
		t.Errorf("handed over is %+v, not %+v", got, slots)
	}
	next.TakeOver(gateways.Handover{Orders: []orders.UnfinishedOrder{{Verb: client.VerbStop, Service: "gateway-coder", Profile: "coder"}}})
	next.ResumeOrders(t.Context())
	h.awaitCondition("the order is carried out", h.hasEvent("Stop{Name:gateway-coder}"))
}

// After DropRecords the Manager must have no records of profiles, because another container may have changed the volume.
func TestAManagerThatIsResetKnowsNothing(t *testing.T) {
	h, m := newHost(t, "coder")
	m.Registry.AddProfile("coder")
	m.Registry.SetDown("coder", true, false)
	m.StoreUnread(profiles.Plan{ListingSilent: true})
	m.WarnIfMissing("gateway-missing", "missing")
	if err := recordIntent(h.intents, "coder", profiles.Running); err != nil {
		t.Fatal(err)
	}
	m.DropRecords()
	none := registry.Handover{Present: map[string]bool{}, Marked: map[string]bool{}, OwnGateways: map[string]bool{}}
	if s := m.HandOver(); len(s.Inputs) > 0 || !reflect.DeepEqual(m.Registry.HandOver(), none) {
		t.Errorf("it knows %+v", s)
	}
	if _, asked := h.intents.LastOrder("coder"); asked {
		t.Error("it knows what was wanted")
	}
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(h.dir("coder"), profiles.StateFile), at, at); err != nil {
		t.Fatal(err)
	}
	m.Start(t.Context(), nil)
	if err := m.Rescan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.copyCalls().startByProfile["coder"] {
		t.Error("what ran at the first boot is started")
	}
	if h.hasLogged("missing")() {
		t.Error("a job is left")
	}
}

// Stop must end the watching of the volume. The kernel needs time for that, and the end of the container would wait.
func TestTheVolumeIsNotWatchedToTheEnd(t *testing.T) {
	for _, early := range []bool{false, true} {
		h, m := newHost(t)
		if early {
			m.Stop()
		}
		h.startManager(m)
		if !early {
			m.Stop()
		}
		h.awaitCondition("it is not watched any more", func() bool { return m.Rescan(t.Context()) != nil })
	}
}

// During the shutdown the Manager must still restore desired_state, and do nothing else. A gateway may overwrite it with its
// last write.
func TestAtTheEndOnlyIntentsAreLookedAfter(t *testing.T) {
	h, m := newHost(t, "coder", "other")
	h.startManager(m)
	m.Stop()
	h.awaitCondition("the volume is not watched any more", func() bool { return m.Rescan(t.Context()) != nil })
	if err := recordIntent(h.intents, "coder", profiles.Running); err != nil {
		t.Fatal(err)
	}
	h.writeState("coder", map[string]any{"gateway_state": "stopped"})
	h.writeState("other", map[string]any{"desired_state": profiles.Running})
	for _, name := range []string{"other", "coder"} {
		m.Observe(stateChange(name, supervisor.Stopping, supervisor.Down, ""))
	}
	h.awaitCondition("desired_state is back", h.hasLogged("is back"))
	if _, looked := h.copyCalls().down["other"]; looked {
		t.Error("a state file is read although nothing depends on it any more")
	}
}

// A gateway that exits with 0 while another instance runs must be parked as replaced, and start again after the end of the
// other instance.
func TestACleanExitMayBeATakeover(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	exit := &supervisor.Exit{Run: 3, PID: 1 << 29, Cause: supervisor.CauseClean}
	h.setService("coder", supervisor.Service{State: supervisor.Backoff, Run: 3, LastExit: exit})
	started, err := profiles.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h.writeFile("coder", "gateway.pid", fmt.Sprintf(`{"pid":%d,"start_time":%d}`, os.Getpid(), started))
	m.Observe(supervisor.Record{Service: "gateway-coder", Exit: exit})
	h.awaitCondition("the exit is explained", h.hasEvent("CorrectCause{Name:gateway-coder Run:3 Cause:replaced}"))
	h.setService("coder", supervisor.Service{State: supervisor.Parked, Run: 3, LastExit: exit})
	h.writeFile("coder", "gateway.pid", `{"pid":1073741824,"start_time":1}`)
	begin := time.Now()
	m.Observe(stateChange("coder", supervisor.Backoff, supervisor.Parked, supervisor.ReasonReplaced))
	h.awaitCondition("it is started again", h.hasEvent("InputsChanged{Name:gateway-coder}"))
	if took := time.Since(begin); took < time.Second {
		t.Errorf("it is started again after only %v", took)
	}
}

// The advice that an agent may never write its state file must come only for a run that has been up for long.
func TestTheAdviceForAnAgentThatNeverSaysReadyComesLate(t *testing.T) {
	h, m := newHost(t, "young", "slow")
	h.startManager(m)
	for profile, since := range map[string]time.Time{"young": time.Now(), "slow": time.Now().Add(-30 * time.Second)} {
		h.writeState(profile, map[string]any{"desired_state": profiles.Running})
		h.setService(profile, supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1, Since: since})
		m.Observe(stateChange(profile, supervisor.Starting, supervisor.Up, ""))
	}
	const said = "Ready{Name:gateway-%s Run:1 Ready:false Text:gateway_state.json says nothing of this run yet%s}"
	h.awaitCondition("the young one is told nothing of it", h.hasEvent(fmt.Sprintf(said, "young", "")))
	h.awaitCondition("the slow one is", h.hasEvent(fmt.Sprintf(said, "slow", "; for an agent that never writes it there, set agent.ready to up in hinit.yaml")))
}

func recordIntent(wants *profiles.Intents, profile, want string) error {
	sync, err := wants.Record(profile, want)
	if err != nil {
		return err
	}
	return sync()
}

// The warnings about one profile must stay in the status, although the gateway of another profile writes one broken state file
// after another.
func TestAProfileKeepsTheWarningsAboutOthers(t *testing.T) {
	h, m := newHost(t, "loud", "quiet")
	h.startManager(m)
	shown := func(list ...string) func() bool {
		return func() bool {
			return slices.EqualFunc(m.Warnings(), list, func(got, want string) bool {
				return strings.Contains(got, want) && strings.Count(got, "cannot use") == 1
			})
		}
	}
	h.writeFile("quiet", profiles.StateFile, "[]")
	h.awaitCondition("a warning is shown", shown("it isn't a JSON object"))
	for _, broken := range []string{"a", "b", "c"} {
		h.writeFile("loud", profiles.StateFile, broken)
		h.awaitCondition("its last warning is shown", shown("invalid character '"+broken+"'", "it isn't a JSON object"))
		h.awaitCondition("the log says it", h.hasLogged("warning: cannot use the state of profile \"loud\""))
	}
	if err := os.RemoveAll(h.dir("loud")); err != nil {
		t.Fatal(err)
	}
	h.awaitCondition("the profile is forgotten", shown("it isn't a JSON object"))
}

// After the repair of a damaged state file, or of a link in place of a profile, the status must not show the warning.
func TestAWarningEndsWithItsCause(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	h.writeFile("coder", profiles.StateFile, "[]")
	if err := os.Symlink("coder", h.dir("link")); err != nil {
		t.Fatal(err)
	}
	h.awaitCondition("both are shown", func() bool { return len(m.Warnings()) == 2 })
	h.writeFile("coder", profiles.StateFile, "{}")
	if err := os.Remove(h.dir("link")); err != nil {
		t.Fatal(err)
	}
	h.awaitCondition("neither is shown", func() bool { return len(m.Warnings()) == 0 })
}

// The log must not contain each repetition of a warning that an agent causes and removes in a loop. An agent can make and
// remove links, and damage and mend its state file.
func TestWarningsThatComeAndGoDoNotFillTheLog(t *testing.T) {
	h, m := newHost(t, "coder", "quiet")
	h.startManager(m)
	for n := range 90 {
		link := h.dir(fmt.Sprintf("link%d", n%45))
		if err := os.Symlink("coder", link); err != nil {
			t.Fatal(err)
		}
		h.writeFile("coder", profiles.StateFile, fmt.Sprint("[", n%20))
		h.awaitCondition("both are shown", func() bool { return len(m.Warnings()) == 2 })
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		h.writeFile("coder", profiles.StateFile, "{}")
		h.awaitCondition("neither is shown", func() bool { return len(m.Warnings()) == 0 })
	}
	h.writeFile("quiet", profiles.StateFile, "[]")
	h.awaitCondition("the warning about another profile is in the log", h.hasLogged(`warning: cannot use the state of profile "quiet"`))
	warnings := slices.DeleteFunc(h.copyCalls().supervisorEvents, func(line string) bool { return !strings.HasPrefix(line, "warning: ") })
	if len(warnings) > 80 {
		t.Errorf("the log has %d warnings, and there were only 50 links and 20 lines about the state file: %q", len(warnings), warnings)
	}
}

// An agent must not be able to fill the log of the container. It may make and remove a profile in a loop, or report endless
// problems of its chat platforms.
func TestAnAgentDoesNotFillTheLogWithProfiles(t *testing.T) {
	h, m := newHost(t, "coder", "quiet")
	h.startManager(m)
	for _, name := range []string{"coder", "quiet"} {
		h.setService(name, supervisor.Service{State: supervisor.Up, Want: supervisor.WantUp, PID: os.Getpid(), Run: 1})
	}
	started, err := profiles.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	report := func(profile string, round int) {
		h.writeState(profile, map[string]any{
			"gateway_state": "running", "pid": os.Getpid(), "start_time": started,
			"platforms": map[string]any{"chat": map[string]any{"state": "retrying", "error_message": fmt.Sprint("round ", round)}},
		})
	}
	for round := range 40 {
		h.makeProfile("fleeting")
		if err := m.FindProfile(t.Context(), "fleeting"); err != nil {
			t.Fatal(err)
		}
		report("coder", round)
		if err := os.RemoveAll(h.dir("fleeting")); err != nil {
			t.Fatal(err)
		}
		if err := m.Rescan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	report("quiet", 0)
	h.awaitCondition("the problem of another profile is in the log", h.hasLogged("gateway-quiet: platform chat is retrying: round 0"))
	for _, about := range []string{"profile fleeting", "gateway-coder: platform"} {
		if n := strings.Count(strings.Join(h.copyCalls().supervisorEvents, "\n"), about); n == 0 || n > 20 {
			t.Errorf("the log has %d lines with %q, and at most 20 a minute are allowed", n, about)
		}
	}
	m.Stop()
	if !h.hasLogged("profile fleeting disappeared (the last of 80 messages within a minute")() {
		t.Errorf("the last message is not in the log: %q", h.copyCalls().supervisorEvents)
	}
}
