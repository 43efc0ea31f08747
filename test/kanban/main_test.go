package kanban_test

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client/dial"
	"hinit/internal/testkit"
)

var full = flag.Bool("full", false, "work on 300 tasks, kill the container five times, and take figures of 900 workers")

// span is the duration of the storm of reclaims.
var span = flag.Duration("span", 4*time.Second, "how long TestReclaimStorm reclaims and kills")

// bin is the directory of the built binaries.
var bin string

// stageVar makes this binary the first process of a PID namespace, which then executes its
// arguments.
const stageVar = "KANBAN_TEST_STAGE"

func TestMain(m *testing.M) {
	if os.Getenv(stageVar) != "" {
		fmt.Fprintln(os.Stderr, stage(os.Args[1:]))
		os.Exit(1)
	}
	if testkit.SkippedInShort() {
		return
	}
	testkit.IsolateProcess()
	testkit.LimitParallel(4)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp(parentDir(), "hk-") // The path must be short, and every user must be able to enter the directory.
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		bin = filepath.Join(dir, "bin")
		defer os.RemoveAll(dir)
		err = testkit.Build(bin, "hinit", "hinit-kanban", "example-agent")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// parentDir returns the parent directory of the tests' directories.
func parentDir() string { return cmp.Or(testkit.MemoryDir(), "/var/tmp") }

// stage mounts /proc in the new namespace and executes the command.
func stage(argv []string) error {
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		os.Unsetenv(stageVar),
	)
	if err != nil {
		return err
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}

// patience is the longest wait for an event that must come.
const patience = 3 * time.Minute

// boardContainer is a container with a board: hinit as PID 1 of a PID namespace, with the service kanban.
type boardContainer struct {
	*testing.T
	dir      string
	cmd      *exec.Cmd
	client   *dial.Client
	out      bytes.Buffer
	ended    chan struct{}
	extraEnv []string // Additional environment variables.
	home     string
}

const config = `home: %[1]s/home
agent:
  user: root
  binary: %[2]s/example-agent
  gateway: [/bin/sleep, "1000000"]
  gateway_default: [%[3]s]
  ready: up
services:
  kanban: {command: [%[2]s/hinit-kanban, serve], enabled_by: HINIT_KANBAN, notify: systemd, restart: {initial: 10ms, max: 100ms}}
boot: {hooks: []}
`

// gateway returns the command of the default gateway, which imitates the agent's use of the board
// if Python is installed.
func gateway(dir string) string {
	python, err := exec.LookPath("python3")
	script, failed := filepath.Abs("testdata/gateway.py")
	if err != nil || failed != nil {
		return `/bin/sleep, "1000000"`
	}
	return python + ", " + script + ", " + dir + "/home"
}

// newBoardContainer creates a volume with three profiles and boots it. board is the section kanban of
// config.yaml.
func newBoardContainer(t *testing.T, board string) *boardContainer {
	t.Helper()
	b := makeBoardContainer(t, board)
	b.boot()
	return b
}

func makeBoardContainer(t *testing.T, board string) *boardContainer {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("a PID namespace needs root")
		}
		t.Skip("a PID namespace needs root")
	}
	dir, err := os.MkdirTemp(parentDir(), "hkb-") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	b := &boardContainer{T: t, dir: dir, home: dir + "/home", client: dial.New(dir + "/run/control.sock")}
	for _, sub := range []string{"run", "locks", "home/profiles/coder", "home/profiles/ops"} {
		b.check(os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	for name, text := range map[string]string{
		"hinit.yaml": fmt.Sprintf(config, dir, bin, gateway(dir)), "home/config.yaml": "kanban:\n  dispatch_interval_seconds: 1\n" + board,
		"home/profiles/coder/SOUL.md": "coder\n", "home/profiles/ops/SOUL.md": "ops\n",
	} {
		b.check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	t.Cleanup(func() {
		b.kill()
		if t.Failed() {
			b.lastWords()
		}
		_ = os.RemoveAll(dir)
	})
	return b
}

func (b *boardContainer) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *boardContainer) lastWords() {
	log, _ := os.ReadFile(filepath.Join(b.dir, "home/logs/gateways/kanban/current"))
	tail := func(s string) string { return s[max(0, len(s)-4000):] }
	b.Logf("hinit said:\n%s\nthe dispatcher said:\n%s", tail(b.out.String()), tail(string(log)))
}

func (b *boardContainer) env() []string {
	return []string{
		"PATH=" + bin + ":/usr/bin:/bin", "HOME=/root", "HERMES_HOME=" + b.dir + "/home", "HINIT_RUNTIME_DIR=" + b.dir + "/run",
		"HINIT_CONFIG=" + b.dir + "/hinit.yaml", "HINIT_KANBAN=1", "EXAMPLE_KANBAN_TOOL=" + bin + "/hinit-kanban", "EXAMPLE_KANBAN_LOCKS=" + b.dir + "/locks",
		"HERMES_BIN=" + bin + "/example-agent", "HERMES_KANBAN_CRASH_GRACE_SECONDS=0", "HERMES_KANBAN_RATE_LIMIT_COOLDOWN_SECONDS=0",
		"HINIT_KANBAN_LEAVE_SECONDS=2",
	}
}

func (b *boardContainer) boot() {
	b.Helper()
	b.start()
	b.await("the service kanban to be up", func() bool {
		s, err := b.client.Service(b.Context(), "kanban")
		return err == nil && s.State == "up"
	})
}

func (b *boardContainer) start() {
	b.Helper()
	b.cmd = exec.Command("/proc/self/exe", bin+"/hinit", "init", "--", "sleep", "1000000")
	b.cmd.Env = append(append(b.env(), stageVar+"=1"), b.extraEnv...)
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	b.check(b.cmd.Start())
	b.ended = make(chan struct{})
	go func() {
		_ = b.cmd.Wait()
		close(b.ended)
	}()
}

// kill ends the container at once.
func (b *boardContainer) kill() {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Kill()
	<-b.ended
	b.cmd = nil
}

func (b *boardContainer) await(what string, so func() bool) {
	b.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// outside returns the matching processes' pids in the test's namespace.
func (b *boardContainer) outside(match func(cmdline, environ string) bool) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	if b.cmd == nil {
		return nil
	}
	mine, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.cmd.Process.Pid))
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != mine {
			continue // A frozen process's environment can't be read.
		}
		environ, _ := os.ReadFile(dir + "/environ")
		if !bytes.Contains(environ, []byte("HINIT_RUNTIME_DIR="+b.dir+"/run\x00")) {
			continue
		}
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err == nil && match(strings.ReplaceAll(string(cmdline), "\x00", " "), string(environ)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isDispatcher matches the process of the service.
func isDispatcher(cmdline, _ string) bool {
	return strings.HasPrefix(cmdline, bin+"/hinit-kanban serve")
}

// isWorker matches the workers of tasks.
func isWorker(cmdline, environ string) bool {
	return strings.Contains(cmdline, "work kanban task") && strings.Contains(environ, "HERMES_KANBAN_TASK=")
}
