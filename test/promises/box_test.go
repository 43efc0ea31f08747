package promises_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
)

// patience is the longest wait, even on a busy machine.
const patience = 2 * time.Minute

// testContainer is a container: a volume with a sequence of inits.
type testContainer struct {
	t    testing.TB
	dir  string // Directory of all files.
	home string // Home directory: the volume.

	setup
	client *dial.Client
	cmd    *exec.Cmd
	ended  chan struct{} // Closed when the namespace has ended and its output is written.
}

// setup lists the settings in which a container differs from the default.
type setup struct {
	config      string // Further lines of hinit.yaml, with keys that baseConfig lacks.
	uid         int    // uid of the agent's user; 0 means agentID.
	agent       string // Replaces the keys about the gateways in baseConfig.
	faults      bool   // Whether to use the binary with fault injection.
	env         []string
	shares      *testContainer // Container whose volume this container shares.
	stageConfig                // Program to execute; start sets Program and Argv.
	cmdline     []string
}

// baseConfig makes every gateway a shell script of its profile.
const baseConfig = `agent:
  user: "%d:%[1]d"
  binary: %s
%s
`

const scripted = `  gateway: [/bin/sh, "{profile_home}/run"]
  gateway_default: [/bin/sh, "{profile_home}/run"]
  ready: up
  profile_create: []
  profile_delete: []
  profile_rename: []`

// sleeper is an idle gateway that ends on SIGTERM.
const sleeper = "exec sleep 1000000\n"

func newTestContainer(t testing.TB, s setup) *testContainer {
	t.Helper()
	dir, err := os.MkdirTemp(built.root, "b") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	b := &testContainer{t: t, dir: dir, home: filepath.Join(dir, "home"), setup: s}
	if b.agent == "" {
		b.agent = scripted
	}
	if b.uid == 0 {
		b.uid = agentID
	}
	if b.cmdline == nil {
		b.cmdline = []string{"sleep", "1000000"}
	}
	if s.shares != nil {
		b.home = s.shares.home
	}
	b.check(os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(b.home, "profiles"), 0o755), os.Mkdir(b.path("run"), 0o755), chownTree(b.home, b.uid),
		os.WriteFile(b.path("hinit.yaml"), fmt.Appendf(nil, baseConfig+s.config, b.uid, built.agent, b.agent), 0o644))
	if b.User != 0 {
		b.check(os.Chown(b.path("run"), b.User, b.User))
	}
	b.client = dial.New(b.path("run/control.sock"))
	t.Cleanup(func() {
		b.kill()
		if t.Failed() {
			t.Logf("%s", b.lastWords())
		}
		_ = os.RemoveAll(dir)
	})
	return b
}

func (b *testContainer) path(name string) string { return filepath.Join(b.dir, name) }

func (b *testContainer) check(errs ...error) {
	b.t.Helper()
	if err := errors.Join(errs...); err != nil {
		b.t.Fatal(err)
	}
}

// profileDir returns the home of a profile. If the volume is mounted only in the container, the path leads through the
// container's PID 1.
func (b *testContainer) profileDir(name string) string {
	return filepath.Join(b.volume(), "profiles", name)
}

func (b *testContainer) volume() string {
	if b.Tmpfs != nil && b.cmd != nil {
		return fmt.Sprintf("/proc/%d/root%s", b.cmd.Process.Pid, b.home)
	}
	return b.home
}

// logLines returns the lines of a service's log files, oldest first, without time stamps.
func (b *testContainer) logLines(profile string) ([]string, error) {
	dir := filepath.Join(b.volume(), "logs", "gateways", profile)
	files, err := filepath.Glob(filepath.Join(dir, "current-*"))
	slices.Sort(files)
	var lines []string
	for _, file := range append(files, filepath.Join(dir, "current")) {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr)
		for line := range strings.Lines(string(text)) {
			lines = append(lines, strings.TrimSuffix(line[min(31, len(line)):], "\n"))
		}
	}
	return lines, err
}

// profile creates a profile whose gateway is a script.
func (b *testContainer) profile(name, script string) {
	b.t.Helper()
	b.check(b.tryMakeProfile(name, script))
}

func (b *testContainer) tryMakeProfile(name, script string) error {
	dir := b.profileDir(name)
	// SOUL.md comes last, because it makes the directory a profile.
	soul := filepath.Join(dir, "SOUL.md")
	return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "run"), []byte(script), 0o644), chownTree(dir, b.uid),
		os.WriteFile(soul, []byte("# "+name+"\n"), 0o644), os.Lchown(soul, b.uid, b.uid))
}

func (b *testContainer) profiles(n int, script string) []string {
	b.t.Helper()
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("p%03d", i))
		b.profile(names[i], script)
	}
	return names
}

func (b *testContainer) boot() {
	b.t.Helper()
	b.start()
	b.check(poll(patience, b.booted))
}

// booted returns an error until the boot is complete.
func (b *testContainer) booted() error {
	if !b.running() {
		return errHopeless
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.client.Rescan(ctx)
}

func (b *testContainer) start() {
	b.t.Helper()
	o := b.stageConfig
	if o.Host != "" {
		o.Named = b.path("hostname")
		b.check(os.WriteFile(o.Named, []byte(o.Host+"\n"), 0o644))
	}
	o.Owner, o.Program, o.Argv = b.uid, built.shipped, append([]string{"hinit", "init", "--"}, b.cmdline...)
	if b.faults {
		o.Program = built.faulty
	}
	text, err := json.Marshal(o)
	b.check(err)
	_ = os.Remove(b.client.Socket()) // A new container has an empty /run, too.
	self, err := os.Executable()
	b.check(err)
	cmd := &exec.Cmd{Path: self, Args: []string{self}, Dir: "/", Env: []string{
		stageVar + "=" + string(text), "PATH=" + os.Getenv("PATH"), "HERMES_HOME=" + b.home,
		"HINIT_CONFIG=" + b.path("hinit.yaml"), "HINIT_RUNTIME_DIR=" + b.path("run"), "HINIT_FAULTS=" + b.path("faults"),
	}}
	cmd.Env = append(cmd.Env, b.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if b.Host != "" {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	}
	var streams sync.WaitGroup
	var ours []*os.File
	for name, stream := range map[string]*io.Writer{"out": &cmd.Stdout, "err": &cmd.Stderr} {
		file, err := os.OpenFile(b.path(name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		b.check(err)
		r, w, err := os.Pipe()
		b.check(err)
		*stream, ours = w, append(ours, w)
		streams.Go(func() {
			_, _ = io.Copy(file, r) // Copy returns when every writer has closed the pipe.
			_ = errors.Join(file.Close(), r.Close())
		})
	}
	started := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread() // The namespace ends when this thread ends.
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		for _, f := range ours {
			_ = f.Close() // The stage has its own copies of these files.
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // Only the exit code of the command matters.
		}
		streams.Wait()
	}()
	b.check(<-started)
	b.cmd, b.ended = cmd, ended
}

func (b *testContainer) running() bool {
	if b.cmd == nil {
		return false
	}
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

// kill kills all processes at once, as "docker kill" does.
func (b *testContainer) kill() {
	if b.running() {
		_ = b.cmd.Process.Kill()
		<-b.ended
	}
}

// wait waits for the init, and returns its exit code.
func (b *testContainer) wait(d time.Duration) int {
	b.t.Helper()
	select {
	case <-b.ended:
	case <-time.After(d):
		b.t.Fatalf("the init has not ended within %v", d)
	}
	if s := b.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		return 128 + int(s.Signal())
	}
	return b.cmd.ProcessState.ExitCode()
}

// stop ends the container, as "docker stop" does.
func (b *testContainer) stop() (code int, took time.Duration) {
	b.t.Helper()
	begin := time.Now()
	b.check(b.cmd.Process.Signal(unix.SIGTERM))
	return b.wait(patience), time.Since(begin)
}

// setFaultRules replaces the fault rules. Without rules, everything works.
func (b *testContainer) setFaultRules(rules ...string) {
	b.t.Helper()
	next := b.path("faults.new")
	b.check(os.WriteFile(next, []byte(strings.Join(rules, "\n")+"\n"), 0o644), os.Rename(next, b.path("faults")))
}

func (b *testContainer) service(name string) (client.Service, error) {
	if !b.running() {
		return client.Service{}, errHopeless
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.client.Service(ctx, name)
}

func (b *testContainer) status() client.Status {
	b.t.Helper()
	if !b.running() {
		b.t.Fatal(errHopeless)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := b.client.Status(ctx)
	b.check(err)
	return s
}

// checkState returns a check that a service is in the given state.
func (b *testContainer) checkState(name, state string) func() error {
	return func() error {
		s, err := b.service(name)
		if err == nil && s.State != state {
			err = fmt.Errorf("%s is %s (%s), not %s", name, s.State, s.Reason, state)
		}
		return err
	}
}

func (b *testContainer) commandAndAwait(verb, name string) error {
	return b.command(verb, name, client.WaitOptions{Wait: true})
}

// startAndAwait starts services and waits until they are up.
func (b *testContainer) startAndAwait(names ...string) {
	b.t.Helper()
	for _, name := range names {
		b.check(b.sendCommand("start", name))
	}
	for _, name := range names {
		b.check(poll(patience, b.checkState(name, client.StateUp)))
	}
}

// sendCommand sends a command without waiting for its effect.
func (b *testContainer) sendCommand(verb, name string) error {
	return b.command(verb, name, client.WaitOptions{})
}

func (b *testContainer) command(verb, name string, w client.WaitOptions) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	switch verb {
	case "start":
		_, err = b.client.Start(ctx, name, w)
	case "stop":
		_, err = b.client.Stop(ctx, name, w)
	case "restart":
		_, err = b.client.Restart(ctx, name, w)
	}
	return err
}

// reexec re-executes the init, and repeats the request while hinit refuses.
func (b *testContainer) reexec() {
	b.t.Helper()
	within(b.t, patience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := b.client.Reexec(ctx, "")
		if err != nil && !strings.Contains(err.Error(), "try again") {
			b.t.Fatal(err)
		}
		return err
	})
}

// enter runs a program in the container.
func (b *testContainer) enter(argv ...string) ([]byte, error) {
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(b.cmd.Process.Pid), "-p", "-m", "--"}, argv...)...)
	return cmd.CombinedOutput()
}

// lastWords describes the container for a failed test.
func (b *testContainer) lastWords() string {
	var out strings.Builder
	for _, name := range []string{"out", "err"} {
		text, _ := os.ReadFile(b.path(name))
		const most = 6000
		fmt.Fprintf(&out, "--- %s ---\n%s\n", name, text[max(0, len(text)-most):])
	}
	return out.String()
}

type process struct {
	pid, ppid, innerPID int
	uid, threads        int
	state               byte
	name                string
}

// hasEnded reports whether all threads have ended. The kernel shows a zombie as soon as the first
// thread has ended.
func (p process) hasEnded() bool { return (p.state == 'Z' || p.state == 'X') && p.threads <= 1 }

// processes lists all processes in the namespace except for the init, dead or alive.
func (b *testContainer) processes() []process {
	if !b.running() {
		return nil
	}
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.cmd.Process.Pid))
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc") // Without /proc, no processes are visible.
	var list []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == b.cmd.Process.Pid {
			continue
		}
		if mine, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err != nil || mine != space {
			continue
		}
		if p, ok := readProcess(pid); ok {
			list = append(list, p)
		}
	}
	return list
}

// readProcess reads the state of one process.
func readProcess(pid int) (process, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	p := process{pid: pid}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		switch key {
		case "Name":
			p.name = f[0]
		case "State":
			p.state = f[0][0]
		case "Threads":
			p.threads, _ = strconv.Atoi(f[0])
		case "PPid":
			p.ppid, _ = strconv.Atoi(f[0])
		case "Uid":
			p.uid, _ = strconv.Atoi(f[0])
		case "NSpid":
			p.innerPID, _ = strconv.Atoi(f[len(f)-1])
		}
	}
	return p, err == nil && p.innerPID != 0
}

// liveProcesses lists the living processes by the run that their environment names, except for the init and
// its CMD.
func (b *testContainer) liveProcesses() []process {
	return slices.DeleteFunc(b.processes(), func(p process) bool {
		return p.hasEnded() || p.name == "hinit-tools" && p.uid == 0 // Ignore the boot program, which changes owners in the background.
	})
}

// processesOf lists a service's living processes, by their inherited tag.
func (b *testContainer) processesOf(service string) []process {
	return slices.DeleteFunc(b.liveProcesses(), func(p process) bool {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		return err != nil || !bytes.Contains(env, []byte("HINIT_RUN="+service+":"))
	})
}

// zombies counts the unreaped processes.
func (b *testContainer) zombies() int {
	n := 0
	for _, p := range b.processes() {
		if p.hasEnded() && p.ppid == b.cmd.Process.Pid { // Other zombies are children of the test, which has not reaped them yet.
			n++
		}
	}
	return n
}

// checkReaped returns an error while a zombie exists.
func (b *testContainer) checkReaped() error {
	if n := b.zombies(); n > 0 {
		return fmt.Errorf("%d zombies are left", n)
	}
	return nil
}

// usage is PID 1's resource use.
type usage struct {
	residentBytes int // Resident memory in KiB.
	private       int // Private memory in KiB, without the program's pages.
	files         int
	threads       int
	cpu           time.Duration
}

func (b *testContainer) usage() usage {
	b.t.Helper()
	pid := b.cmd.Process.Pid
	var u usage
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	b.check(err)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch f[0] {
		case "VmRSS:":
			u.residentBytes, _ = strconv.Atoi(f[1])
		case "Threads:":
			u.threads, _ = strconv.Atoi(f[1])
		}
	}
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	b.check(err)
	for line := range strings.Lines(string(text)) {
		// The program's pages count as private if no other container runs it.
		if value, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			u.private, _ = strconv.Atoi(strings.Fields(value)[0])
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	b.check(err)
	u.files = len(fds)
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	b.check(err)
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	u.cpu = time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on every Linux.
	return u
}

func (b *testContainer) desired(profile string) string {
	text, err := os.ReadFile(filepath.Join(b.profileDir(profile), "gateway_state.json"))
	if err != nil {
		return ""
	}
	var s struct {
		Desired string `json:"desired_state"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return "unreadable: " + err.Error()
	}
	return s.Desired
}
