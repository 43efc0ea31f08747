package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRealWays runs commands over a shared socket and over an attached exec. Describe must report
// which one is in use.
func TestRealWays(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*Options)
		noMounts bool
		exec     string
		reason   string
	}{
		"direct":   {func(*Options) {}, false, ExecDirect, ""},
		"attached": {func(*Options) {}, true, ExecAttached, "not mounted"},
		"noexec, in a mount": {func(o *Options) {
			o.ExtraArgs = append(o.ExtraArgs, "--read-only")
		}, false, ExecDirect, ""},
	} {
		t.Run(name, func(t *testing.T) {
			requireEngine(t)
			o := realOptions(t)
			forwardSecret(t, &o)
			c.change(&o)
			removeAtCleanup(t, o)
			m := realManager(t, o)
			m.mountsUnusable.Store(c.noMounts)
			s := openSandbox(t, m, "")
			d, err := s.Describe(t.Context())
			if err != nil || d.Exec != c.exec || !strings.Contains(d.Reason, c.reason) {
				t.Fatalf("%q because of %q; %v", d.Exec, d.Reason, err)
			}
			checkOutput(t, s, "cd /tmp; export A='x y'", "")
			checkOutput(t, s, "echo $A $SECRET; pwd", "x y hunter2\n/tmp")
			var out, errs bytes.Buffer
			res, err := s.Exec(t.Context(), Request{Command: "cat; echo e >&2; exit 3", Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs})
			if err != nil || res.Code != 3 || out.String() != "in" || errs.String() != "e\n" {
				t.Errorf("%+v, %v, %q, %q", res, err, out.String(), errs.String())
			}
			res, err = s.Exec(t.Context(), Request{Command: "sleep 98766", Timeout: 500 * time.Millisecond})
			if err != nil || res.Code != 124 || !res.TimedOut {
				t.Errorf("%+v, %v", res, err)
			}
			retryUntilNil(t, func() error { return checkProcessEnded(t, s.ID(), "sleep 98766") })
			if inspect := dockerCmd(t, "inspect", s.ID()); strings.Contains(inspect, "hunter2") {
				t.Error("the secret can be inspected")
			}
			_, err = runDuring(t, s, Request{Command: "sleep 600"}, func() { dockerCmd(t, "rm", "-f", s.ID()) })
			checkLostByRemoval(t, err)
			checkOutput(t, s, "echo back", "back")
		})
	}
}

// TestRealAttachedClientDies checks that the commands of a client with an attached exec end when the client is killed.
func TestRealAttachedClientDies(t *testing.T) {
	requireEngine(t)
	o := realOptions(t)
	removeAtCleanup(t, o)
	m := realManager(t, o)
	m.mountsUnusable.Store(true)
	s := openSandbox(t, m, "")
	client := helperProcess(t, o, "hold", "sleep 98767")
	retryUntilNil(t, func() error {
		if checkProcessEnded(t, s.ID(), "sleep 98767") == nil {
			return errors.New("it has not begun")
		}
		return nil
	})
	_ = client.Process.Kill()
	_ = client.Wait()
	retryUntilNil(t, func() error { return checkProcessEnded(t, s.ID(), "sleep 98767") })
	checkOutput(t, s, "echo ours goes on", "ours goes on")
}

// TestRealDiskFull checks that a session keeps its earlier state if there is no space to save the state after a
// command.
func TestRealDiskFull(t *testing.T) {
	_, s := newRealSandbox(t, func(o *Options) { o.ExtraArgs = append(o.ExtraArgs, "--tmpfs", "/tmp:size=1m") })
	checkOutput(t, s, "export A=kept; cd /workspace", "")
	if _, res := runForOutput(t, s, "export B=lost; cd /; cat /dev/zero > /tmp/fill"); res.Code != 1 {
		t.Error(res)
	}
	checkOutput(t, s, "echo $A $B; pwd", "kept\n/workspace")
	checkOutput(t, s, "rm /tmp/fill; export B=new", "")
	checkOutput(t, s, "echo $A $B", "kept new")
}

// TestRealAdopt checks that a container made by the docker command can be used without a change.
func TestRealAdopt(t *testing.T) {
	requireEngine(t)
	o := realOptions(t)
	m := realManager(t, o)
	id := dockerCmd(t, "run", "-d", "--network=none", "--label", testRun+"=1", "--user", "1000", testImageTag, "sleep", "1000")
	s, err := m.Adopt(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if res, err := s.Exec(t.Context(), Request{Argv: []string{"id", "-u"}, Stdout: &out}); err != nil || res.Code != 0 || out.String() != "1000\n" {
		t.Errorf("%+v, %v, %q", res, err, out.String())
	}
	m.ForgetAdopted(id)
	if state := dockerCmd(t, "inspect", "-f", "{{.State.Status}}", id); state != "running" {
		t.Error(state)
	}
	if got, _, err := m.Sweep(t.Context(), SweepOptions{MaxAge: time.Nanosecond}); err != nil || len(got) != 0 {
		t.Errorf("the sweep took %v, %v", got, err)
	}
	dockerCmd(t, "rm", "-f", id)
	if _, err := m.Adopt(t.Context(), id); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}

// TestRealAnotherHome checks that commands are not slower in a container that was made with another
// HOME.
func TestRealAnotherHome(t *testing.T) {
	_, made := newRealSandbox(t, nil)
	id, _ := made.idAndName()
	ctx, cancel := context.WithTimeout(t.Context(), listenTimeout-time.Second)
	defer cancel()
	s, err := realManager(t, realOptions(t)).Adopt(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.Exec(ctx, Request{Argv: []string{"true"}})
	if err != nil || res.Code != 0 {
		t.Fatal(res, err)
	}
	if d, err := s.Describe(ctx); err != nil || d.Exec != ExecAttached {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestRealAdoptWithoutTheEngine checks that a command does not ask the engine if the helper
// answers, because a loaded engine is slow.
func TestRealAdoptWithoutTheEngine(t *testing.T) {
	m, made := newRealSandbox(t, nil)
	checkOutput(t, made, "echo it listens", "it listens")
	e, err := Docker("unix://" + t.TempDir() + "/no.sock")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewManager(e, m.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s, err := other.Adopt(t.Context(), made.ID())
	if err != nil {
		t.Fatal(err)
	}
	if res, err := s.Exec(t.Context(), Request{Argv: []string{"sh", "-c", "exit 7"}}); err != nil || res.Code != 7 {
		t.Error(res, err)
	}
	if got := s.Labels(); !maps.Equal(got, made.Labels()) {
		t.Errorf("its labels are %v", got)
	}
	other.ForgetAdopted(made.ID())
	dockerCmd(t, "stop", "-t", "0", made.ID())
	if _, err := other.Adopt(t.Context(), made.ID()); !errors.Is(err, ErrNoEngine) {
		t.Errorf("one that does not run: %v", err)
	}
}

// TestRealOtherUser checks a container whose user is neither root nor the client's user.
func TestRealOtherUser(t *testing.T) {
	_, s := newRealSandbox(t, func(o *Options) {
		o.ExtraArgs = append(o.ExtraArgs, "--user", "1000:1000", "--workdir", "/")
		o.Cwd = "/no/such" // This directory does not exist, so commands must begin in another one.
	})
	checkOutput(t, s, "id -u; pwd; cd /tmp; export X=1", "1000\n/")
	checkOutput(t, s, "echo $X; pwd", "1\n/tmp")
	if d, err := s.Describe(t.Context()); err != nil || d.Exec != ExecDirect {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestRealClientOfAnotherUser checks a client that is neither root nor the container's user. It may
// use the socket, because no other user of this machine can reach it.
func TestRealClientOfAnotherUser(t *testing.T) {
	requireEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	o := realOptions(t)
	dir, err := os.MkdirTemp("", "hinit-sandbox-other-") //nolint:usetesting // another user must be able to enter this directory
	if err = errors.Join(err, os.Chmod(filepath.Dir(o.HelperPath), 0o755), os.Chown(dir, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	removeAtCleanup(t, o)
	o.Dir = dir
	if err := helperProcess(t, o, "run", "id -u > /workspace/user", "CLIENT_USER=12345", "CLIENT_WAY="+ExecDirect).Wait(); err != nil {
		t.Fatal(err)
	}
	if user, err := os.ReadFile(filepath.Join(o.Dir, "docker/default/workspace/user")); err != nil || string(user) != "0\n" {
		t.Errorf("it ran as %q: %v", user, err)
	}
}

// TestStall checks that a call fails in time if an engine accepts a connection and never answers.
func TestStall(t *testing.T) {
	old := engineAnswerTimeout
	engineAnswerTimeout = 200 * time.Millisecond
	defer func() { engineAnswerTimeout = old }()
	l, err := net.Listen("unix", t.TempDir()+"/engine.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := Docker("unix://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(e, fakeOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Open(t.Context(), Key{}); !errors.Is(err, ErrNoEngine) || !strings.Contains(err.Error(), "not responding") {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := m.Open(ctx, Key{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// secondEngine is a container engine for a single test, in its own network namespace.
type secondEngine struct {
	t    *testing.T
	dir  string
	host string
	cmd  *exec.Cmd
	log  *os.File
	hide []string // Directories of this machine that are hidden from the engine.
}

func newEngine(t *testing.T, hide ...string) *secondEngine {
	t.Helper()
	if _, err := exec.LookPath("dockerd"); err != nil || os.Getuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no dockerd, or it is not root's test")
		}
		t.Skip("there is no dockerd, or this is not root")
	}
	dir, err := os.MkdirTemp("", "hs") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	e := &secondEngine{t: t, dir: dir, host: "unix://" + dir + "/d.sock", hide: hide}
	if e.log, err = os.Create(dir + "/log"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.stop(os.Interrupt)
		e.log.Close()
		e.cleanUp()
	})
	e.start()
	return e
}

func (e *secondEngine) start() {
	e.t.Helper()
	if err := os.WriteFile(e.dir+"/daemon.json", []byte("{}"), 0o600); err != nil {
		e.t.Fatal(err)
	}
	e.cmd = exec.Command("dockerd", "--config-file", e.dir+"/daemon.json", "--host", e.host, "--data-root", e.dir+"/data", "--exec-root", e.dir+"/exec", "--pidfile", e.dir+"/pid",
		"--bridge=none", "--iptables=false", "--ip-masq=false", "--storage-driver=vfs", "--log-level=error", "--cgroup-parent", "/"+filepath.Base(e.dir))
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	// An engine without a bridge removes docker0 when it starts, so run it in another network
	// namespace.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if len(e.hide) > 0 {
		script := `for dir in ` + strings.Join(e.hide, " ") + `; do mount -t tmpfs none "$dir" || exit 1; done; exec "$0" "$@"`
		e.cmd.Path, e.cmd.Args = "/bin/sh", append([]string{"sh", "-c", script}, e.cmd.Args...)
		e.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS // In its own mount namespace, these mounts hide nothing from other processes.
	}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	retryUntilNil(e.t, func() error {
		if out, err := exec.Command("docker", "-H", e.host, "version").CombinedOutput(); err != nil {
			log, _ := os.ReadFile(e.dir + "/log")
			return fmt.Errorf("%w: %s: %s", err, out, log)
		}
		return nil
	})
}

// loadTestImage loads the test image into the engine.
func (e *secondEngine) loadTestImage() {
	e.t.Helper()
	image := exec.Command("sh", "-c", "docker save "+testImageTag+" | docker -H "+e.host+" load")
	if out, err := image.CombinedOutput(); err != nil {
		e.t.Fatalf("%v: %s", err, out)
	}
}

// stop signals the engine. After SIGKILL, its containers and its containerd keep running.
func (e *secondEngine) stop(signal os.Signal) {
	if e.cmd != nil {
		_ = e.cmd.Process.Signal(signal)
		_ = e.cmd.Wait()
		e.cmd = nil
		// If process 1 reaps no orphans, the dead containerd stays a zombie, and the next engine would take
		// it for alive.
		_ = os.Remove(e.dir + "/exec/containerd/containerd.pid")
	}
}

// cleanUp kills processes of a killed engine, found by the engine's directory in their command line
// or control group.
func (e *secondEngine) cleanUp() {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range pids {
		line, _ := os.ReadFile(dir + "/cmdline")
		group, _ := os.ReadFile(dir + "/cgroup")
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() &&
			(bytes.Contains(line, []byte(e.dir+"/")) || bytes.Contains(group, []byte("/"+filepath.Base(e.dir)+"/"))) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.HasPrefix(f[1], e.dir+"/") {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(e.dir); err != nil {
		e.t.Log(err)
	}
}

// TestRealEngineRestarts checks that commands survive the death of the engine, and that containers
// that the restarted engine ends are started again.
func TestRealEngineRestarts(t *testing.T) {
	requireEngine(t)
	e := newEngine(t)
	e.loadTestImage()
	o := realOptions(t)
	o.MemoryMB, o.CPUs = 0, 0
	engine, err := Docker(e.host)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(engine, o)
	if err != nil {
		t.Fatal(err)
	}
	s := openSandbox(t, m, "")
	id := s.ID()
	checkOutput(t, s, "echo hello; cd /workspace", "hello")
	res, err := runDuring(t, s, Request{Command: "sleep 0.3; echo x >> ran"}, func() { e.stop(os.Kill) })
	if err != nil || res.Code != 0 {
		t.Fatalf("the command under which the engine died: %+v, %v", res, err)
	}
	checkOutput(t, s, "cat ran", "x")
	s.dropLink(s.link)
	checkOutput(t, s, "echo no engine is needed", "no engine is needed")
	// The engine ends all running containers when it starts.
	_, err = runDuring(t, s, Request{Command: "sleep 600"}, func() { e.start() })
	if err == nil || !errors.Is(err, ErrLost) {
		t.Errorf("the command under which the engine came back: %v", err)
	}
	checkOutput(t, s, "cat ran; pwd", "x\n/workspace")
	if s.ID() != id {
		t.Error("it is another container")
	}
	e.stop(os.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := m.Open(ctx, Key{Task: "another"}); !errors.Is(err, ErrNoEngine) {
		t.Errorf("without an engine: %v", err)
	}
	e.start()
	if err := removeSandboxes(t.Context(), m, Key{}); err != nil {
		t.Error(err)
	}
	if _, err := engine.Inspect(t.Context(), id); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}
