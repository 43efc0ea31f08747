// Package top tests the finished hinit-top, on a real terminal (tmux) and against a real PID 1.
package top_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

// stageVar makes this test binary the first process of the namespaces. It holds the program to
// execute.
const stageVar = "HINIT_TOP_STAGE"

// built is the directory of the binaries.
var built string

func TestMain(m *testing.M) {
	if program := os.Getenv(stageVar); program != "" {
		fmt.Fprintln(os.Stderr, "stage:", stage(program))
		os.Exit(125)
	}
	testkit.LimitParallel(6) // Run more tests than processors, because they mostly wait.
	os.Exit(run(m))
}

func run(m *testing.M) int {
	testkit.IsolateProcess()
	root, err := os.MkdirTemp("/var/tmp", "hinit-top-")
	if err == nil {
		defer os.RemoveAll(root)
		built, err = root, installPrograms(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// installPrograms installs the binaries: those in HINIT_TEST_BIN, or freshly built ones.
func installPrograms(dir string) error {
	if from := os.Getenv("HINIT_TEST_BIN"); from != "" {
		return os.CopyFS(dir, os.DirFS(from))
	}
	return testkit.Build(dir, "hinit", "hinit-top", "example-agent")
}

// stage mounts /proc in the namespace and executes the init.
func stage(program string) error {
	err := errors.Join(os.Unsetenv(stageVar), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	if err != nil {
		return err
	}
	return syscall.Exec(program, []string{"init", "gateway", "run"}, os.Environ())
}

// container is a volume with a PID 1.
type container struct {
	t      *testing.T
	dir    string
	env    []string
	client *dial.Client
	cmd    *exec.Cmd

	terminals int // Number of opened terminals.
}

// newContainer creates a volume with running profiles. config is appended to hinit.yaml.
func newContainer(t *testing.T, config string, profiles ...string) *container {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	testkit.NeedRoot(t)
	dir, err := os.MkdirTemp(built, "h") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	h := &container{t: t, dir: dir, client: dial.New(filepath.Join(dir, "control.sock"))}
	h.env = append(os.Environ(), "HINIT_CONFIG="+dir+"/hinit.yaml", "HERMES_HOME="+dir+"/data")
	h.write("hinit.yaml", fmt.Sprintf("home: %[1]s/data\nagent: {user: \"0:0\", binary: %[2]s/example-agent}\ncontrol: {socket: %[1]s/control.sock}\n%[3]s", dir, built, config))
	h.write("data/SOUL.md", "The root profile.\n")
	for _, p := range profiles {
		h.write("data/profiles/"+p+"/SOUL.md", p+"\n")
		h.write("data/profiles/"+p+"/gateway_state.json", `{"desired_state":"running"}`)
	}
	return h
}

func (h *container) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

// boot starts PID 1 in its own namespaces, which end with the test.
func (h *container) boot() {
	h.t.Helper()
	console, err := os.Create(h.dir + "/console")
	if err != nil {
		h.t.Fatal(err)
	}
	defer console.Close()
	h.cmd = exec.Command("/proc/self/exe")
	h.cmd.Env = append(h.env, stageVar+"="+built+"/hinit")
	h.cmd.Stdout, h.cmd.Stderr = console, console
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	ended := make(chan struct{})
	cmd := h.cmd
	go func() {
		runtime.LockOSThread() // The end of this thread kills PID 1.
		started <- cmd.Start()
		_ = cmd.Wait()
		close(ended)
	}()
	if err := <-started; err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if text, _ := os.ReadFile(h.dir + "/console"); h.t.Failed() {
			h.t.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
	testkit.Until(h.t, "hinit answers", func() bool {
		health, err := h.client.Health(h.t.Context())
		return err == nil && health.OK
	})
}

// terminal is a terminal of tmux in which hinit top runs.
type terminal struct {
	t    *testing.T
	name string // Name of the tmux socket.
	keys int
}

func tmux(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "tmux", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// top starts hinit top on a terminal of the given size.
func (h *container) top(width, height int, args ...string) *terminal {
	h.t.Helper()
	return h.shell(width, height, built+"/hinit top "+strings.Join(args, " "))
}

func (h *container) shell(width, height int, command string) *terminal {
	h.t.Helper()
	return h.runOnTerminal(h.t, width, height, command)
}

// runOnTerminal runs a command on a terminal of the given size.
func (h *container) runOnTerminal(t *testing.T, width, height int, command string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		testkit.SkipOrFail(t, "needs tmux: apt-get install tmux")
	}
	w := &terminal{t: t, name: fmt.Sprint(h.dir, "/tmux", h.terminals)}
	h.terminals++
	script := filepath.Join(h.dir, "top.sh")
	text := "#!/bin/sh\ntrap : INT\n" // Ctrl-C must reach the command that the shell runs.
	for _, kv := range h.env {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "HINIT_") || strings.HasPrefix(name, "HERMES_") || name == "NO_COLOR" {
			text += "export " + name + "='" + value + "'\n"
		}
	}
	h.write("top.sh", text+command+"\necho it has ended with $?\nexec sleep 1000000\n")
	tmux(t, "-S", w.name, "-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), "sh "+script,
		";", "set-option", "-g", "status", "off", ";", "set-option", "-g", "window-size", "manual",
		";", "resize-window", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height))
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("tmux", "-S", w.name, "capture-pane", "-p").CombinedOutput()
			t.Logf("the terminal:\n%s", out)
		}
		_ = exec.Command("tmux", "-S", w.name, "kill-server").Run()
	})
	return w
}

func (w *terminal) screen() string { return tmux(w.t, "-S", w.name, "capture-pane", "-p") }

// press sends keys as tmux names them, and counts them.
func (w *terminal) press(keys ...string) {
	w.t.Helper()
	w.keys += len(keys)
	tmux(w.t, append([]string{"-S", w.name, "send-keys"}, keys...)...)
}

func (w *terminal) write(text string) {
	w.t.Helper()
	w.keys += len(text)
	tmux(w.t, "-S", w.name, "send-keys", "-l", text)
}

// awaitScreen waits until the screen has all the texts, and returns it.
func (w *terminal) awaitScreen(texts ...string) (screen string) {
	w.t.Helper()
	end := time.Now().Add(testkit.Patience)
	for {
		screen = w.screen()
		missing := ""
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				missing = text
			}
		}
		switch {
		case missing == "":
			return screen
		case time.Now().After(end):
			w.t.Fatalf("the screen never shows %q:\n%s", missing, screen)
		}
		<-time.After(30 * time.Millisecond)
	}
}

// escape presses Esc alone. A key right after Esc would count as that key with Alt.
func (w *terminal) escape() {
	w.t.Helper()
	w.press("Escape")
	<-time.After(200 * time.Millisecond)
}

func (w *terminal) resize(width, height int) {
	w.t.Helper()
	tmux(w.t, "-S", w.name, "resize-window", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height))
}

func (h *container) status(name string) client.Service {
	h.t.Helper()
	s, err := h.client.Service(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func asJSON(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

const (
	stopSignal = syscall.SIGSTOP
	contSignal = syscall.SIGCONT
)

var waiting = client.WaitOptions{Wait: true}

// run runs a command without a terminal, and returns its output and exit code.
func (h *container) run(program string, args ...string) (string, int) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), program, args...)
	cmd.Env = h.env
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
