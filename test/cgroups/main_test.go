package cgroups_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

const (
	root    = "/sys/fs/cgroup"
	agentID = 10000
)

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	code := m.Run()
	_ = os.RemoveAll(programs.dir)
	os.Exit(code)
}

// programs holds the directory with hinit and the agent, which all containers share.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

func build() error {
	programs.once.Do(func() {
		programs.dir, programs.err = os.MkdirTemp("/var/tmp", "hinit-cgroups-bin-") // The agent's user must be able to enter the directory.
		programs.err = errors.Join(programs.err, testkit.Build(programs.dir, "hinit", "example-agent"), os.Chmod(programs.dir, 0o755))
	})
	return programs.err
}

// options are the settings in which a container differs from the default.
type options struct {
	limits   map[string]string // Contents of files in the container's control group.
	readOnly bool              // Whether the container may not write below /sys/fs/cgroup.
	config   string            // Further lines of hinit.yaml.
	agent    string            // Further keys of agent in hinit.yaml.
	profiles map[string]string // Contents of agent.conf by profile.
	scripts  map[string]string // Scripts that run instead of the agent, by profile.
	env      []string
}

type container struct {
	t     *testing.T
	o     options
	dir   string
	group string
	api   *dial.Client
	cmd   *exec.Cmd
	out   output
}

// output keeps the output of the container.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *output) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *output) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// newGroup creates a control group with all controllers, or skips the test.
func newGroup(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t)
	group := filepath.Join(root, fmt.Sprintf("hinit-cgroups-%d-%s", os.Getpid(), t.Name()))
	var fs unix.Statfs_t
	if unix.Statfs(root, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC || os.Mkdir(group, 0o755) != nil {
		t.Skip("needs writable control groups of version 2: make test-kernel")
	}
	t.Cleanup(func() {
		testkit.Until(t, "the control group to be empty", func() bool {
			entries, _ := os.ReadDir(group)
			for _, e := range entries {
				_ = unix.Rmdir(filepath.Join(group, e.Name())) // os.RemoveAll can't be used, because the kernel's files in the directory can't be removed.
			}
			_ = unix.Rmdir(group)
			return unix.Access(group, unix.F_OK) != nil
		})
	})
	for _, file := range []string{"memory.max", "cpu.weight", "pids.max"} {
		if unix.Access(filepath.Join(group, file), unix.W_OK) != nil {
			t.Skip("needs control groups of version 2 with the controllers memory, cpu and pids: make test-kernel")
		}
	}
	return group
}

// stage is the script that starts a container. $1 is its control group, $2 its directory, $3 the
// mount options of /sys/fs/cgroup, and the rest is the command.
const stage = `set -e
echo 0 >"$1/cgroup.procs"
exec unshare --cgroup sh -ec '
mount --make-rprivate /; mount -t proc proc /proc; mount -t tmpfs tmpfs "$2/dev"
for d in null zero full random urandom; do : >"$2/dev/$d"; mount --bind /dev/$d "$2/dev/$d"; done
: >"$2/dev/termination-log"; mount --bind "$2/last-words" "$2/dev/termination-log"; ln -s /proc/self/fd "$2/dev/fd"; mkdir "$2/dev/shm"
mount --rbind "$2/dev" /dev; mount -t tmpfs -o mode=1777 tmpfs /run
umount -l /sys/fs/cgroup; mount -t cgroup2 -o "$3" cgroup2 /sys/fs/cgroup
shift 3; exec "$@"' stage "$@"`

// gateway is the command of every gateway: its profile's script or the agent.
const gateway = `#!/bin/sh
[ ! -e "$3/run" ] || exec /bin/sh "$3/run"
exec "$1" -p "$2" gateway run --replace
`

func startContainer(t *testing.T, o options) *container {
	t.Helper()
	group := newGroup(t)
	dir, err := os.MkdirTemp("/var/tmp", "hinit-cgroups-") //nolint:usetesting // the agent's user has to enter this directory
	c := &container{t: t, o: o, dir: dir, group: group, api: dial.New(filepath.Join(dir, "run", "control.sock"))}
	c.check(err)
	t.Cleanup(func() {
		c.kill()
		if t.Failed() {
			t.Log(c.out.String())
		}
		_ = os.RemoveAll(dir)
	})
	c.check(build(), os.Chmod(dir, 0o755), os.Mkdir(c.path("run"), 0o755), os.Mkdir(c.path("dev"), 0o755))
	for file, value := range o.limits {
		c.check(os.WriteFile(filepath.Join(group, file), []byte(value), 0))
	}
	c.check(os.MkdirAll(c.path("home/profiles"), 0o755))
	for name, conf := range o.profiles {
		c.profile(name, map[string]string{"agent.conf": conf})
	}
	for name, script := range o.scripts {
		c.profile(name, map[string]string{"run": script})
	}
	c.check(filepath.WalkDir(c.path("home"), func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, agentID, agentID))
	}))
	c.check(os.WriteFile(c.path("gateway"), []byte(gateway), 0o755), os.WriteFile(c.path("last-words"), nil, 0o644))
	c.check(os.WriteFile(c.path("hinit.yaml"), fmt.Appendf(nil, `home: %[1]s/home
agent:
  user: "%[2]d:%[2]d"
  binary: %[5]s/example-agent
  gateway: [%[1]s/gateway, "{agent}", "{profile}", "{profile_home}"]
  %[3]s
stop: {grace: 2s}
control: {socket: %[1]s/run/control.sock}
%[4]s`, dir, agentID, o.agent, o.config, programs.dir), 0o644))
	c.boot()
	return c
}

func (c *container) path(name string) string { return filepath.Join(c.dir, name) }

func (c *container) check(errs ...error) {
	c.t.Helper()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
}

// profile makes the home of a profile, with files in it.
func (c *container) profile(name string, files map[string]string) {
	c.t.Helper()
	home := c.path("home/profiles/" + name)
	c.check(os.MkdirAll(home, 0o755), os.WriteFile(home+"/SOUL.md", nil, 0o644))
	for name, text := range files {
		c.check(os.WriteFile(filepath.Join(home, name), []byte(text), 0o644))
	}
}

// boot starts an init on the volume, and waits until it answers.
func (c *container) boot() {
	c.t.Helper()
	mode := "rw"
	if c.o.readOnly {
		mode = "ro"
	}
	_ = os.Remove(c.path("run/control.sock"))
	c.cmd = exec.Command("/bin/sh", "-c", stage, "stage", c.group, c.dir, mode, programs.dir+"/hinit", "init", "sleep", "100000")
	c.cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HERMES_HOME=" + c.path("home"), "HINIT_CONFIG=" + c.path("hinit.yaml")}, c.o.env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	c.check(c.cmd.Start())
	c.t.Cleanup(func() {
		if c.t.Failed() && c.cmd != nil {
			stack, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stack", c.cmd.Process.Pid))
			c.t.Logf("PID 1 of the container is in:\n%s", stack)
		}
	})
	testkit.Until(c.t, "hinit has booted", func() bool {
		if unix.Kill(c.cmd.Process.Pid, 0) != nil {
			c.t.Fatal("it has ended")
		}
		return c.api.Rescan(c.context()) == nil
	})
}

func (c *container) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	c.t.Cleanup(cancel)
	return ctx
}

// kill ends the container, as "docker kill" does.
func (c *container) kill() {
	if c.cmd != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		c.cmd = nil
	}
}

// wait waits for the exit of the init, and returns its description.
func (c *container) wait() string {
	c.t.Helper()
	ended := make(chan struct{})
	go func() {
		_ = c.cmd.Wait() // The caller reads the exit status from the process state.
		close(ended)
	}()
	testkit.Until(c.t, "the container to end", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	state := c.cmd.ProcessState.String()
	c.cmd = nil
	return state
}

func (c *container) service(name string) client.Service {
	c.t.Helper()
	s, err := c.api.Service(c.context(), name)
	c.check(err)
	return s
}

func (c *container) start(names ...string) {
	c.t.Helper()
	for _, name := range names {
		_, err := c.api.Start(c.context(), name, client.WaitOptions{Wait: true, Timeout: testkit.Patience})
		c.check(err)
	}
}

// sendCommand sends a command without waiting for its effect.
func (c *container) sendCommand(verb client.Verb, name string) {
	c.t.Helper()
	_, err := c.api.Order(c.context(), verb, name, client.WaitOptions{})
	c.check(err)
}

func (c *container) file(name string) string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.group, name))
	c.check(err)
	return strings.TrimSpace(string(text))
}

// checkAlive fails the test unless the gateways are up and never restarted.
func (c *container) checkAlive(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if s := c.service(name); s.State != client.StateUp || s.Restarts != 0 || s.LastExit != nil {
			c.t.Errorf("%s is %s after %d restarts: %s, %+v", name, s.State, s.Restarts, s.Reason, s.LastExit)
		}
	}
}

func (c *container) events() (list []client.Event) {
	c.t.Helper()
	c.check(c.api.Events(c.context(), client.EventOptions{}, func(e client.Event) error { list = append(list, e); return nil }))
	return list
}

// killedForMemory reports whether the status and an event say that the kernel killed a gateway for
// memory.
func (c *container) killedForMemory(name string) bool {
	c.t.Helper()
	if s := c.service(name); s.LastExit == nil || s.LastExit.Cause != "oom" {
		return false
	}
	return slices.ContainsFunc(c.events(), func(e client.Event) bool {
		return e.Service == "gateway-"+name && e.Exit != nil && e.Exit.Cause == "oom" && e.Exit.Signal != nil && *e.Exit.Signal == int(unix.SIGKILL)
	})
}

func (c *container) lastWords() string {
	c.t.Helper()
	text, err := os.ReadFile(c.path("last-words"))
	c.check(err)
	return string(text)
}
