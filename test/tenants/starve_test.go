package tenants_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

// runMemoryEater is a gateway that takes the number of megabytes in its profile's file MB. With a file FILE,
// it takes them as a file in memory.
func runMemoryEater() {
	text, _ := os.ReadFile(filepath.Join(os.Getenv("EATER_HOME"), "MB"))
	n, _ := strconv.Atoi(string(text))
	pause, err := time.ParseDuration(os.Getenv("EATER_PAUSE"))
	if err != nil {
		pause = 100 * time.Millisecond // Grow in small steps, as a program does.
	}
	if text, err := os.ReadFile(filepath.Join(os.Getenv("EATER_HOME"), "FILE")); err == nil {
		var file *os.File
		if string(text) == "" {
			fd, err := unix.MemfdCreate("eaten", unix.MFD_CLOEXEC)
			if err != nil {
				panic(err)
			}
			file = os.NewFile(uintptr(fd), "eaten")
		} else if file, err = os.Create(string(text)); err != nil {
			panic(err)
		}
		defer file.Close()
		for ; n > 1; n-- {
			if _, err := file.Write(bytes.Repeat([]byte{1}, 1<<20)); err != nil {
				panic(err)
			}
			time.Sleep(pause / 20)
		}
	}
	var held [][]byte
	for range n {
		held = append(held, bytes.Repeat([]byte{1}, 1<<20))
		time.Sleep(pause)
	}
	fmt.Println("full", len(held))
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	runtime.KeepAlive(held)
}

// groups counts the control groups, one for each test.
var groups atomic.Int32

// limited starts an init with memory-eating profiles in a control group of the given size.
func limited(t *testing.T, megabytes int, profiles map[string]int, settings string, before ...func(home string)) *container {
	t.Helper()
	testkit.Parallel(t) // hinit mostly waits for its next measurement, so this test runs beside others.
	testkit.NeedRoot(t)
	bind, file := "/sys/fs/cgroup", "memory.max" // Control groups of version 2.
	if unix.Access(bind+"/memory", unix.F_OK) == nil {
		bind, file = bind+"/memory", "memory.limit_in_bytes"
	}
	group := fmt.Sprintf("%s/hinit-starve-%d-%d", bind, os.Getpid(), groups.Add(1))
	limit := filepath.Join(group, file)
	if unix.Access(bind+"/cgroup.procs", unix.W_OK) != nil || os.Mkdir(group, 0o755) != nil {
		testkit.SkipOrFail(t, "needs a writable memory controller")
	}
	t.Cleanup(func() {
		testkit.Until(t, "the control group to be empty", func() bool { return unix.Rmdir(group) == nil })
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(limit, fmt.Appendf(nil, "%d", megabytes<<20), 0))
	dir, err := os.MkdirTemp("/var/tmp", "hinit-starve-") //nolint:usetesting // the agent's user has to enter this directory
	must(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(os.Chmod(dir, 0o755)) //nolint:gosec // the agent's user has to enter this directory
	must(testkit.Build(filepath.Join(dir, "bin"), "hinit"))
	must(os.Chmod(filepath.Join(dir, "bin"), 0o755)) //nolint:gosec // the agent's user has to enter this directory
	self, err := os.ReadFile("/proc/self/exe")
	must(err)
	must(testkit.WriteProgram(filepath.Join(dir, "bin", "role"), self))
	home := filepath.Join(dir, "home")
	for name, mb := range profiles {
		p := filepath.Join(home, "profiles", name)
		must(os.MkdirAll(p, 0o755)) //nolint:gosec // the mode with which the agent makes them
		must(os.WriteFile(filepath.Join(p, "SOUL.md"), nil, 0o600))
		must(os.WriteFile(filepath.Join(p, "MB"), fmt.Append(nil, mb), 0o600))
	}
	must(filepath.WalkDir(home, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, agentID, agentID))
	}))
	for _, f := range before {
		f(home)
	}
	must(os.Mkdir(filepath.Join(dir, "run"), 0o755)) //nolint:gosec // the agent's user has to enter this directory
	config := fmt.Sprintf("home: %[1]s/home\nagent: {user: \"%[2]d:%[2]d\", binary: /bin/sh, gateway: [%[1]s/bin/role], ready: up, env: {%[3]s: eater, EATER_HOME: \"{profile_home}\", EATER_PAUSE: 20ms}}\ncontrol: {socket: %[1]s/run/control.sock}\n%[4]s", dir, agentID, roleVar, settings)
	must(os.WriteFile(filepath.Join(dir, "hinit.yaml"), []byte(config), 0o644)) //nolint:gosec // the mode in most images
	c := &container{dir: dir, group: group, client: dial.New(filepath.Join(dir, "run", "control.sock"))}
	cmd := exec.Command("/bin/sh", "-c", `echo 0 >"$1/cgroup.procs" && mount --make-rprivate / && mount -t proc proc /proc && mount --bind "$1" "$2" && exec "$0" init sleep 100000`,
		filepath.Join(dir, "bin", "hinit"), group, bind)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HERMES_HOME=" + home, "HINIT_CONFIG=" + filepath.Join(dir, "hinit.yaml")}
	c.run(t, cmd)
	return c
}

func (c *container) service(t *testing.T, name string) client.Service {
	t.Helper()
	var st client.Status
	if err := retryUntilAnswered(func() (err error) { st, err = c.status(name); return err }); err != nil {
		t.Fatal(err)
	}
	return st.Services[0]
}

// TestTheLeastImportantGoesBeforeTheKernelKills checks that hinit stops the profile with the lowest
// priority before the kernel kills any.
func TestTheLeastImportantGoesBeforeTheKernelKills(t *testing.T) {
	c := limited(t, 200, map[string]int{"low": 30, "normal": 60, "vital": 40, "late": 1}, "profiles: {low: {priority: low}, vital: {priority: critical}}\n")
	testkit.Until(t, "hinit has booted", func() bool { return c.client.Rescan(t.Context()) == nil })
	c.start(t, "low", "normal", "vital")
	full := func(name string) bool {
		text, _ := os.ReadFile(filepath.Join(c.dir, "home", "logs", "gateways", name, "current"))
		return bytes.Contains(text, []byte("full"))
	}
	testkit.Until(t, "they have their memory", func() bool { return full("low") && full("normal") && full("vital") })
	// Another process takes all but a few megabytes.
	if err := os.WriteFile(filepath.Join(c.dir, "MB"), []byte("45"), 0o600); err != nil {
		t.Fatal(err)
	}
	hog := exec.Command("/bin/sh", "-c", `echo 0 >"$0/cgroup.procs"; exec "$1"`, c.group, filepath.Join(c.dir, "bin", "role"))
	hog.Env = []string{roleVar + "=eater", "EATER_HOME=" + c.dir}
	hog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = syscall.Kill(-hog.Process.Pid, syscall.SIGKILL); _ = hog.Wait() }
	t.Cleanup(end)
	testkit.Until(t, "the lowest is shed", func() bool {
		s := c.service(t, "low")
		return s.State == client.StateWaiting && s.LastExit != nil && s.LastExit.Cause == "shed"
	})
	low := c.service(t, "low")
	if low.Want != client.WantUp || !strings.Contains(low.Reason, "hinit start") || !slices.Contains(low.Needs, "memory") {
		t.Errorf("want %s, needs %q, reason %q", low.Want, low.Needs, low.Reason)
	}
	state, err := os.ReadFile(filepath.Join(c.dir, "home", "profiles", "low", "gateway_state.json"))
	if err != nil || !strings.Contains(string(state), `"running"`) {
		t.Errorf("the intent is %s, %v", state, err)
	}
	for _, name := range []string{"normal", "vital"} {
		if s := c.service(t, name); s.State != client.StateUp || s.Restarts != 0 {
			t.Errorf("%s is %s after %d restarts", name, s.State, s.Restarts)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	end()
	testkit.Until(t, "it is back", func() bool { return c.service(t, "low").State == client.StateUp })
	if _, err := c.client.Start(ctx, "late", client.WaitOptions{}); err != nil {
		t.Error(err)
	}
}

// TestIdleGatewaysEndedForTheSharedMemoryOfAnother checks that shared memory of others does not
// make hinit stop idle gateways.
func TestIdleGatewaysEndedForTheSharedMemoryOfAnother(t *testing.T) {
	shm := fmt.Sprintf("/dev/shm/hinit-starve-%d", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(shm) })
	for file, victims := range map[string][]string{"": {"eater"}, shm: nil} {
		t.Run("file "+file, func(t *testing.T) {
			c := limited(t, 400, map[string]int{"eater": 363, "one": 1, "two": 1, "three": 1}, "", func(home string) {
				if err := os.WriteFile(filepath.Join(home, "profiles", "eater", "FILE"), []byte(file), 0o644); err != nil { //nolint:gosec // the agent reads this file
					t.Fatal(err)
				}
			})
			testkit.Until(t, "hinit has booted", func() bool { return c.client.Rescan(t.Context()) == nil })
			c.start(t, "one", "two", "three", "eater")
			testkit.Until(t, "hinit has decided", func() bool {
				st, err := c.client.Status(t.Context())
				return err == nil && (victims != nil && c.service(t, "eater").LastExit != nil ||
					victims == nil && slices.ContainsFunc(st.Init.Warnings, func(w string) bool { return strings.Contains(w, "belong to no service") }))
			})
			time.Sleep(3 * time.Second) // Long enough for several decisions of hinit.
			for _, name := range []string{"one", "two", "three", "eater"} {
				s := c.service(t, name)
				if ended := s.LastExit != nil || s.Restarts > 0; ended != slices.Contains(victims, name) || ended && s.LastExit.Cause != "shed" {
					t.Errorf("%s is %s, its last exit %+v", name, s.State, s.LastExit)
				}
			}
		})
	}
}

// TestAGatewayThatHadTooMuchWaitsAtTheBoot checks that the boot starts only the more important of
// two gateways if memory is short.
func TestAGatewayThatHadTooMuchWaitsAtTheBoot(t *testing.T) {
	write := func(path, text string, id int) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600), os.Chown(path, id, id)); err != nil {
			t.Fatal(err)
		}
	}
	c := limited(t, 200, map[string]int{"low": 1, "high": 40, "vital": 40}, "profiles: {low: {priority: low}, high: {priority: high}, vital: {priority: critical}}\n", func(home string) {
		write(filepath.Join(home, ".hinit-memory.json"), fmt.Sprintf(`{"gateway-low": %d, "gateway-high": %d, "gateway-none": 5}`, 80<<20, 79<<20), 0)
		for _, name := range []string{"low", "high", "vital"} {
			write(filepath.Join(home, "profiles", name, "gateway_state.json"), `{"desired_state":"running"}`, agentID)
		}
	})
	testkit.Until(t, "the others are up", func() bool {
		return c.service(t, "high").State == client.StateUp && c.service(t, "vital").State == client.StateUp
	})
	if s := c.service(t, "low"); s.State != client.StateWaiting || s.Want != client.WantUp || !slices.Contains(s.Needs, "memory") || !strings.HasPrefix(s.Reason, "waits for memory: it had 80MiB before") {
		t.Errorf("%s, want %s, needs %q: %s", s.State, s.Want, s.Needs, s.Reason)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range []string{"high", "vital"} {
		if _, err := c.client.Stop(ctx, name, client.WaitOptions{Wait: true}); err != nil {
			t.Error(err)
		}
	}
	testkit.Until(t, "it starts", func() bool { return c.service(t, "low").State == client.StateUp })
}
