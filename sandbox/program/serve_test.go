package program

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"hinit/internal/account"
	"hinit/internal/isolation"
	"hinit/internal/testkit"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// failingEngine is an engine that answers only its first call.
type failingEngine struct {
	controlCharEngine
	wasCalled bool
}

func (f *failingEngine) Info(context.Context) (sandbox.Info, error) {
	if f.wasCalled {
		return sandbox.Info{}, sandbox.ErrNoEngine
	}
	f.wasCalled = true
	return sandbox.Info{}, nil
}

func (*failingEngine) Inspect(context.Context, string) (sandbox.Container, error) {
	return sandbox.Container{ID: "1"}, nil
}

// TestTheLogSaysWhyTheAgentGetsNoSandbox checks that the log explains why all requests are refused,
// for example that the agent's user does not exist.
func TestTheLogSaysWhyTheAgentGetsNoSandbox(t *testing.T) {
	dir := t.TempDir()
	log, err := os.Create(dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	opts := sandbox.DefaultOptions()
	opts.HelperPath = "/proc/self/exe"
	set := settings{socket: dir + "/socket", state: dir + "/state", user: "no-such-user"}
	err = Program{func(string) (sandbox.FullEngine, error) { return &failingEngine{}, nil }}.serveUntil(t.Context(), set, opts, log)
	text, _ := os.ReadFile(log.Name())
	if err == nil || !strings.Contains(string(text), `cannot serve the agent: `) || !strings.Contains(string(text), "no-such-user") {
		t.Errorf("%v, with the log %q", err, text)
	}
	if _, err := os.Stat(set.socket); err == nil {
		t.Error("the socket is still there")
	}
}

// TestAnIsolatedProfileGetsNoSandbox checks that an isolated gateway gets no sandbox. It could
// otherwise mount the home of another profile.
func TestAnIsolatedProfileGetsNoSandbox(t *testing.T) {
	testkit.NeedRoot(t)
	if isolation.LandlockABI() < 6 {
		testkit.SkipOrFail(t, "the kernel's Landlock lacks a part")
	}
	dir := t.TempDir()
	if err := testkit.Build(dir, "hinit-isolate"); err != nil {
		t.Fatal(err)
	}
	start := func(argv ...string) int {
		cmd := exec.Command(argv[0], argv[1:]...)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		_, _ = out.Read(make([]byte, 1)) // The read returns when the process has executed its command.
		return cmd.Process.Pid
	}
	command := []string{"/bin/sh", "-c", "echo; exec sleep 1000"}
	t.Cleanup(func() { _ = exec.Command("rmdir", "/tmp/hinit-sandboxed-0").Run() })
	isolated := start(testkit.IsolationPlan{Name: "sandboxed", Home: dir}.Argv(dir+"/"+isolation.Program, command)...)
	plain := start(command...)
	l, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	agent := &account.User{UID: 12321}
	for _, c := range []struct {
		pid      int
		uid      uint32
		isolates bool
		may      bool
	}{
		{plain, 12321, true, true},
		{isolated, 12321, true, false},
		{isolated, 12321, false, true},
		{plain, 12322, true, false},
		{isolated, 0, true, true},
		{1 << 30, 12321, true, false},
		{0, 12321, true, false},
		{0, 12321, false, true},
		{0, 0, true, true}, // A process in another PID namespace, as in a pod with the service as a sidecar.
	} {
		err := newCallerCheck(agent, func() bool { return c.isolates })(daemon.Peer{PID: c.pid, UID: c.uid, Conn: conn})
		if (err == nil) != c.may {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
