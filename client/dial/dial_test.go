package dial_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

func TestDialTakesTheFirstThatListens(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	alive := serveHTTP(t, nil).Socket()
	missing := filepath.Join(dir, "missing")

	c, err := dial.Dial([]string{missing, stale, alive})
	if err != nil || c.Socket() != alive {
		t.Fatalf("got %v, %v", c, err)
	}
	_, err = dial.Dial([]string{missing, stale})
	if !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), stale) {
		t.Errorf("two that do not listen: %v", err)
	}
	_, err = dial.Dial([]string{stale})
	if !errors.Is(err, client.ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("one that does not listen: %v", err)
	}
	if _, err = dial.Dial(nil); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("no candidates: %v", err)
	}
}

// TestTheInitIsFoundWhereItListensNow checks that a client finds the init again after the init has
// changed its socket.
func TestTheInitIsFoundWhereItListensNow(t *testing.T) {
	dir := ""
	c := dial.ForThisContainer("", func(name string) (string, bool) { return dir, name == "HINIT_RUNTIME_DIR" })
	for _, home := range []string{"/first", "/second"} {
		t.Run(home, func(t *testing.T) { // The server ends with the subtest, so each subtest needs a new one.
			alive := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"init":{"home":"`+home+`"}}`) })
			dir = filepath.Dir(alive.Socket())
			if err := os.Symlink("s", dir+"/control.sock"); err != nil {
				t.Fatal(err)
			}
			st, err := c.Status(t.Context())
			if err != nil || st.Init.Home != home || c.Socket() != dir+"/control.sock" {
				t.Errorf("%+v, %v at %q", st.Init, err, c.Socket())
			}
		})
	}
}

// runAsUser runs this test binary as another user, and returns its output. It needs root.
func runAsUser(t *testing.T, uid int, env ...string) string {
	return runAsUserInRoot(t, "", uid, env...)
}

// runAsUserInRoot is runAsUser with another root directory; "" means the present one.
func runAsUserInRoot(t *testing.T, root string, uid int, env ...string) string {
	t.Helper()
	return runTestBinary(t, []string{"test"}, &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}, env)
}

// runAsPID1 runs this test binary with a command line as process 1 of a PID namespace.
func runAsPID1(t *testing.T, argv []string, env ...string) string {
	t.Helper()
	return runTestBinary(t, argv, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}, append(env, "CLIENT_TEST_PROC=1"))
}

func runTestBinary(t *testing.T, argv []string, as *syscall.SysProcAttr, env []string) string {
	t.Helper()
	testkit.NeedRoot(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := os.StartProcess("/proc/self/exe", argv, &os.ProcAttr{Dir: "/", Env: append(os.Environ(), env...), Files: []*os.File{nil, w, os.Stderr}, Sys: as})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(r)
	if state, err := p.Wait(); err != nil || !state.Success() {
		t.Fatalf("child: %v, %v", state, err)
	}
	return string(out)
}

func TestDialTellsAForbiddenSocket(t *testing.T) {
	private := serveHTTP(t, nil).Socket()
	if err := os.Chmod(filepath.Dir(private), 0o700); err != nil {
		t.Fatal(err)
	}
	out := runAsUser(t, 65534, "CLIENT_TEST_DIAL=/missing/socket|"+private)
	if !strings.HasPrefix(out, "true false cannot reach hinit: this user may not open") {
		t.Errorf("got %s", out)
	}
}

// TestAStrangerThatExchangesTheSocketIsNotTrusted checks that a client does not trust a socket that
// another user has put in place of root's.
func TestAStrangerThatExchangesTheSocketIsNotTrusted(t *testing.T) {
	testkit.NeedRoot(t)
	path := t.TempDir() + "/control.sock"
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	listening := make(chan error, 1)
	go func() { listening <- listenAsUser(fd, 65534) }() // The thread of this goroutine becomes uid 65534 and ends with the goroutine.
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	if _, err := dial.Dial([]string{path}); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "uid 65534 has taken the name") {
		t.Errorf("a stranger's: %v", err)
	}
}

// TestAnInitOfAnotherContainerDoesNotAnswer checks that a client does not talk to another
// container's init, which it can reach through shared abstract sockets or /proc.
func TestAnInitOfAnotherContainerDoesNotAnswer(t *testing.T) {
	testkit.NeedRoot(t)
	socket, root := serveHTTP(t, nil).Socket(), t.TempDir()
	mounted := func(what, at string, flags uintptr) {
		if err := syscall.Mount(what, at, "tmpfs", flags, ""); err != nil {
			testkit.SkipOrFail(t, err.Error())
		}
		t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
	}
	mounted("tmpfs", root, 0)
	top, err := os.ReadDir("/")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range top { // The container has all files, but another root directory.
		at := filepath.Join(root, e.Name())
		link, err := os.Readlink("/" + e.Name())
		switch {
		case err == nil:
			err = os.Symlink(link, at)
		case e.IsDir():
			err = os.Mkdir(at, 0o755)
		default:
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.IsDir() {
			// Hide the mounts of other tests, which could not remove their directories otherwise.
			mounted("/"+e.Name(), at, syscall.MS_BIND)
		}
	}
	if dir := testkit.MemoryDir(); dir != "" { // With -short, the socket is on its own mount.
		mounted(dir, root+dir, syscall.MS_BIND)
	}
	if out := runAsUserInRoot(t, root, 0, "CLIENT_TEST_DIAL="+socket); !strings.HasPrefix(out, "false true") || !strings.Contains(out, "of another container") {
		t.Errorf("its socket by a shared path: %s", out)
	}
	through := "/proc/" + strconv.Itoa(os.Getpid()) + "/root" + socket
	if out := runAsUserInRoot(t, root, 0, "CLIENT_TEST_DIAL="+through); !strings.HasPrefix(out, "false false") {
		t.Errorf("its socket on purpose: %s", out)
	}
}

// TestTheInitOfAnotherContainerDoesNotAnswerWithoutASharedPIDNamespace checks that a client does
// not talk to another container's init if both mount one emptyDir on /run.
func TestTheInitOfAnotherContainerDoesNotAnswerWithoutASharedPIDNamespace(t *testing.T) {
	socket := serveHTTP(t, nil).Socket()
	if out := runAsPID1(t, []string{"hinit", "init"}, "CLIENT_TEST_DIAL="+socket); !strings.HasPrefix(out, "false true") || !strings.Contains(out, "the init of another container listens there") {
		t.Errorf("beside an init: %s", out)
	}
	if out := runAsPID1(t, []string{"sleep"}, "CLIENT_TEST_DIAL="+socket); !strings.HasPrefix(out, "false false") {
		t.Errorf("in a container without an init: %s", out)
	}
}

func TestWhatAnInitIsCalled(t *testing.T) {
	for line, want := range map[string]bool{
		"/init\x00/opt/hermes/docker/main-wrapper.sh\x00": true, "/usr/bin/tini\x00--\x00": true, "hinit\x00init\x00sleep\x001\x00": true, "/opt/hinit\x00run\x00": true,
		"hinit\x00status\x00": false, "hinit\x00": false, "sleep\x001000\x00": false, "": false,
	} {
		if dial.IsInit([]byte(line)) != want {
			t.Errorf("%q: %v", line, !want)
		}
	}
}

func TestAnAbstractNameThatAStrangerTookIsNotTrusted(t *testing.T) {
	name := "@hinit-client-test-" + strconv.Itoa(os.Getpid())
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := dial.Dial([]string{name}); err != nil {
		t.Errorf("one's own: %v", err)
	}
	if os.Geteuid() == 0 {
		if out := runAsUser(t, 65534, "CLIENT_TEST_DIAL="+name); !strings.HasPrefix(out, "false false") {
			t.Errorf("root's: %s", out)
		}
	}
	stranger := "@hinit-client-test-stranger-" + strconv.Itoa(os.Getpid())
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	// SO_PEERCRED shows the user of the listen(2) call, so this thread becomes another user for it.
	listening := make(chan error, 1)
	go func() {
		if os.Geteuid() != 0 {
			listening <- errors.New("needs root")
			return
		}
		err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: stranger})
		if err == nil {
			err = listenAsUser(fd, 65534)
		}
		listening <- err
	}()
	if err := <-listening; err != nil {
		testkit.SkipOrFail(t, err.Error())
	}
	if _, err := dial.Dial([]string{stranger}); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "uid 65534 has taken the name") {
		t.Errorf("a stranger's: %v", err)
	}
}

// TestRootWasToldThatNoHinitListensWhileAnAgentConnected checks that a client waits if an agent
// keeps the queue of new connections full.
func TestRootWasToldThatNoHinitListensWhileAnAgentConnected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	agent, err := net.Dial("unix", path) // This connection fills the queue of the socket.
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	if _, err := net.Dial("unix", path); !errors.Is(err, syscall.EAGAIN) {
		t.Fatal("the queue is not full:", err)
	}
	result := make(chan error, 1)
	go func() { result <- dial.New(path).CheckConnection() }()
	select {
	case err := <-result:
		t.Fatal("it did not wait:", err)
	case <-time.After(50 * time.Millisecond):
	}
	for range 2 {
		accepted, _, err := syscall.Accept(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(accepted)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}
