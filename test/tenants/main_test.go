package tenants_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/isolation"
	"hinit/internal/testkit"
)

const (
	profiles = 20
	agentID  = 10000
	// roleVar makes the test binary the gateway of a profile.
	roleVar = "TENANTS_ROLE"
	// victimPort is the TCP port of the victim. takenPort and chosenPort are ports of a profile that is down.
	victimPort, takenPort = 18731, 18732
	// The kernel chooses ports of the attacks from chosenPorts ports, of which chosenPort is the second one.
	chosenPort, chosenPorts = 40001, 512
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "attacker":
		runAttacker()
		return
	case "victim":
		runVictim()
		return
	case "eater":
		runMemoryEater()
		return
	case "holder":
		runFiller()
		return
	case "taker", "misser":
		runExhauster(os.Getenv(roleVar) == "misser")
		return
	case "listener":
		listener()
		return
	}
	if testkit.SkippedInShort() {
		return
	}
	testkit.ShareSlots(6)
	code := m.Run()
	_ = exec.Command("docker", "rmi", "-f", image).Run() // Without the image, the tests with Docker are skipped.
	os.Exit(code)
}

// container is an init with the volume of one mode.
type container struct {
	dir      string
	group    string // Control group with a memory limit; "" for none.
	grouped  bool   // Whether hinit can create control groups.
	client   *dial.Client
	errs     tail
	requests int // Number of requests to the gateways.
	mode     string
	pid      int       // PID of the init.
	begun    time.Time // Time of the last request to take a resource.
	// environ is the environment of the container.
	environ []string
}

// tail keeps the end of its input.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements [io.Writer].
func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	w.text = w.text[max(0, len(w.text)-8<<10):]
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

// setup lists the settings in which a container differs from the attacks' default.
type setup struct {
	agent int       // uid of the agent's user; 0 means agentID.
	roles [2]string // Roles of the first and the second profile.
	yaml  string    // Further keys of agent in hinit.yaml.
	share string    // A further shared directory.
	mount string    // Commands before hinit starts; $1 is the container's directory.
	flags uintptr   // Clone flags of further namespaces.
	// services has the container run the companions of hinit, with a /run/hinit as in an image.
	services bool
}

// report is the attacker's report: the names of the attacks that succeeded, and how the others failed.
type report struct{ Open, How map[string]string }

func startContainer(t *testing.T, mode string, s setup) *container {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "hinit-tenants-") //nolint:usetesting // the agent's user has to enter this directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, _ := filepath.Glob("/tmp/hinit-t[0-9][0-9]-*")
		for _, path := range append(left, dir, "/tmp/"+filepath.Base(dir), "/dev/shm/"+filepath.Base(dir), "/tmp/secret-of-"+name(1)) {
			_ = os.RemoveAll(path)
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(dir, 0o755))
	must(testkit.Build(filepath.Join(dir, "bin"), "hinit", "hinit-isolate", "hinit-tools"))
	socket, environ := dir+"/run/control.sock", []string{"SECRET_OF_PID_1=x"}
	if s.services {
		socket, environ = "/run/hinit/control.sock", append(environ, addServices(t, dir)...)
	}
	must(os.Chmod(filepath.Join(dir, "bin"), 0o755))
	self, err := os.ReadFile("/proc/self/exe")
	must(err)
	must(testkit.WriteProgram(filepath.Join(dir, "bin", "role"), self))
	home, agent := filepath.Join(dir, "home"), cmp.Or(s.agent, agentID)
	must(os.Mkdir(home, 0o755))
	if s.share != "" {
		must(unix.Mount("none", home, "tmpfs", 0, fmt.Sprintf("size=%d,nr_inodes=%d", volumeSize, volumeNodes)))
		t.Cleanup(func() { _ = unix.Unmount(home, unix.MNT_DETACH) })
		must(os.Mkdir(filepath.Join(dir, answersDir), 0o755))
		must(os.Chmod(filepath.Join(dir, answersDir), 0o777))
	}
	for i := range profiles {
		p := filepath.Join(home, "profiles", name(i))
		must(os.MkdirAll(p, 0o755))
		must(os.WriteFile(filepath.Join(p, "SOUL.md"), nil, 0o600))
		must(os.WriteFile(filepath.Join(p, ".env"), []byte("SECRET=of-"+name(i)+"\n"), 0o600))
	}
	must(filepath.WalkDir(home, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, agent, agent)
	}))
	must(os.Mkdir(filepath.Join(dir, "run"), 0o755))
	share := ""
	if s.share != "" {
		share = fmt.Sprintf(`, "%s"`, filepath.Join(dir, s.share))
	}
	config := fmt.Sprintf(`home: %[1]s/home
agent: {user: "%[2]d:%[2]d", binary: %[1]s/bin/role, gateway: [%[1]s/bin/role, "{profile}"], ready: up, pids: {max: %[10]d}, %[13]s env: {%[3]s: %[12]s, TENANTS_DIR: %[1]s}}
isolation: {mode: %[4]s, share: ["%[1]s/bin:ro"%[14]s]}
stop: {grace: 1s}
control: {socket: %[15]s}
profiles:
  %[5]s: {env: {%[3]s: %[11]s}}
  %[6]s: {isolation: {ports: [%[7]d]}}
  %[8]s: {isolation: {ports: [%[9]d, %[16]d]}}
  taken: {isolation: none}
`, dir, agent, roleVar, mode, name(0), name(1), victimPort, name(2), takenPort, maxProcesses, s.roles[0], s.roles[1], s.yaml, share, socket, chosenPort)
	must(os.WriteFile(filepath.Join(dir, "hinit.yaml"), []byte(config), 0o644)) //nolint:gosec // the mode in most images
	c := &container{dir: dir, mode: mode, client: dial.New(filepath.Join(dir, "run", "control.sock"))}
	group := newGroup(t)
	c.grouped = group != ""
	// If the container has its own control group, it also gets a namespace of control groups, as under
	// Docker.
	const enter = `[ -n "$2" ] || eval "$3"; echo 0 >"$2/cgroup.procs" && exec unshare --cgroup /bin/sh -c "umount -l ` + groupRoot + ` && mount -t cgroup2 cgroup2 ` + groupRoot + ` && $3" "$0" "$1"`
	inner := `mount --make-rprivate / && mount -t proc proc /proc && ` + s.mount + ` exec "$0" init sleep 100000`
	cmd := exec.Command("/bin/sh", "-c", enter, filepath.Join(dir, "bin", "hinit"), dir, group, inner)
	cmd.Env = append(environ, "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HERMES_HOME="+home, "HINIT_CONFIG="+filepath.Join(dir, "hinit.yaml"))
	c.environ = cmd.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: s.flags}
	c.run(t, cmd)
	return c
}

const groupRoot = "/sys/fs/cgroup"

// newGroup creates a control group for a container; "" if cgroup v2 is not writable.
func newGroup(t *testing.T) string {
	t.Helper()
	var at unix.Statfs_t
	if unix.Statfs(groupRoot, &at) != nil || at.Type != unix.CGROUP2_SUPER_MAGIC || unix.Access(groupRoot+"/cgroup.procs", unix.W_OK) != nil {
		return ""
	}
	group := fmt.Sprintf("%s/hinit-tenants-%d-%d", groupRoot, os.Getpid(), groups.Add(1))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testkit.Until(t, "the control group to be empty", func() bool {
			below, _ := filepath.Glob(group + "/*") // os.RemoveAll fails on the files of a group, so use rmdir.
			for _, dir := range append(below, group) {
				_ = unix.Rmdir(dir)
			}
			return unix.Access(group, unix.F_OK) != nil
		})
	})
	return group
}

// checkGroups fails the test if control groups of version 2 are writable, and the victim has none of its own.
func (c *container) checkGroups(t *testing.T) {
	t.Helper()
	st, err := c.status(name(1))
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/%d/cgroup", c.pid, st.Services[0].PID))
	t.Logf("the control group of %s: %s", name(1), own)
	if err != nil || c.grouped && !bytes.Contains(own, []byte("gateway-"+name(1))) {
		t.Errorf("the victim has no control group of its own: %q, %v", own, err)
	}
}

// run starts hinit in its own namespaces, until the test ends, and waits until it answers.
func (c *container) run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stdout, cmd.Stderr = &c.errs, &c.errs
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(c.errs.String())
		}
	})
	testkit.Until(t, "hinit answers", func() bool { _, err := c.status(); return err == nil })
}

func (c *container) status(names ...string) (client.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.client.Status(ctx, names...)
}

func name(i int) string { return fmt.Sprintf("t%02d", i) }

// retryUntilAnswered repeats ask while hinit does not answer, because parallel attacks can starve it.
func retryUntilAnswered(ask func() error) (err error) {
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(50 * time.Millisecond) {
		err = ask()
		var late *client.Error
		if !errors.Is(err, client.ErrUnreachable) && !(errors.As(err, &late) && late.Kind == client.KindTimeout) || time.Now().After(end) {
			return err
		}
	}
}

func (c *container) start(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := retryUntilAnswered(func() error { _, err := c.client.Start(ctx, n, client.WaitOptions{}); return err }); err != nil {
			t.Fatalf("%v\n%s", err, c.errs.String())
		}
	}
}

// attack starts the profiles, the attacker last, and returns the attacker's report.
func (c *container) attack(t *testing.T) report {
	t.Helper()
	for i := 1; i < profiles; i++ {
		if i != 2 {
			c.start(t, name(i))
		}
	}
	ready := filepath.Join(c.dir, "home", "profiles", name(1), "ready")
	testkit.Until(t, "the victim is ready", func() bool { _, err := os.Stat(ready); return err == nil })
	c.execs(t)
	c.start(t, name(0))
	var r report
	path := filepath.Join(c.dir, "home", "profiles", name(0), "report")
	testkit.Until(t, "the attacker reports", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && json.Unmarshal(text, &r) == nil
	})
	return r
}

// TestNoTenantReachesAnother checks all attacks in all modes of isolation, and prints the table of their results.
func TestNoTenantReachesAnother(t *testing.T) {
	testkit.NeedRoot(t)
	if isolation.LandlockABI() == 0 {
		testkit.SkipOrFail(t, "the kernel has no Landlock")
	}
	if !hasDocker() {
		t.Run("sandboxes", func(t *testing.T) { testkit.SkipOrFail(t, "needs a container engine") })
	}
	modes := []string{"none", "files", "user"}
	reports := make(map[string]report)
	outlived, taken, inherited := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			c := startContainer(t, mode, setup{
				roles: [2]string{"attacker", "victim"}, services: true, flags: syscall.CLONE_NEWNET,
				mount: imageMounts + fmt.Sprintf("ip link set lo up && echo %d %d >/proc/sys/net/ipv4/ip_local_port_range && echo %d >/proc/sys/net/ipv4/ip_local_reserved_ports && ",
					chosenPort-1, chosenPort+chosenPorts-2, chosenPort),
			})
			c.prepareServices(t)
			reports[mode] = c.attack(t)
			c.checkGroups(t)
			outlived[mode] = c.outlives(t)
			taken[mode] = c.takeHomeSucceeds(t)
			inherited[mode] = c.inherits(t)
		})
	}
	if t.Failed() {
		return
	}
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TRIED\tNONE\tFILES\tUSER")
	open := map[string]int{}
	row := func(attack string, result func(mode string) bool) {
		cells := []string{attack}
		for _, mode := range modes {
			word := "closed"
			if result(mode) {
				word = "OPEN"
				open[mode]++
			}
			cells = append(cells, word)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	for _, a := range attacks {
		row(a.name, func(mode string) bool { _, is := reports[mode].Open[a.name]; return is })
	}
	row(outliveRow, func(mode string) bool { return outlived[mode] })
	row(renameRow, func(mode string) bool { return taken[mode] })
	row(inheritRow, func(mode string) bool { return inherited[mode] })
	fmt.Fprintf(tw, "open of %d\t%d\t%d\t%d\n", len(attacks)+3, open["none"], open["files"], open["user"])
	_ = tw.Flush()
	t.Logf("%d profiles in each mode, Landlock ABI %d\n%s", profiles, isolation.LandlockABI(), table.String())
	for _, a := range attacks {
		for _, mode := range modes[1:] {
			if how, is := reports[mode].Open[a.name]; is && !succeedsInMode(a.name, mode, isolation.LandlockABI()) {
				t.Errorf("%s: %s is open: %s", mode, a.name, how)
			}
		}
		for _, mode := range modes {
			if how := reports[mode].How[a.name]; strings.HasPrefix(how, notTriedPrefix) {
				t.Errorf("%s: %s: %s", mode, a.name, how)
			}
		}
		if _, is := reports["none"].Open[a.name]; !is && a.succeedsUnisolated && (needs[a.name] == nil || needs[a.name]()) {
			t.Errorf("none: %s is closed, so that it proves nothing: %s", a.name, reports["none"].How[a.name])
		}
	}
	for mode, is := range outlived {
		if is {
			t.Errorf("%s: a process has outlived its gateway", mode)
		}
	}
	if inherited["user"] || inherited["files"] || !inherited["none"] {
		t.Errorf("a new profile finds the temporary files of a deleted one: %v", inherited)
	}
	if taken["user"] || !taken["none"] { // Without this mode, the agent's user may read all homes.
		t.Errorf("a home that the agent's user has renamed can be read: %v", taken)
	}
}

// The last rows of the table are attacks that the attacker's gateway does not make alone.
const (
	outliveRow = "outlive the stop of its own gateway"
	renameRow  = "have hinit give a home to the agent's user by renaming it"
	inheritRow = "read temporary files of a deleted profile of its name"
)

// update says whether [TestThePageOfAttacksIsUpToDate] writes the page.
var update = flag.Bool("update", false, "write docs/reference/attacks.md")

// TestThePageOfAttacksIsUpToDate compares the page with what [TestNoTenantReachesAnother] demands.
func TestThePageOfAttacksIsUpToDate(t *testing.T) {
	const path = "../../docs/reference/attacks.md"
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, _, found := strings.Cut(string(was), "\n## ")
	if !found {
		t.Fatal("the page has no lists")
	}
	const until = "open before Linux 7.2"
	lists := make(map[[3]string][]string)
	row := func(name, none, files, user string) {
		key := [3]string{none, files, user}
		lists[key] = append(lists[key], name)
	}
	for _, a := range attacks {
		none := "varies"
		if a.succeedsUnisolated {
			none = "open"
		}
		words := map[string]string{}
		for _, mode := range everyMode[1:] {
			switch words[mode] = "closed"; {
			case succeedsInMode(a.name, mode, math.MaxInt):
				words[mode] = "open"
			case succeedsInMode(a.name, mode, 0):
				words[mode] = until
			}
		}
		row(a.name, none, words["files"], words["user"])
	}
	row(outliveRow, "closed", "closed", "closed")
	row(renameRow, "open", "open", "closed")
	row(inheritRow, "open", "closed", "closed")
	now := text
	for _, is := range [][3]string{
		{"open", "open", "open"},
		{"open", until, until},
		{"open", "open", "closed"},
		{"varies", "open", "closed"},
		{"open", "closed", "closed"},
		{"varies", "closed", "closed"},
		{"closed", "closed", "closed"},
	} {
		now += fmt.Sprintf("\n## `none`: %s; `files`: %s; `user`: %s\n\n```text\n%s\n```\n", is[0], is[1], is[2], strings.Join(lists[is], "\n"))
	}
	if *update {
		err = os.WriteFile(path, []byte(now), 0o644) //nolint:gosec // the mode of all pages
	} else if now != string(was) {
		err = errors.New("it is out of date; write it by: go test ./test/tenants -run Page -update")
	}
	if err != nil {
		t.Error(err)
	}
}

// takeHomeSucceeds renames a home to an unisolated profile's name. It reports whether the agent's user can
// then read it.
func (c *container) takeHomeSucceeds(t *testing.T) bool {
	t.Helper()
	agent := func(command ...string) error {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: agentID, Gid: agentID}}
		return cmd.Run()
	}
	home := filepath.Join(c.dir, "home", "profiles")
	if err := agent("mv", filepath.Join(home, name(4)), filepath.Join(home, "taken")); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "hinit has found the renamed home", func() bool { _, err := c.status("taken"); return err == nil })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// The start fails in a mode in which the agent's user can't enter the home of another user.
	_, _ = c.client.Start(ctx, "taken", client.WaitOptions{})
	return agent("cat", filepath.Join(home, "taken", ".env")) == nil
}

// inherits reports whether a deleted profile's temporary files remain for a new profile of its
// name.
func (c *container) inherits(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	var home unix.Stat_t
	err := unix.Stat(filepath.Join(c.dir, "home", "profiles", name(6)), &home)
	secret := "/tmp/secret-of-deleted-" + filepath.Base(c.dir)
	if c.mode != "none" {
		secret = fmt.Sprintf("/tmp/hinit-%s-%d/secret", name(6), home.Uid)
	}
	t.Cleanup(func() { _ = os.Remove(secret) })
	if err := errors.Join(err, os.WriteFile(secret, []byte("x"), 0o600), os.Chown(secret, int(home.Uid), int(home.Uid))); err != nil {
		t.Fatal(err)
	}
	if out, err := c.inside(ctx, 0, c.dir+"/bin/hinit", "profile", "delete", name(6), "--yes"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, err = os.Stat(secret)
	return err == nil
}

// outlives reports whether a daemon of the attacker survives a stop.
func (c *container) outlives(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if _, err := c.client.Stop(ctx, name(0), client.WaitOptions{Wait: true, Timeout: time.Minute}); err != nil {
		t.Error(err)
	}
	return processRuns("daemon-of-" + filepath.Base(c.dir))
}

// processRuns reports whether a process has the word as its last argument.
func processRuns(word string) bool {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(found, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && bytes.HasSuffix(text, []byte("\x00"+word+"\x00"))
	})
}
