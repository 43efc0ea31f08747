package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// cgroupTestVar is the environment variable of the process that runs the test as PID 1 of its own namespaces, in an empty control
// group.
const cgroupTestVar = "HINIT_TEST_CGROUP"

// inTestCgroup runs the test again as PID 1 in a control group of version 2, as in a container with --cgroupns=private and write
// access. In the new process it returns true.
func inTestCgroup(t *testing.T) (is bool) {
	t.Helper()
	if os.Getenv(cgroupTestVar) != "" {
		_ = unix.Unmount(cgroupRoot, unix.MNT_DETACH)
		for _, m := range [][2]string{{"proc", "/proc"}, {"cgroup2", cgroupRoot}} {
			if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
				t.Fatalf("cannot mount %s: %v", m[0], err)
			}
		}
		return true
	}
	testkit.NeedRoot(t)
	group := ""
	for _, root := range []string{cgroupRoot, cgroupRoot + "/unified"} {
		var fs unix.Statfs_t
		own, _ := os.ReadFile("/proc/self/cgroup")
		if unix.Statfs(root, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			group = filepath.Join(root, cgroupPath(own, ""), fmt.Sprintf("hinit-test-%d", os.Getpid()))
			break
		}
	}
	if group == "" || os.Mkdir(group, 0o755) != nil {
		testkit.SkipOrFail(t, "needs a writable hierarchy of control groups of version 2")
	}
	t.Cleanup(func() {
		_ = WriteKernelFile(group+"/cgroup.kill", "1")
		testkit.Until(t, "the control groups to be empty", func() bool {
			dirs, _ := filepath.Glob(group + "/hinit*")
			for _, dir := range append(dirs, group) {
				_ = unix.Rmdir(dir)
			}
			return unix.Access(group, unix.F_OK) != nil
		})
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", `echo 0 >"$0/cgroup.procs" && exec unshare --cgroup --mount "$@"`, group, self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), cgroupTestVar+"=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	return false
}

// divideTestCgroup creates the child groups in the control group of the test.
func divideTestCgroup(t *testing.T) *Cgroups {
	t.Helper()
	c, err := DivideCgroup()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func assignCgroup(c *Cgroups, service string, limits CgroupLimits) (s Setup) {
	c.Assign(&s, service, limits)
	return s
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestAContainerIsDividedThoughProcessesRunInItAlready(t *testing.T) {
	if !inTestCgroup(t) {
		return
	}
	table := newTable(t)
	before, out := spawn(t, table, Spec{ID: 1, Name: "early", Argv: testproc.Argv("deaf")})
	readLine(t, out)
	c := divideTestCgroup(t)
	if got := readFile(t, cgroupRoot+"/cgroup.procs"); got != "" {
		t.Errorf("the container's own group still has %q", got)
	}
	for _, pid := range []int{1, before} {
		if got := readFile(t, fmt.Sprintf("/proc/%d/cgroup", pid)); !strings.HasSuffix(got, "::/"+leafCgroup) {
			t.Errorf("process %d is in %q", pid, got)
		}
	}
	for _, name := range []string{"memory", "cpu", "pids"} {
		if there := strings.Contains(" "+readFile(t, cgroupRoot+"/cgroup.controllers")+" ", " "+name+" "); c.HasController(name) != there {
			t.Errorf("%s: it is there: %v, and groups have it: %v", name, there, c.HasController(name))
		}
	}
	if again := divideTestCgroup(t); again.dir != c.dir {
		t.Errorf("after a re-execution the group is %s, not %s", again.dir, c.dir)
	}
	text, code := runShell(t, Spec{Setup: assignCgroup(c, "svc", CgroupLimits{64 << 20, 128 << 20, 50, 30}), Cred: &Cred{UID: 10000, GID: 10000}},
		"cat /proc/self/cgroup; id -u; echo 0 2>/dev/null >"+cgroupRoot+"/"+leafCgroup+"/cgroup.procs || echo stays")
	if code != 0 || !strings.Contains(text, "::/hinit-svc\n10000\nstays\n") {
		t.Errorf("code %d: %s", code, text)
	}
	for file, want := range map[string]string{"memory.high": "67108864", "memory.max": "134217728", "cpu.weight": "50", "pids.max": "30"} {
		if name, _, _ := strings.Cut(file, "."); c.HasController(name) && readFile(t, c.dir+"/hinit-svc/"+file) != want {
			t.Errorf("%s is %s", file, readFile(t, c.dir+"/hinit-svc/"+file))
		}
	}
	if err := c.Remove("svc"); err != nil {
		t.Error(err)
	}
	if m := (memoryCgroups{cgroupRoot, func(name string) []byte { data, _ := os.ReadFile("/proc/" + name); return data }}); m.cgroupOf(1) != "" {
		t.Errorf("the group of this process counts as a service's: %s", m.cgroupOf(1))
	}
}

// The control group must identify a process that has left its parents, session and environment and has lowered its mark.
func TestAProcessThatHidesItsRunIsFoundByItsControlGroup(t *testing.T) {
	if !inTestCgroup(t) {
		return
	}
	c, table := divideTestCgroup(t), newTable(t)
	_, other := spawn(t, table, Spec{ID: 1, Name: "other", Argv: testproc.Argv("deaf"), Setup: assignCgroup(c, "other", CgroupLimits{})})
	readLine(t, other)
	_, out := spawn(t, table, Spec{ID: 2, Name: "svc", Argv: testproc.Argv("hide"), Setup: assignCgroup(c, "svc", CgroupLimits{})})
	daemon, err := strconv.Atoi(readLine(t, out))
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Signal(2, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if x := awaitExit(t, table, 2); !x.Leftover || len(x.PossibleMembers) > 0 {
		t.Errorf("process %d is not known to be left behind: %+v", daemon, x)
	}
	table.SignalTree(2, int(unix.SIGKILL))
	testkit.Until(t, "the daemon to be gone", func() bool {
		table.Reap(true, func(Exit) {})
		return !isAlive(daemon) && len(table.EndedRuns([]uint64{2})) == 1
	})
	if len(table.EndedRuns([]uint64{1})) != 0 {
		t.Error("the other service has ended")
	}
}

// The end of a worker must end no orphan of the gateway, because the worker shares the gateway's control group.
func TestADaemonOfAGatewayEndedWithTheOlderWorkerOfItsProfile(t *testing.T) {
	if !inTestCgroup(t) {
		return
	}
	c, table := divideTestCgroup(t), newTable(t)
	group := assignCgroup(c, "gateway-coder", CgroupLimits{})
	_, worker := spawn(t, table, Spec{ID: 1, Name: "run/t_1", Argv: testproc.Argv("deaf"), Setup: group})
	readLine(t, worker)
	_, out := spawn(t, table, Spec{ID: 2, Name: "gateway-coder", Argv: testproc.Argv("escape", "clean", "deaf"), Setup: group})
	daemon, err := strconv.Atoi(readLine(t, out))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the daemon to be an orphan", func() bool { st, ok := table.procfs.readStat(daemon); return ok && st.Parent == 1 })
	if id := table.RunOf(daemon); id != 2 {
		t.Errorf("the daemon belongs to run %d, not to its gateway", id)
	}
	table.SignalTree(2, int(unix.SIGKILL))
	testkit.Until(t, "the gateway to be gone", func() bool {
		table.Reap(true, func(Exit) {})
		return !isAlive(daemon) && len(table.EndedRuns([]uint64{2})) == 1
	})
	if len(table.EndedRuns([]uint64{1})) != 0 {
		t.Error("the worker has ended with the gateway")
	}
}

// A single kill must end a service that forks faster than /proc can be read, and no other service.
func TestOneKillEndsAForkBombAndNoOther(t *testing.T) {
	if !inTestCgroup(t) {
		return
	}
	c, table := divideTestCgroup(t), newTable(t)
	spawn(t, table, Spec{ID: 1, Name: "other", Argv: testproc.Argv("deaf"), Setup: assignCgroup(c, "other", CgroupLimits{})})
	_, out := spawn(t, table, Spec{
		ID: 2, Name: "bomb", Setup: assignCgroup(c, "bomb", CgroupLimits{PIDs: 40}), Limits: []Limit{{unix.RLIMIT_NPROC, 200, 200}},
		Cred: &Cred{UID: 10001, GID: 10001}, Argv: []string{"/bin/sh", "-c", `b() { (b & b &) 2>/dev/null; }; b; echo up; while :; do b; done`},
	})
	readLine(t, out)
	if c.HasController("pids") {
		testkit.Until(t, "the limit to be met", func() bool {
			return strings.Contains(readFile(t, c.dir+"/hinit-bomb/pids.events"), "max") && readFile(t, c.dir+"/hinit-bomb/pids.events") != "max 0"
		})
		if n, _ := strconv.Atoi(readFile(t, c.dir+"/hinit-bomb/pids.current")); n > 40 {
			t.Errorf("%d processes of 40", n)
		}
	}
	table.SignalTree(2, int(unix.SIGKILL))
	testkit.Until(t, "the group to be empty", func() bool {
		table.Reap(true, func(Exit) {})
		return strings.Contains(readFile(t, c.dir+"/hinit-bomb/cgroup.events"), "populated 0")
	})
	if len(table.EndedRuns([]uint64{1})) != 0 {
		t.Error("the other service has ended")
	}
}

// Two services are killed at the same time. Only the service that exceeded its memory limit counts as oom.
func TestTheKernelSaysWhichServiceItKilledForMemory(t *testing.T) {
	if !inTestCgroup(t) {
		return
	}
	c, table := divideTestCgroup(t), newTable(t)
	if !c.HasController("memory") {
		t.Skip("the memory controller is bound to version 1 here")
	}
	spawn(t, table, Spec{ID: 1, Name: "small", Argv: testproc.Argv("deaf"), Setup: assignCgroup(c, "small", CgroupLimits{Max: 64 << 20})})
	spawn(t, table, Spec{ID: 2, Name: "large", Argv: []string{"/bin/sh", "-c", "head -c 60000000 /dev/zero | tail >/dev/null; a=$(head -c 90000000 /dev/zero | tr '\\0' x)"}, Setup: assignCgroup(c, "large", CgroupLimits{Max: 24 << 20})})
	large := awaitExit(t, table, 2)
	if err := table.Signal(1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	small := awaitExit(t, table, 1)
	if large.Signal != 9 || large.OOM == nil || !*large.OOM {
		t.Errorf("the large one: %+v", large)
	}
	if small.OOM == nil || *small.OOM {
		t.Errorf("the small one: %+v", small)
	}
}
