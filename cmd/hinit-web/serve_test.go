package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"hinit/client/dial"
	"hinit/internal/isolation"
	"hinit/internal/testkit"
	"hinit/internal/web"
)

// testSocketVar makes the test binary connect to the socket in its value and print the answer.
const testSocketVar = "WEB_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(testSocketVar); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			panic(err)
		}
		_, _ = io.Copy(os.Stdout, c)
		return
	}
	os.Exit(m.Run())
}

// The page must not answer an isolated profile on its Unix socket, even if the profile has the page's own user. Otherwise the
// profile could stop all gateways.
func TestAnIsolatedProfileGetsNoAnswerByTheSocketOfThePage(t *testing.T) {
	testkit.NeedRoot(t)
	if isolation.LandlockABI() < 6 {
		testkit.SkipOrFail(t, "the kernel's Landlock lacks a part")
	}
	dir, err := os.MkdirTemp("/var/tmp", "hinit-web-") //nolint:usetesting // another user has to enter this directory
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
	h := &hinitSource{Client: dial.New(dir + "/control.sock")}
	if err := os.WriteFile(dir+"/isolated", []byte("asking\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := web.Listen(t.Context(), "unix:"+dir+"/socket", h.mayConnect)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []string{dir, dir + "/hinit-isolate", dir + "/socket"} {
		if err := os.Chmod(path, 0o777); err != nil { //nolint:gosec // another user has to connect
			t.Fatal(err)
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("answer"))
			_ = c.Close()
		}
	}()
	ask := func(argv ...string) string {
		cmd := exec.Command("setpriv", append([]string{"--reuid=12321", "--regid=12321", "--clear-groups"}, argv...)...)
		cmd.Env = []string{testSocketVar + "=" + dir + "/socket"}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if got := ask(dir + "/ask"); got != "answer" {
		t.Errorf("another process gets %q", got)
	}
	plan := testkit.IsolationPlan{Name: "asking", Home: dir + "/home", Read: []string{dir + "/ask"}}
	if got := ask(plan.Argv(dir+"/"+isolation.Program, []string{dir + "/ask"})...); got != "" {
		t.Errorf("an isolated process gets %q", got)
	}
}

// After a reload has isolated profiles, a page without a token must refuse requests. Otherwise it would still show the logs of
// all profiles.
func TestAReloadThatIsolatesProfilesClosesThePageWithoutAToken(t *testing.T) {
	dir := t.TempDir()
	h := &hinitSource{Client: dial.New(dir + "/control.sock")}
	page := h.refuseIsolated(http.NotFoundHandler())
	code := func() int {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Code
	}
	for _, one := range []struct {
		list string
		want int
	}{{"", http.StatusNotFound}, {"coder\n", http.StatusForbidden}, {"", http.StatusNotFound}} {
		if err := os.WriteFile(dir+"/isolated", []byte(one.list), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := code(); got != one.want {
			t.Errorf("with the list %q the page answers %d, want %d", one.list, got, one.want)
		}
	}
}
