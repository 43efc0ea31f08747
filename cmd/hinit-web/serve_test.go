package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"hinit/internal/isolation"
	"hinit/internal/testkit"
)

// askVar makes the test binary connect to a socket and print what it reads.
const askVar = "WEB_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(askVar); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			panic(err)
		}
		_, _ = io.Copy(os.Stdout, c)
		return
	}
	os.Exit(m.Run())
}

// An isolated profile with the page's own user could stop all gateways by the page's Unix socket.
func TestAnIsolatedProfileGetsNoAnswerByTheSocketOfThePage(t *testing.T) {
	testkit.NeedRoot(t)
	if isolation.LandlockABI() < 6 {
		testkit.Cannot(t, "the kernel's Landlock lacks a part")
	}
	dir, err := os.MkdirTemp("/var/tmp", "hinit-web-") //nolint:usetesting // another user has to enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir); _ = os.Remove("/tmp/hinit-asking-12321") })
	if err := testkit.Build(dir, "hinit-isolate"); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = testkit.WriteProgram(dir+"/ask", self)
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []string{dir, dir + "/hinit-isolate", dir + "/socket"} {
		if err := os.Chmod(path, 0o777); err != nil { //nolint:gosec // the same
			t.Fatal(err)
		}
	}
	go func() {
		for {
			c, err := ownersOnly{l}.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("answer"))
			_ = c.Close()
		}
	}()
	ask := func(argv ...string) string {
		cmd := exec.Command("setpriv", append([]string{"--reuid=12321", "--regid=12321", "--clear-groups"}, argv...)...)
		cmd.Env = []string{askVar + "=" + dir + "/socket"}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if got := ask(dir + "/ask"); got != "answer" {
		t.Errorf("another process gets %q", got)
	}
	plan := testkit.Plan{Name: "asking", Home: dir + "/home", Read: []string{dir + "/ask"}}
	if got := ask(plan.Argv(dir+"/"+isolation.Program, []string{dir + "/ask"})...); got != "" {
		t.Errorf("an isolated process gets %q", got)
	}
}
