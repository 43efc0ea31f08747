package scandir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/s6/formats"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

var gatewayFiles = Files{Run: "#!/bin/sh\nexec gateway\n", Finish: "#!/bin/sh\n", Log: "#!/bin/sh\nexec logger\n"}

func TestASlotIsThereWithEverythingTheToolsLookFor(t *testing.T) {
	g := newLayout(t)
	s := openScanner(t, newHost(), g)
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, true))
	for _, name := range []string{
		"run", "finish", "type", "down", "event", "supervise/control", "supervise/event",
		"log/run", "log/event", "log/supervise/control",
	} {
		if _, err := os.Lstat(filepath.Join(g.ScanDir, "gateway-a", name)); err != nil {
			t.Error(err)
		}
	}
	slot, err := s.Find(t.Context(), g.ScanDir+"/gateway-a")
	if err != nil || slot.Name != "gateway-a" || !slot.IsNative() || slot.NormallyUp() {
		t.Errorf("%v, %v", slot, err)
	}
	s.SetDown("gateway-a", false)
	if _, err := os.Lstat(g.ScanDir + "/gateway-a/down"); !os.IsNotExist(err) || !slot.NormallyUp() {
		t.Errorf("the down file is still there: %v", err)
	}
	s.SetDown("gateway-a", true)
	s.SetDown("gateway-a", true)
	s.SetDown("nobody", true)
	if slot.NormallyUp() {
		t.Error("the down file is not there")
	}
	must(t, s.RemoveSlot(t.Context(), "gateway-a"))
	must(t, s.RemoveSlot(t.Context(), "gateway-a"))
	if _, err := os.Lstat(g.ScanDir + "/gateway-a"); !os.IsNotExist(err) || s.Has("gateway-a") {
		t.Errorf("the slot is still there: %v", err)
	}
	if _, err := s.Find(t.Context(), g.ScanDir+"/gateway-a"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("a slot that was withdrawn: %v", err)
	}
}

func TestASlotIsFoundByEveryPathToIt(t *testing.T) {
	g := newLayout(t)
	s := openScanner(t, newHost(), g)
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, false))
	must(t, s.PublishFixed(t.Context(), mainHermes, gatewayFiles))
	must(t, os.Symlink(g.ScanDir, filepath.Join(filepath.Dir(g.ScanDir), "alias")))
	alias := filepath.Join(filepath.Dir(g.ScanDir), "alias")
	for path, want := range map[string]string{
		g.ScanDir + "/gateway-a/": "gateway-a", alias + "/gateway-a": "gateway-a", g.ScanDir + "//x/../gateway-a": "gateway-a",
		g.ScanDir + "/gateway-a/log": "gateway-a/log", alias + "/gateway-a/log": "gateway-a/log", g.ScanDir + "/main-hermes": mainHermes,
	} {
		if slot, err := s.Find(t.Context(), path); err != nil || slot.Name != want {
			t.Errorf("%s: %v, %v", path, slot, err)
		}
	}
	for _, path := range []string{g.ScanDir, g.ScanDir + "/.s6-svscan", g.ScanDir + "/nobody", "/", "/proc/self/fd", g.ScanDir + "/gateway-a/event", g.ScanDir + "/main-hermes/log"} {
		if slot, err := s.Find(t.Context(), path); !errors.Is(err, client.ErrUnknown) {
			t.Errorf("%s: %v, %v", path, slot, err)
		}
	}
}

func TestAGatewayThatTheAgentRegistersIsTheNativeOne(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	makeServiceDir(t, g, "gateway-up", map[string]string{"run": "#!/bin/sh\n"})
	makeServiceDir(t, g, "gateway-down", map[string]string{"run": "#!/bin/sh\n", "down": ""})
	makeServiceDir(t, g, "gateway-half", nil)
	makeServiceDir(t, g, "gateway-new.tmp", map[string]string{"run": "#!/bin/sh\n"})
	makeServiceDir(t, g, ".gateway-new", map[string]string{"run": "#!/bin/sh\n"})
	must(t, s.HandleRemoved(t.Context()))
	if len(s.Slots()) != 0 {
		t.Errorf("%v were taken in without a scan", s.Slots())
	}
	must(t, s.Scan(t.Context()))
	must(t, s.Scan(t.Context()))
	h.whileLocked(func() {
		if got := strings.Join(h.gateways, " "); got != "down up+" {
			t.Errorf("gateways %q, want down and up, the latter started", got)
		}
	})
	if n := h.countMessages("gateway-half"); n != 1 {
		t.Errorf("half a slot was reported %d times: %v", n, h.messages)
	}
	makeServiceDir(t, g, "gateway-half", map[string]string{"run": "#!/bin/sh\n", "down": ""})
	must(t, s.Scan(t.Context()))
	if !s.Has("gateway-half") || !s.Has("gateway-up") || s.Has("gateway-new.tmp") {
		t.Errorf("slots: %v", s.Slots())
	}
	// When the profile appears, a slot of the agent must stay as it is.
	must(t, s.Publish(t.Context(), "gateway-up", gatewayFiles, true))
	if _, err := os.Stat(g.ScanDir + "/gateway-up/down"); err == nil {
		t.Error("a slot of the agent's was changed")
	}
	h.whileLocked(func() { h.slotMadeErr = errors.New("this container has no gateways") })
	makeServiceDir(t, g, "gateway-never", map[string]string{"run": "#!/bin/sh\n"})
	must(t, s.Scan(t.Context()))
	if s.Has("gateway-never") || h.countMessages("this container has no gateways") != 1 {
		t.Errorf("slots %v, said %q", s.Slots(), h.messages)
	}
}

func TestARegisteredGatewayHasWhatItsRunExports(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	makeServiceDir(t, g, "gateway-a", map[string]string{"run": "#!/bin/sh\nexport B='two words' A=1\nexport C=$HOME\nexec false\n", "down": ""})
	must(t, s.Scan(t.Context()))
	h.whileLocked(func() {
		if got := strings.Join(h.gateways, ","); got != "a A=1 B=two words" {
			t.Errorf("gateways %q", got)
		}
	})
	if got := s.Exports()["gateway-a"]; len(got) != 2 || got["A"] != "1" {
		t.Errorf("afterwards it exports %v", got)
	}
	if h.countMessages("exports C with words that only a shell understands") != 1 {
		t.Errorf("nobody was told of C: %v", h.messages)
	}
	// A slot of hinit has no exports, even after a restart of the scanner.
	must(t, s.Publish(t.Context(), "gateway-b", gatewayFiles, true))
	if got := s.Exports()["gateway-b"]; got != nil {
		t.Errorf("a slot of hinit's own exports %v", got)
	}
	must(t, os.RemoveAll(filepath.Join(g.ScanDir, "gateway-a")))
	must(t, s.HandleRemoved(t.Context()))
	if got := s.Exports()["gateway-a"]; got != nil {
		t.Errorf("without a slot it exports %v", got)
	}
	// A slot whose run script is too long to read still belongs to the gateway.
	makeServiceDir(t, g, "gateway-a", map[string]string{"run": "export A=1\n" + strings.Repeat("#\n", maxRunScript), "down": ""})
	must(t, s.Scan(t.Context()))
	if got := s.Exports()["gateway-a"]; !s.Has("gateway-a") || got != nil || h.countMessages("gateway-a: what its run exports is not taken over") != 1 {
		t.Errorf("of a run without end it took %v: %v", got, h.messages)
	}
}

func TestASlotThatNobodyHasScannedForIsTakenInWhenItsProfileAppears(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	makeServiceDir(t, g, "gateway-a", map[string]string{"run": "#!/bin/sh\n"})
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, true))
	h.whileLocked(func() {
		if got := strings.Join(h.gateways, " "); got != "a+" {
			t.Errorf("gateways %q; without a down file it is to be started", got)
		}
	})
}

func TestASlotThatTheAgentIsMakingIsLeftToTheAgent(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	for i, temp := range []string{".gateway-a.tmp", "gateway-b.tmp"} {
		name := []string{"gateway-a", "gateway-b"}[i]
		fresh := makeServiceDir(t, g, temp, map[string]string{"run": "#!/bin/sh\n", "down": "", "mine": ""})
		late := time.Now().Add(agentMakingTimeout - time.Second) // on a slow machine, the agent may take up to twice its time
		must(t, os.Chtimes(fresh, late, late))
		must(t, s.Publish(t.Context(), name, gatewayFiles, true))
		if _, err := os.Lstat(filepath.Join(g.ScanDir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is in the agent's way: %v", name, err)
		}
		must(t, os.Rename(filepath.Join(g.ScanDir, temp), filepath.Join(g.ScanDir, name)))
		must(t, s.Scan(t.Context()))
		if _, err := os.Lstat(filepath.Join(g.ScanDir, name, "mine")); err != nil || !s.Has(name) {
			t.Errorf("%s: %v, known: %v", name, err, s.Has(name))
		}
	}
	// An old or vanishing temporary name must not delay the slot.
	temp := makeServiceDir(t, g, ".gateway-c.tmp", map[string]string{"run": "#!/bin/sh\n"})
	must(t, s.Publish(t.Context(), "gateway-c", gatewayFiles, true))
	past := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(temp, past, past))
	waitUntil(t, "the slot is made", func() bool { return g.exists("gateway-c") })
	entries, err := os.ReadDir(g.ScanDir)
	if err != nil || len(entries) != 5 {
		t.Errorf("the scan directory holds %v, %v", entries, err)
	}
}

func TestARemovedSlotIsNoticedWithoutAScan(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	for _, name := range []string{"gateway-a", "gateway-b", "gateway-c"} {
		must(t, s.Publish(t.Context(), name, gatewayFiles, false))
	}
	must(t, os.RemoveAll(g.ScanDir+"/gateway-a"))
	must(t, os.Rename(g.ScanDir+"/gateway-b", g.ScanDir+"/.gateway-b"))
	// A new directory of the same name is a new slot, even if it has the old inode number.
	must(t, os.RemoveAll(g.ScanDir+"/gateway-c"))
	makeServiceDir(t, g, "gateway-c", map[string]string{"run": "#!/bin/sh\n"})
	waitUntil(t, "all three are noticed", func() bool {
		gone := h.unregistered()
		slices.Sort(gone)
		return strings.Join(gone, " ") == "gateway-a gateway-b gateway-c"
	})
	waitUntil(t, "nobody finds them any more", func() bool { return len(s.Slots()) == 0 })
	must(t, s.Scan(t.Context()))
	if !s.Has("gateway-c") || s.Has("gateway-a") {
		t.Errorf("slots: %v", s.Slots())
	}
}

func TestARemovedSlotIsUnknownAtOnce(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, false))
	must(t, os.RemoveAll(g.ScanDir+"/gateway-a"))
	if slot, err := s.Find(t.Context(), g.ScanDir+"/gateway-a"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v, %v", slot, err)
	}
	waitUntil(t, "it is noticed", func() bool { return len(h.unregistered()) == 1 })
}

func TestRegisteringAndUnregisteringAllAtOnceLeavesNothing(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for cycle := range 25 {
				name := fmt.Sprintf("gateway-p%d-%d", caller, cycle%3)
				temp := filepath.Join(g.ScanDir, fmt.Sprintf(".%s.tmp", name))
				err := g.Agent.Do(func() error {
					if err := writeServiceDir(temp, map[string]string{"run": "#!/bin/sh\n", "down": "", "log/run": "#!/bin/sh\n"}); err != nil {
						return err
					}
					return os.Rename(temp, filepath.Join(g.ScanDir, name))
				})
				if err == nil {
					err = s.Scan(t.Context())
				}
				if err == nil && !s.Has(name) {
					err = fmt.Errorf("%s is not there after a scan", name)
				}
				if err == nil {
					_, err = s.Find(t.Context(), filepath.Join(g.ScanDir, name))
				}
				if err == nil {
					err = s.Scan(t.Context())
				}
				if err == nil {
					err = g.Agent.Do(func() error { return os.RemoveAll(filepath.Join(g.ScanDir, name)) })
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	must(t, s.Scan(t.Context()))
	if len(s.Slots()) != 0 {
		t.Errorf("left over: %v", s.Slots())
	}
	if got := len(h.unregistered()); got != 200 {
		t.Errorf("%d of 200 removals were told; complaints: %v", got, h.messages)
	}
	entries, err := os.ReadDir(g.ScanDir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the scan directory holds %v, %v", entries, err)
	}
}

func TestAForeignDirectoryIsSupervisedAsItDefines(t *testing.T) {
	t.Parallel()
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	dir := makeServiceDir(t, g, "foo", map[string]string{
		"run": "#!/bin/sh\n", "finish": "#!/bin/sh\n", "timeout-kill": "1500\n", "timeout-finish": "0", "down-signal": "INT\n",
		"notification-fd": "4\n", "flag-timeout-killpg": "", "reload-signal": "USR2", "down": "",
	})
	must(t, s.Scan(t.Context()))
	u := h.unit("foo")
	p := u.Policy
	if p.StopSignal != 2 || p.Grace != 1500*time.Millisecond || p.KillNever || p.KillScope != supervisor.ScopeGroup || p.FinishTimeout != 0 ||
		!p.ReportsReadiness || !p.RunsFinish || !slices.Equal(p.PermanentFinishCodes, []int{125}) || u.NotifyFD != 4 || !p.LeaveDescendants {
		t.Errorf("policy %+v, notification %d", p, u.NotifyFD)
	}
	if !slices.Equal(u.Spec.Argv, []string{"./run", "foo"}) || u.Spec.Dir != dir || u.StdOverrides[1] != nil || u.FinishProgram != "./finish" {
		t.Errorf("%+v", u.Spec)
	}
	if v := h.Snapshot().Find("foo"); v.Want != supervisor.WantDown {
		t.Errorf("with a down file it is wanted %s", v.Want)
	}
	slot, err := s.Find(t.Context(), dir)
	if err != nil || slot.IsNative() || slot.IsFixed() || slot.ReloadSignal() != 12 || slot.NormallyUp() {
		t.Errorf("%+v, %v", slot, err)
	}
	// A change must apply at the next start, without a scan.
	must(t, os.Remove(dir+"/timeout-kill"))
	waitUntil(t, "the change is noticed", func() bool { return h.unit("foo").Policy.KillNever })
	must(t, os.RemoveAll(dir))
	waitUntil(t, "it is gone", func() bool { return !h.has("foo") && !s.Has("foo") })
}

func TestTheDeathsOfAForeignServiceAreCounted(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	dir := makeServiceDir(t, g, "foo", map[string]string{"run": "#!/bin/sh\n", "log/run": "#!/bin/sh\n", "max-death-tally": "2\n"})
	must(t, os.Mkdir(dir+"/supervise", 0o777))
	must(t, os.Chmod(dir+"/supervise", 0o777))
	must(t, os.WriteFile(dir+"/"+formats.TallyFile, make([]byte, 140), 0o644)) // simulates the tally of an earlier supervisor
	must(t, s.Scan(t.Context()))
	if _, err := os.Lstat(dir + "/" + formats.TallyFile); !os.IsNotExist(err) {
		t.Errorf("what another supervisor counted is still there: %v", err)
	}
	deaths := func(dir string) []formats.Death {
		tally, _ := os.ReadFile(dir + "/" + formats.TallyFile)
		return formats.ParseDeaths(tally)
	}
	for code := range 4 {
		s.Observe(supervisor.Record{Service: "foo", Exit: &supervisor.Exit{PID: 10 + code, Code: code, At: time.Now()}})
	}
	s.Observe(supervisor.Record{Service: "foo", Exit: &supervisor.Exit{Code: -1, Cause: supervisor.CauseSpawn, At: time.Now()}})
	s.Observe(supervisor.Record{Service: "foo/log", Exit: &supervisor.Exit{PID: 20, Code: -1, Signal: 9, At: time.Now()}})
	waitUntil(t, "the logger's death is counted", func() bool { return len(deaths(dir+"/log")) == 1 })
	if got := deaths(dir + "/log")[0]; got.Signal != 9 || got.Code != 137 {
		t.Errorf("of the logger: %+v", got)
	}
	if got := deaths(dir); len(got) != 2 || got[0].Code != 2 || got[1].Code != 3 {
		t.Errorf("the last two deaths are %+v", got)
	}
	// A link out of the directory must not be followed, and must affect no other service.
	outside := t.TempDir()
	must(t, os.RemoveAll(dir+"/supervise"))
	must(t, os.Symlink(outside, dir+"/supervise"))
	s.Observe(supervisor.Record{Service: "foo", Exit: &supervisor.Exit{PID: 30, At: time.Now()}})
	must(t, s.HandleRemoved(t.Context()))
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
	if !s.Has("foo") {
		t.Error("the service is gone")
	}
}

// Root must not write the death tally where the agent can put a link to root's file, as in the agent's own supervise directory.
func TestRootCountsNoDeathsWhereTheAgentCanWrite(t *testing.T) {
	g, h := newLayout(t), newHost()
	if !g.Agent.SwitchesIdentity() {
		t.Skip("needs root")
	}
	s := openScanner(t, h, g)
	dir := makeServiceDir(t, g, "foo", map[string]string{"run": "#!/bin/sh\n"})
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, os.Chown(path, 0, 0)) }))
	must(t, os.Mkdir(dir+"/supervise", 0o755))
	must(t, os.Chown(dir+"/supervise", agentUID, agentGID))
	secret := filepath.Join(filepath.Dir(g.ScanDir), "secret")
	must(t, os.WriteFile(secret, make([]byte, 28), 0o600))
	must(t, s.Scan(t.Context()))
	must(t, os.Link(secret, dir+"/"+formats.TallyFile))
	s.Observe(supervisor.Record{Service: "foo", Exit: &supervisor.Exit{PID: 10, Code: 1, At: time.Now()}})
	must(t, s.HandleRemoved(t.Context()))
	must(t, s.HandleRemoved(t.Context()))
	info, err := os.Lstat(dir + "/" + formats.TallyFile)
	if err != nil || info.Size() != 28 || info.Mode().Perm() != 0o600 {
		t.Errorf("in its place there is now %v, %v", info, err)
	}
	if u := h.unit("foo"); u.Spec.Cred != nil {
		t.Errorf("the service was to be root's: %+v", u.Spec.Cred)
	}
	// Root must write the tally into its own directory supervise.
	must(t, os.Remove(dir+"/"+formats.TallyFile))
	must(t, os.Chown(dir+"/supervise", 0, 0))
	s.Observe(supervisor.Record{Service: "foo", Exit: &supervisor.Exit{PID: 11, Code: 1, At: time.Now()}})
	waitUntil(t, "the death is counted", func() bool { _, err := os.Lstat(dir + "/" + formats.TallyFile); return err == nil })
}

func TestOnlyWhoSaysThatItIsReadyIsStartedAgainAtOnce(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	makeServiceDir(t, g, "silent", map[string]string{"run": "#!/bin/sh\n"})
	makeServiceDir(t, g, "telling", map[string]string{"run": "#!/bin/sh\n", "notification-fd": "3\n"})
	must(t, s.Scan(t.Context()))
	if silent, telling := h.unit("silent").Policy, h.unit("telling").Policy; silent.ReadyRestart != 0 || telling.ReadyRestart == 0 {
		t.Errorf("at once when ready for %v without notification-fd, for %v with it", silent.ReadyRestart, telling.ReadyRestart)
	}
}

func TestALoggerGetsWhatTheServiceWrites(t *testing.T) {
	t.Parallel()
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	dir := makeServiceDir(t, g, "foo", map[string]string{"run": "#!/bin/sh\n", "log/run": "#!/bin/sh\n"})
	must(t, s.Scan(t.Context()))
	service, logger := h.unit("foo"), h.unit("foo/log")
	if service.StdOverrides[1] == nil || logger.StdOverrides[0] == nil || logger.StdOverrides[1] != nil {
		t.Fatalf("service %+v, logger %+v", service, logger)
	}
	if _, err := service.StdOverrides[1].WriteString("a line\n"); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 7)
	if _, err := logger.StdOverrides[0].Read(line); err != nil || string(line) != "a line\n" {
		t.Errorf("%q, %v", line, err)
	}
	if slot, err := s.Find(t.Context(), dir+"/log"); err != nil || slot.Name != "foo/log" {
		t.Errorf("%v, %v", slot, err)
	}
	// The service must end first. Only then the logger reads the end of its input.
	must(t, os.RemoveAll(dir))
	waitUntil(t, "the service is removed", func() bool { return !h.has("foo") })
	s.Observe(supervisor.Record{Service: "foo", Dropped: true})
	waitUntil(t, "the pipe is closed", func() bool { _, err := service.StdOverrides[1].WriteString("x"); return err != nil })
	if v := h.Snapshot().Find("foo/log"); v != nil && v.Want != supervisor.WantDown {
		t.Errorf("the logger is wanted %s", v.Want)
	}
	waitUntil(t, "the logger is removed though it does not end", func() bool { return !h.has("foo/log") })
}

// A service directory must be supervised once, as by s6-svscan. A directory in the scan directory comes before a link to it.
func TestTwoLinksToOneServiceDirectoryRanTwoCopies(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	makeServiceDir(t, g, "real", map[string]string{"run": "#!/bin/sh\n"})
	must(t, os.Symlink("real", g.ScanDir+"/alias"))
	outside := filepath.Join(filepath.Dir(g.ScanDir), "outside")
	must(t, writeServiceDir(outside, map[string]string{"run": "#!/bin/sh\n"}))
	must(t, os.Symlink(outside, g.ScanDir+"/one"))
	must(t, os.Symlink(outside, g.ScanDir+"/two"))
	for range 2 {
		must(t, s.Scan(t.Context()))
	}
	if !h.has("real") || !h.has("one") || h.has("alias") || h.has("two") {
		t.Errorf("supervised: %+v", h.Snapshot().Services)
	}
	for _, text := range []string{`"alias": it leads to the directory of real,`, `"two": it leads to the directory of one,`} {
		if n := h.countMessages(text); n != 1 {
			t.Errorf("%q was said %d times: %q", text, n, h.messages)
		}
	}
	must(t, os.Remove(g.ScanDir+"/one"))
	must(t, s.Scan(t.Context()))
	waitUntil(t, "the other link takes its place", func() bool { return h.has("two") && !h.has("one") })
}

func TestABrokenDirectoryHurtsNoOther(t *testing.T) {
	t.Parallel()
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	h.reservedNames["taken"] = "the name is taken"
	makeServiceDir(t, g, "broken", map[string]string{"run": "not executable", "down-signal": "NONSENSE"})
	makeServiceDir(t, g, "good", map[string]string{"run": "#!/bin/sh\n"})
	makeServiceDir(t, g, "taken", map[string]string{"run": "#!/bin/sh\n"})
	makeServiceDir(t, g, strings.Repeat("n", 252), map[string]string{"run": "#!/bin/sh\n"})
	must(t, os.WriteFile(g.ScanDir+"/file", nil, 0o644))
	must(t, os.Symlink("nowhere", g.ScanDir+"/dangling"))
	for range 3 {
		must(t, s.Scan(t.Context()))
	}
	var names []string
	for _, slot := range s.Slots() {
		names = append(names, slot.Name)
	}
	if got := strings.Join(names, " "); got != "broken good" {
		t.Errorf("slots: %s", got)
	}
	for _, text := range []string{`"taken": the name is taken`, "longer than 251", `"dangling"`, "broken: its service directory is not in order: its run is not executable; down-signal"} {
		if n := h.countMessages(text); n != 1 {
			t.Errorf("%q was said %d times: %q", text, n, h.messages)
		}
	}
	h.whileLocked(func() {
		v := *h.services["broken"]
		v.State, v.PID, v.LastExit = supervisor.Backoff, 0, &supervisor.Exit{Cause: supervisor.CauseSpawn}
		h.services["broken"] = &v
	})
	must(t, os.Chmod(g.ScanDir+"/broken/run", 0o755))
	waitUntil(t, "it is started when it is mended", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Contains(h.events, "supervisor.Start {Name:broken}")
	})
}

func TestOnlyWhatRootAloneCanHaveWrittenRunsAsRoot(t *testing.T) {
	testkit.NeedRoot(t)
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	program := map[string]string{"run": "#!/bin/sh\n"}
	for _, name := range []string{"roots", "loose-dir", "loose-run", "loose-finish", "agents-run", "link-run"} {
		must(t, writeServiceDir(filepath.Join(g.ScanDir, name), program))
	}
	must(t, os.Chmod(g.ScanDir+"/loose-dir", 0o777))
	must(t, os.Chmod(g.ScanDir+"/loose-run/run", 0o775))
	must(t, os.WriteFile(g.ScanDir+"/loose-finish/finish", nil, 0o755))
	must(t, os.Chmod(g.ScanDir+"/loose-finish/finish", 0o777))
	must(t, os.Chown(g.ScanDir+"/agents-run/run", agentUID, agentGID))
	must(t, os.Rename(g.ScanDir+"/link-run/run", g.ScanDir+"/link-run/other"))
	must(t, os.Symlink("other", g.ScanDir+"/link-run/run"))
	makeServiceDir(t, g, "agents", program)
	outside := filepath.Join(filepath.Dir(g.ScanDir), "outside")
	must(t, writeServiceDir(outside, program))
	must(t, os.Symlink(outside, g.ScanDir+"/link"))
	must(t, s.Scan(t.Context()))
	for _, name := range []string{"roots", "loose-dir", "loose-run", "loose-finish", "agents-run", "link-run", "agents", "link"} {
		if root := h.unit(name).Spec.Cred == nil; !h.has(name) || root != (name == "roots") {
			t.Errorf("%s runs as root: %v (known: %v)", name, root, h.has(name))
		}
	}
	u := h.unit("roots")
	must(t, os.Rename(g.ScanDir+"/roots", g.ScanDir+"/.roots"))
	makeServiceDir(t, g, "roots", map[string]string{"run": "#!/bin/sh\nevil\n"})
	if got, err := os.ReadFile(u.Spec.Dir + "/run"); err == nil && strings.Contains(string(got), "evil") {
		t.Errorf("%s leads to the agent's directory", u.Spec.Dir)
	}
	must(t, s.Scan(t.Context()))
	if h.unit("roots").Spec.Cred == nil {
		t.Error("the agent's directory runs as root")
	}
}
