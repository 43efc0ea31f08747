package confine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"hinit/internal/isolation"
	"hinit/internal/testkit"
)

// mainVar makes the test binary run as hinit-isolate.
const mainVar = "ISOLATE_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVar) != "" {
		os.Exit(Main(os.Args, os.Environ()))
	}
	os.Exit(m.Run())
}

// runIsolated runs a shell command as another user, confined by p, and returns its output. hinit-isolate starts with the
// capabilities caps.
func runIsolated(t *testing.T, p testkit.IsolationPlan, script string, caps ...uintptr) string {
	t.Helper()
	testkit.NeedRoot(t)
	if checkLandlock(isolation.LandlockABI()) != nil {
		testkit.SkipOrFail(t, "the kernel's Landlock lacks a part")
	}
	t.Cleanup(func() { _ = os.RemoveAll("/tmp/hinit-t-12321") })
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = p.Argv(isolation.Program, []string{"/bin/sh", "-c", script})
	cmd.Env = []string{mainVar + "=1", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12321, Gid: 12321}, AmbientCaps: caps}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("%v", err)
	}
	return string(out)
}

// When an image got a new hinit and kept an old hinit-isolate, its gateways said only "the command is missing".
func TestAnOldHinitIsolateSaidThatTheCommandIsMissing(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{isolation.Program, "name=coder", "of-a-newer-version", "++", "/bin/true"}
	cmd.Env = []string{mainVar + "=1"}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "install hinit-isolate in the version of hinit") {
		t.Errorf("%v: %s", err, out)
	}
}

func accessibleDir(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		_ = os.Chmod(d, 0o755)
	}
	for _, name := range names {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "f"), []byte("text of "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{name, name + "/f"} {
			if err := os.Chown(filepath.Join(dir, path), 12321, 12321); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestAnIsolatedCommandReachesItsOwnFilesOnly(t *testing.T) {
	dir := accessibleDir(t, "own", "other", "shared", "read")
	p := testkit.IsolationPlan{Name: "t", Home: dir + "/own", Hide: []string{dir}, Share: []string{dir + "/shared"}, Read: []string{dir + "/read"}}
	out := runIsolated(t, p, `cd "`+dir+`/own"; cat f; cat ../other/f; cat ../shared/f ../read/f; echo x >../shared/g && echo wrote-shared; echo x >../read/g && echo wrote-read
ln ../other/f l && echo linked; mv f ../shared/f && echo moved; ls .. && echo listed; echo x >/tmp/hinit-test-x && echo wrote-tmp; echo x >$TMPDIR/x && echo wrote-own-tmp; cat /etc/passwd >/dev/null && echo read-image`)
	for _, want := range []string{"text of own", "text of shared", "text of read", "wrote-shared", "moved", "wrote-own-tmp", "read-image"} {
		if !strings.Contains(out, want) {
			t.Errorf("it could not do %q:\n%s", want, out)
		}
	}
	for _, never := range []string{"text of other", "wrote-read", "linked", "listed", "wrote-tmp\n"} {
		if strings.Contains(out, never) {
			t.Errorf("it could do %q:\n%s", never, out)
		}
	}
}

func TestALinkInThePlaceOfASharedDirectoryLeadsToNoOtherProfile(t *testing.T) {
	dir := accessibleDir(t, "own", "other", "shared")
	for link, to := range map[string]string{"shared/out": "../other"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	p := testkit.IsolationPlan{Name: "t", Home: dir + "/own", Hide: []string{dir}, Share: []string{dir + "/shared"}, Read: []string{dir + "/shared/out", dir + "/shared/none"}}
	if out := runIsolated(t, p, "cat "+dir+"/other/f"); !strings.Contains(out, "there is a link in it") || strings.Contains(out, "text of other") {
		t.Errorf("%s", out)
	}
	p.Read = []string{dir + "/shared/f", dir + "/shared/none"}
	if out := runIsolated(t, p, "cat "+dir+"/own/f "+dir+"/shared/f"); !strings.Contains(out, "text of own\ntext of shared") {
		t.Errorf("%s", out)
	}
}

func TestAnIsolatedCommandGetsNoNamespaceNoTraceAndNoSignalOutside(t *testing.T) {
	dir := accessibleDir(t, "own")
	outside := exec.Command("sleep", "60")
	outside.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12321, Gid: 12321}}
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = outside.Process.Kill(); _ = outside.Wait() }()
	pid := strconv.Itoa(outside.Process.Pid)
	out := runIsolated(t, testkit.IsolationPlan{Name: "t", Home: dir + "/own"}, `kill -TERM `+pid+` && echo signalled; unshare -U true && echo unshared; cat /proc/`+pid+`/environ >/dev/null && echo read-environ
sh -c 'kill -TERM $$; sleep 5' ; sleep 5 & kill $! && echo own-signal; grep Seccomp_filters /proc/self/status; grep NoNewPrivs /proc/self/status`)
	for _, never := range []string{"signalled", "unshared", "read-environ"} {
		if strings.Contains(out, never) {
			t.Errorf("it could do %q:\n%s", never, out)
		}
	}
	if !strings.Contains(out, "own-signal") || !strings.Contains(out, "NoNewPrivs:\t1") {
		t.Errorf("%s", out)
	}
}

func TestAnIsolatedCommandKeepsNoCapability(t *testing.T) {
	dir := accessibleDir(t, "own")
	const script = "grep ^Cap /proc/self/status"
	out := runIsolated(t, testkit.IsolationPlan{Name: "t", Home: dir + "/own"}, script, unix.CAP_KILL, unix.CAP_DAC_OVERRIDE)
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		if !strings.Contains(out, set+":\t0000000000000000\n") {
			t.Errorf("%s is not empty:\n%s", set, out)
		}
	}
}

func TestAnIsolatedCommandOpensTheDevicesOfAllProgramsOnly(t *testing.T) {
	dir := accessibleDir(t, "own")
	other, err := os.CreateTemp("/dev", "hinit-test-")
	if err != nil {
		testkit.SkipOrFail(t, "cannot make a file in /dev: "+err.Error())
	}
	defer func() { _ = os.Remove(other.Name()) }()
	if err := other.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	plan := testkit.IsolationPlan{Name: "t", Home: dir + "/own"}
	script := `head -c1 /dev/zero >/dev/null && head -c1 /dev/urandom >/dev/null && echo opened-devices; cat ` + other.Name() + ` && echo opened-other`
	if out := runIsolated(t, plan, script); !strings.Contains(out, "opened-devices") || strings.Contains(out, "opened-other") {
		t.Errorf("%s", out)
	}
	plan.Share = []string{other.Name()}
	if out := runIsolated(t, plan, script); !strings.Contains(out, "opened-other") {
		t.Errorf("a device that is shared:\n%s", out)
	}
}

func TestAProgramThatIsNotThereHasTheCodeOfAShell(t *testing.T) {
	dir := accessibleDir(t, "own")
	if out := runIsolated(t, testkit.IsolationPlan{Name: "t", Home: dir + "/own"}, "exec /no/such/program"); !strings.Contains(out, "not found") {
		t.Errorf("%s", out)
	}
}

// In a container with a read-only root, isolated gateways crashed, and their message named no directory.
func TestAnIsolatedGatewayThatCannotWriteTmpSaysSo(t *testing.T) {
	p := testkit.IsolationPlan{Name: "t", Home: accessibleDir(t, "own") + "/own"}
	runIsolated(t, p, "true") // skips the test where nothing can be isolated
	said := make(chan string)
	go func() {
		runtime.LockOSThread() // the thread has mounts of its own, and ends with this goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		err = errors.Join(err, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("none", "/tmp", "tmpfs", unix.MS_RDONLY, ""))
		if err != nil {
			t.Error(err)
		}
		said <- runIsolated(t, p, "echo started")
	}()
	if out := <-said; !strings.Contains(out, "/tmp, which must be writable (docker: --tmpfs /tmp): read-only file system") {
		t.Error(out)
	}
}

func TestWhatTheKernelLacksIsRefusedInWords(t *testing.T) {
	for abi, want := range map[int]string{
		0: "has no Landlock", 2: "does not confine all changes of files", 3: "does not confine TCP ports", 5: "does not confine signals and abstract sockets", 6: "", 9: "",
	} {
		err := checkLandlock(abi)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("ABI %d: %v", abi, err)
		}
	}
}

func TestAGatewayThatTheKernelCannotMarkDoesNotStart(t *testing.T) {
	if err := checkFilterCount("NoNewPrivs:\t1\nSeccomp:\t2\n"); err == nil || !strings.Contains(err.Error(), "cannot keep it from the control socket") {
		t.Errorf("Linux 5.8: %v", err)
	}
	p := testkit.IsolationPlan{Name: "t", Home: accessibleDir(t, "own") + "/own", Marked: true, Degrade: true}
	if out := runIsolated(t, p, "echo started"); !strings.Contains(out, "started") {
		t.Errorf("it did not start where the kernel counts filters: %s", out)
	}
}

// The filter must refuse the system calls that it names and no others. The test executes its BPF program as the kernel would.
func TestTheFilterRefusesWhatItNamesAndNothingElse(t *testing.T) {
	vm, err := bpf.NewVM(syscallFilter())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(arch, number uint32, args ...uint64) int {
		data := make([]byte, 64)
		put := func(at int, v uint32) {
			data[at], data[at+1], data[at+2], data[at+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
		}
		put(numberOffset, number)
		put(archOffset, arch)
		for i, arg := range args {
			put(arg0Offset+8*i, uint32(arg))
			put(arg0Offset+8*i+upperHalfOffset, uint32(arg>>32))
		}
		got, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	own := auditArches[runtime.GOARCH]
	const allowed = unix.SECCOMP_RET_ALLOW
	for _, request := range refusedIoctls {
		if ask(own, unix.SYS_IOCTL, 0, uint64(request)) == allowed {
			t.Errorf("the request %#x is allowed", request)
		}
	}
	for _, number := range slices.Concat(refusedCalls, refusedCallsByArch[runtime.GOARCH]) {
		if got := ask(own, number); got == allowed {
			t.Errorf("the call %d is allowed", number)
		}
	}
	for name, c := range map[string]struct {
		number  uint32
		args    []uint64
		allowed bool
	}{
		"read": {unix.SYS_READ, nil, true}, "execve": {unix.SYS_EXECVE, nil, true}, "clone of a thread": {unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD}, true},
		"clone of a user namespace": {unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, false}, "clone3": {unix.SYS_CLONE3, nil, false},
		"TCP": {unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, true}, "multipath TCP": {unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, false},
		"SCTP": {unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, false}, "a Unix socket": {unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, true},
		"routes": {unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, true}, "a socket to the host of the machine": {unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, false},
		"the kernel's ciphers": {unix.SYS_SOCKET, []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, false}, "a pair": {unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, true}, "a pair of TIPC": {unix.SYS_SOCKETPAIR, []uint64{unix.AF_TIPC, unix.SOCK_STREAM}, false},
		"SMC": {unix.SYS_SOCKET, []uint64{unix.AF_SMC, unix.SOCK_STREAM, 0}, false}, "SMC of the Internet": {unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SMC}, false},
		"limits of its own": {unix.SYS_PRLIMIT64, []uint64{0}, true}, "limits of another process": {unix.SYS_PRLIMIT64, []uint64{77}, false},
		"its mark": {unix.SYS_SETRLIMIT, []uint64{unix.RLIMIT_RTTIME, 1 << 40}, false}, "another limit": {unix.SYS_SETRLIMIT, []uint64{unix.RLIMIT_NOFILE, 1 << 40}, true},
		"its mark by prlimit": {unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_RTTIME, 8}, false}, "its mark from a high address": {unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_RTTIME, 1 << 32}, false},
		"reading its mark": {unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_RTTIME, 0, 1 << 40}, true}, "another limit by prlimit": {unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_NOFILE, 1 << 40}, true},
		"priority of its own": {unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 0}, true}, "priority of a user": {unix.SYS_SETPRIORITY, []uint64{unix.PRIO_USER, 0}, false},
		"its own name": {unix.SYS_PRCTL, []uint64{unix.PR_SET_NAME, 1 << 40}, true}, "cores of another process": {unix.SYS_PRCTL, []uint64{unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_SHARE_TO, 77}, false},
		"size of a terminal": {unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, true}, "typing into a terminal": {unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, false},
		"a flag of a descriptor": {unix.SYS_FCNTL, []uint64{0, unix.F_SETFD}, true}, "a lease of a file": {unix.SYS_FCNTL, []uint64{0, unix.F_SETLEASE}, false},
		"a copy of a file by reference": {unix.SYS_IOCTL, []uint64{0, unix.FICLONE}, true}, "the flags of a file": {unix.SYS_IOCTL, []uint64{0, unix.FS_IOC_GETFLAGS}, true}, "other flags of a file": {unix.SYS_IOCTL, []uint64{0, unix.FS_IOC_SETFLAGS}, false},
	} {
		if got := ask(own, c.number, c.args...); (got == allowed) != c.allowed {
			t.Errorf("%s: allowed %v, want %v", name, got == allowed, c.allowed)
		}
	}
	if ask(unix.AUDIT_ARCH_I386, unix.SYS_READ) == allowed || ask(own, x32Bit|unix.SYS_READ) == allowed && own == unix.AUDIT_ARCH_X86_64 {
		t.Error("a call of another architecture is allowed")
	}
}

// The kernel runs a filter once for each system call when a process installs it. With a list of system calls in the filter, the
// kernel spent 0.3 ms on it, a quarter of the time for isolation.
func TestTheFilterTookAQuarterOfTheStart(t *testing.T) {
	program := syscallFilter()
	for number := range uint32(600) {
		steps := 0
	run:
		for at := 0; ; at, steps = at+1, steps+1 {
			switch i := program[at].(type) {
			case bpf.Jump:
				at += int(i.Skip)
			case bpf.JumpIf:
				value := number
				if at == 1 {
					value = auditArches[runtime.GOARCH]
				}
				if i.Cond == bpf.JumpEqual && value == i.Val || i.Cond == bpf.JumpNotEqual && value != i.Val || i.Cond == bpf.JumpLessThan && value < i.Val {
					at += int(i.SkipTrue)
				} else {
					at += int(i.SkipFalse)
				}
			case bpf.LoadAbsolute:
				if i.Off >= arg0Offset { // the kernel stops here
					break run
				}
			case bpf.RetConstant:
				break run
			}
		}
		if steps > 30 {
			t.Errorf("the filter executes %d instructions for the system call %d", steps, number)
		}
	}
}

func TestAMountIsNoPartOfTheImage(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"image/bin", "image/data/x", "image/etc", "elsewhere"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir+"/elsewhere", dir+"/image/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "image/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hidden := hiddenPaths{dir + "/image/data/x", dir + "/image/etc"}
	found, err := hidden.imagePaths(dir + "/image")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"r" + dir + "/image/bin", "r" + dir + "/image/file"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("a path of mountinfo is %q", got)
	}
}
