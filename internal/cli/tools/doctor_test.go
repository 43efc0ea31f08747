package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/config"
	"hinit/internal/isolation/ports"
	"hinit/internal/testkit"
)

func endedProcess(t *testing.T) *os.Process {
	t.Helper()
	before := len(zombies(os.Getpid()))
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Wait() })
	for end := time.Now().Add(40 * time.Second); len(zombies(os.Getpid())) == before; {
		if time.Now().After(end) {
			t.Fatal("the child does not end")
		}
		<-time.After(time.Millisecond)
	}
	return p
}

// The doctor must report only processes that stay unreaped, not a process that ended a moment ago.
func TestAProcessThatIsJustBeingReapedIsNoTrouble(t *testing.T) {
	if n := countUnreaped(os.Getpid(), func() { t.Error("it waits for nothing") }); n != 0 {
		t.Fatalf("%d are unreaped before anything has ended", n)
	}
	endedProcess(t)
	fresh := endedProcess(t)
	n := countUnreaped(os.Getpid(), func() {
		if _, err := fresh.Wait(); err != nil {
			t.Error(err)
		}
	})
	if n != 1 {
		t.Errorf("%d are unreaped, not the one that stays", n)
	}
}

// If no gateway runs because of the lease, the doctor must name the container that holds the lease, or say that the holder is
// unknown.
func TestTheDoctorSaysWhoServesTheVolume(t *testing.T) {
	since := time.Date(2026, 11, 22, 7, 58, 1, 0, time.UTC)
	other := &client.LeaseHolder{Host: "4f1c", Since: since}
	for _, tt := range []struct {
		lease  *client.Lease
		result string
		says   []string
	}{
		{nil, "", nil},
		{&client.Lease{State: client.LeaseHeld, Since: since}, "ok", []string{`this container serves the profiles in "/opt/data" since 2026-11-22T07:58:01Z`}},
		{&client.Lease{State: client.LeaseWaiting, Since: since, Holder: other, Detail: "held by 4f1c"}, "ok", []string{"held by 4f1c; this container has waited since 2026-11-22T07:58:01Z and takes over"}},
		{&client.Lease{State: client.LeaseWaiting, Holder: &client.LeaseHolder{PID: 7}, Detail: "held by process 7"}, "failed", []string{"held by process 7"}},
		{&client.Lease{State: client.LeaseWaiting, Detail: "it does not answer"}, "failed", []string{"it does not answer (since ", "nothing but the CMD starts", "fsfreeze --unfreeze"}},
		{&client.Lease{State: client.LeaseNone, Detail: "read-only file system"}, "warning", []string{"nothing keeps another container", "read-only file system"}},
	} {
		x := &doctorRun{}
		x.checkLease(client.Init{Home: "/opt/data", Lease: tt.lease})
		if tt.result == "" {
			if len(x.findings) > 0 {
				t.Errorf("a container without profiles: %+v", x.findings)
			}
			continue
		}
		if len(x.findings) != 1 || x.findings[0].Check != "lease" || x.findings[0].Result != tt.result {
			t.Errorf("%+v: %+v", tt.lease, x.findings)
			continue
		}
		for _, text := range tt.says {
			if !strings.Contains(x.findings[0].Detail, text) {
				t.Errorf("%q is not in %q", text, x.findings[0].Detail)
			}
		}
	}
	x := &doctorRun{}
	if x.checkLease(client.Init{Booting: true, Lease: &client.Lease{State: client.LeaseNone}}); len(x.findings) > 0 {
		t.Errorf("before the boot has asked: %+v", x.findings)
	}
}

// hinit doctor must return although a FIFO replaces the file of the sandbox service. Opening a FIFO waits for a writer.
func TestAPipeInPlaceOfTheNoteOfTheSandboxesHoldsNoDoctorUp(t *testing.T) {
	socket := t.TempDir() + "/sandbox.sock"
	if err := unix.Mkfifo(socket+".root", 0o600); err != nil {
		t.Fatal(err)
	}
	x := &doctorRun{Terminal: &cli.Terminal{Env: func(string) (string, bool) { return socket, true }}}
	done := make(chan struct{})
	go func() {
		x.printBoardCommand(&config.Config{Services: map[string]config.Service{config.SandboxName: {Enabled: true}}})
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatal("it still waits")
	}
	if len(x.findings) != 1 || x.findings[0].Result != client.ResultWarning {
		t.Errorf("it finds %+v", x.findings)
	}
}

// hinit doctor must say that a Burstable pod hardly protects hinit. The oom_score_adj of its gateways is only about 15 higher
// than hinit's, so the kernel may end hinit first.
func TestDoctorSaysThatABurstablePodHardlyProtectsHinit(t *testing.T) {
	if group, _ := os.ReadFile("/sys/fs/cgroup/memory.oom.group"); strings.TrimSpace(string(group)) == "1" {
		t.Skip("the kernel ends all of this container")
	}
	with := func(score string) int {
		p, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Kill(); _, _ = p.Wait() })
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.Pid), []byte(score), 0); err != nil {
			t.Fatal(err)
		}
		return p.Pid
	}
	gateway := client.Service{Name: "gateway-coder", PID: with("1000")}
	for score, want := range map[string]string{"200": client.ResultOK, "875": client.ResultOK, "985": client.ResultWarning, "1000": client.ResultWarning} {
		x := &doctorRun{}
		x.checkMemory(client.Status{Init: client.Init{PID: with(score), FirstOOMVictim: gateway.Name}, Services: []client.Service{gateway}})
		if len(x.findings) != 1 || x.findings[0].Result != want {
			t.Errorf("hinit has %s: %+v", score, x.findings)
		}
	}
}

// A gateway whose port the kernel may give to other programs does not start. The doctor must name the port.
func TestTheDoctorDidNotNameAPortThatKeepsAGatewayDown(t *testing.T) {
	first, last := ports.EphemeralRange()
	if first < 2 {
		testkit.SkipOrFail(t, "the kernel does not say which ports it chooses")
	}
	file := filepath.Join(t.TempDir(), "hinit.yaml")
	text := fmt.Sprintf(`isolation: {mode: files}
profiles:
  coder: {isolation: {ports: [%[1]d, %[2]d]}}
  writer: {isolation: {ports: [%[1]d], missing: degrade}}
  plain: {isolation: {mode: none, ports: [%[1]d]}}
`, last, first-1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	found := refusedPorts(cfg)
	if len(found) != 1 || !strings.HasPrefix(found[0], fmt.Sprintf("coder: its gateway can't start: another profile can take its port %d, because", last)) || !strings.Contains(found[0], "--sysctl") {
		t.Errorf("%q", found)
	}
}
