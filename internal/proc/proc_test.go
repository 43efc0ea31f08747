package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"hinit/internal/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main()
	if len(os.Args) > 0 && os.Args[0] == LimitsName {
		code, err := LimitsMain(os.Args)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

func newTable(t *testing.T) *Table {
	t.Helper()
	table, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		table.SignalRest(int(unix.SIGKILL))
		await(t, "no child left", func() bool { return table.Reap(false, func(Exit) {}) })
	})
	return table
}

// patience is how long a test waits for what has to come. It costs nothing when all is well.
const patience = 40 * time.Second

// await polls until cond holds.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// spawn starts a child and returns a reader of its output.
func spawn(t *testing.T, table *Table, spec Spec) (int, *bufio.Reader) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	spec.Files = []*os.File{nil, w, os.Stderr}
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	pid, err := table.Spawn(spec)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return pid, bufio.NewReader(r)
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("reading the child's output: %v (got %q)", err, s)
	}
	return strings.TrimSuffix(s, "\n")
}

// exitOf reaps until the run has ended.
func exitOf(t *testing.T, table *Table, id uint64) Exit {
	t.Helper()
	var got *Exit
	await(t, "the run to end", func() bool {
		table.Reap(true, func(x Exit) {
			if x.ID == id {
				got = &x
			}
		})
		return got != nil
	})
	return *got
}

func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	st, ok := parseStat(b)
	return err == nil && ok && !st.dead()
}

func TestSiginfoLayoutMatchesTheKernels(t *testing.T) {
	if got, want := unsafe.Sizeof(sigchldInfo{}), unsafe.Sizeof(unix.Siginfo{}); got != want {
		t.Fatalf("size %d, want %d", got, want)
	}
	if got, want := unsafe.Offsetof(sigchldInfo{}.pid), 3*unsafe.Sizeof(int32(0))+unsafe.Sizeof(uintptr(0))-4; got != want {
		t.Fatalf("pid at %d, want %d", got, want)
	}
}

func TestExitCodesAndSignalsAreReportedForTheirRun(t *testing.T) {
	table := newTable(t)
	pid, _ := spawn(t, table, Spec{ID: 7, Argv: testproc.Argv("exit", "42")})
	if x := exitOf(t, table, 7); x.PID != pid || x.Code != 42 || x.Signal != 0 || x.Leftover {
		t.Errorf("exit = %+v", x)
	}
	_, out := spawn(t, table, Spec{ID: 8, Argv: testproc.Argv("sleep")})
	line(t, out)
	if err := table.Signal(8, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if x := exitOf(t, table, 8); x.Code != -1 || x.Signal != int(unix.SIGKILL) {
		t.Errorf("exit = %+v", x)
	}
	if err := table.Signal(8, int(unix.SIGTERM)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestOrphansAreBuriedAndNotMistakenForServices(t *testing.T) {
	table := newTable(t)
	const n = 200
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do (: &); i=$((i+1)); done", n)
	spawn(t, table, Spec{ID: 1, Argv: []string{"/bin/sh", "-c", script}})
	orphans, ended, childless := 0, 0, false
	await(t, "all orphans to be buried", func() bool {
		childless = table.Reap(false, func(x Exit) {
			if x.ID == 0 {
				orphans++
			} else {
				ended++
			}
		})
		return childless
	})
	if orphans != n || ended != 1 {
		t.Errorf("%d orphans and %d services buried, want %d and 1", orphans, ended, n)
	}
}

func TestHushedChildrenStayToBeBuriedAndTheSignalComesBack(t *testing.T) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGCHLD)
	defer signal.Stop(told)
	table := newTable(t)
	hush := Hush()
	end := func(id uint64) {
		_, out := spawn(t, table, Spec{ID: id, Argv: []string{"/bin/sh", "-c", "exit 3"}})
		_, _ = io.Copy(io.Discard, out)
		if x := exitOf(t, table, id); x.Code != 3 {
			t.Errorf("run %d: %+v", id, x)
		}
	}
	hush(true)
	id := uint64(0)
	for quiet := 0; quiet < 5; { // a signal of an earlier child may still be on its way
		if id++; id > 50 {
			t.Fatal("SIGCHLD comes though it is hushed")
		}
		end(id)
		select {
		case <-told:
			quiet = 0
		default:
			quiet++
		}
	}
	hush(false)
	end(id + 1)
	await(t, "SIGCHLD to come again", func() bool { return len(told) > 0 })
}

func TestEachChildHasItsOwnSessionDirectoryAndTag(t *testing.T) {
	table := newTable(t)
	dir := t.TempDir()
	pid, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("ids"), Dir: dir})
	if got, want := line(t, out), fmt.Sprintf("%d %d %d %s", pid, pid, pid, dir); got != want {
		t.Errorf("pid, group, session, directory = %q, want %q", got, want)
	}
	_, out = spawn(t, table, Spec{ID: 2, Name: "svc", Argv: testproc.Argv("env"), Env: []string{TagVar + "=not:this:1", "A=b"}})
	all, _ := io.ReadAll(out)
	if got := string(all); !strings.HasPrefix(got, "A=b\n"+TagVar+"=svc:") || !strings.HasSuffix(got, ":2\n") {
		t.Errorf("environment = %q", got)
	}
}

func TestChildrenStartWithDefaultSignalsEvenIfHinitWasStartedWithSomeBlocked(t *testing.T) {
	Unignore() // whoever started the tests may ignore some
	table := newTable(t)
	table.masked = true
	_, out := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("status")})
	all, _ := io.ReadAll(out)
	for _, want := range []string{"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"} {
		if !strings.Contains(string(all), want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

func TestLimitsAreInForce(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{
		// Not the test binary: the Go runtime raises its own soft limit.
		ID: 1, Argv: []string{"/bin/cat", "/proc/self/limits"},
		Limits: []Limit{{unix.RLIMIT_NOFILE, 123, 456}, {unix.RLIMIT_CORE, 0, unix.RLIM_INFINITY}},
	})
	all, _ := io.ReadAll(out)
	fields := func(name string) []string {
		for l := range strings.Lines(string(all)) {
			if rest, ok := strings.CutPrefix(l, name); ok {
				return strings.Fields(rest)[:2]
			}
		}
		return nil
	}
	if got := fields("Max open files"); !slices.Equal(got, []string{"123", "456"}) {
		t.Errorf("open files %v in\n%s", got, all)
	}
	if x := exitOf(t, table, 1); x.Code != 0 {
		t.Errorf("exit = %+v", x)
	}
}

func TestAServiceThatCannotStartSaysWhy(t *testing.T) {
	table := newTable(t)
	dir := t.TempDir()
	plain := dir + "/plain"
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec Spec
		code int
		want string
	}{
		{Spec{Argv: []string{"/no/such"}}, 127, `cannot start "/no/such": no such file or directory`},
		{Spec{Argv: []string{"nosuchcommand"}, Env: []string{"PATH=/bin"}}, 127, `cannot start "nosuchcommand": no such file`},
		{Spec{Argv: []string{plain}}, 126, `cannot start "` + plain + `": permission denied`},
		{Spec{Argv: []string{"/bin/true"}, Dir: "/no/dir"}, 127, `cannot enter the working directory (cwd) "/no/dir": no such file`},
		{Spec{Name: "svc"}, 126, `cannot start "svc": the command is empty`},
	} {
		c.spec.ID = 1
		_, err := table.Spawn(c.spec)
		bad := (*SpawnError)(nil)
		if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), c.want) || bad.ShellCode() != c.code {
			t.Errorf("%+v: error %v", c.spec, err)
		}
	}
}

// TestWhatTheKernelIsShortOfIsSaidWithWhatHelps: "resource temporarily unavailable" told nobody what to do.
func TestWhatTheKernelIsShortOfIsSaidWithWhatHelps(t *testing.T) {
	for errno, want := range map[error]string{
		unix.EAGAIN: "--pids-limit", unix.ENOMEM: "--memory", unix.EMFILE: "--ulimit nofile", unix.ENFILE: "fs.file-max",
	} {
		err := &SpawnError{What: "svc", Err: errno}
		if got := err.Error(); !strings.HasPrefix(got, `cannot start "svc": `+errno.Error()+"; ") || !strings.Contains(got, want) || !err.Passing() {
			t.Errorf("%v is told as %q, which has no %q", errno, got, want)
		}
	}
}

func TestACommandInItsOwnDirectoryIsNamedWhole(t *testing.T) {
	table, dir := newTable(t), t.TempDir()
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for _, dir := range []string{dir, fmt.Sprintf("/proc/self/fd/%d", open.Fd())} {
		_, err := table.Spawn(Spec{ID: 1, Argv: []string{"./run"}, Dir: dir})
		if err == nil || !strings.Contains(err.Error(), open.Name()+"/run") {
			t.Errorf("error %v", err)
		}
	}
}

func TestDescriptorsWithoutAFileAreClosed(t *testing.T) {
	table := newTable(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	argv := []string{"/bin/sh", "-c", "for f in 0 1 2 3 4 5 6; do [ -e /proc/$$/fd/$f ] && echo $f; done"}
	_, err = table.Spawn(Spec{ID: 1, Argv: argv, Files: []*os.File{nil, w, nil, nil, nil, w}})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "0\n1\n2\n5\n" {
		t.Errorf("open are %q (%v)", got, err)
	}
}

func TestAGroupIsSignalledOnlyWhileItsLeaderHoldsTheNumber(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("children", "2")})
	line(t, out)
	table.Observe(1)
	children := table.fam.living[1]
	if len(children) != 2 {
		t.Fatalf("%d children", len(children))
	}
	if err := table.SignalGroup(1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	buried := make(map[int]bool) // the children come to this process when their parent is gone
	await(t, "the whole group has ended", func() bool {
		table.Reap(false, func(x Exit) { buried[x.PID] = x.Signal == int(unix.SIGKILL) })
		return buried[children[0].pid] && buried[children[1].pid] && len(buried) == 3
	})
	if err := table.SignalGroup(1, int(unix.SIGKILL)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("after its end: %v", err)
	}
}

func TestAServiceThatIsAloneIsStoppedWithoutALookAtAllProcesses(t *testing.T) {
	table := newTable(t)
	_, alone := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("sleep")})
	_, parent := spawn(t, table, Spec{ID: 2, Argv: testproc.Argv("children", "2")})
	line(t, alone)
	line(t, parent)
	looks := func(id uint64) int {
		table.proc.at, table.proc.spared = time.Time{}, time.Time{} // long ago
		before := table.proc.looks
		table.Observe(id)
		return table.proc.looks - before
	}
	if n := looks(2); n != 1 || len(table.fam.living[2]) != 2 {
		t.Errorf("%d looks at a service with children, of which %d are known", n, len(table.fam.living[2]))
	}
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		t.Skip("this kernel does not tell who has children")
	}
	if n := looks(1); n != 0 {
		t.Errorf("%d looks at a service that is alone", n)
	}
	table.proc.spared = time.Now().Add(time.Hour) // just now, however long this process is held up
	if table.Observe(1); table.proc.looks != 2 {  // many at a time: one look for all of them
		t.Errorf("%d looks", table.proc.looks)
	}
}

func TestCredentials(t *testing.T) {
	if os.Getuid() != 0 {
		skipUnlessCI(t, "needs root")
	}
	table := newTable(t)
	// The test binary is not readable for everyone; the shell is.
	_, out := spawn(t, table, Spec{
		ID: 1, Argv: []string{"/bin/cat", "/proc/self/status"},
		Cred: &Cred{UID: 10000, GID: 10001, Groups: []uint32{10001, 44}},
	})
	all, _ := io.ReadAll(out)
	for _, want := range []string{"Uid:\t10000\t10000\t10000\t10000", "Gid:\t10001\t10001\t10001\t10001", "Groups:\t44 10001"} {
		if !strings.Contains(string(all), want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

func skipUnlessCI(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func TestADaemonThatEscapedIsFoundAndKilledWithItsService(t *testing.T) {
	for _, how := range []string{"tagged", "clean"} {
		t.Run(how, func(t *testing.T) {
			table := newTable(t)
			if how == "tagged" {
				table.marks = marker{} // as where the limit can't be set
			}
			_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("escape", how, "deaf")})
			daemon, err := strconv.Atoi(line(t, out))
			if err != nil {
				t.Fatal(err)
			}
			if how == "tagged" { // the kernel shows a process without an environment before it shows it with its own
				await(t, "the daemon to carry the tag", func() bool { return table.tagged(daemon) == 1 })
			}
			if n := table.SignalTree(1, int(unix.SIGKILL)); n != 2 {
				t.Errorf("signalled %d processes, want 2", n)
			}
			exitOf(t, table, 1)
			await(t, "the daemon to be gone", func() bool {
				table.Reap(true, func(Exit) {})
				return !alive(daemon) && len(table.Gone([]uint64{1})) == 1
			})
		})
	}
}

// TestASiblingOfTheMainProcessIsLeftBehind: a process can make a child of its own parent. That is a child of the thread that started the
// main process, which need not be the one that takes in orphans.
func TestASiblingOfTheMainProcessIsLeftBehind(t *testing.T) {
	for range 4 { // on any thread
		table := newTable(t)
		_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("sibling")})
		pid, err := strconv.Atoi(line(t, out))
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Signal(1, int(unix.SIGTERM)); err != nil {
			t.Fatal(err)
		}
		if x := exitOf(t, table, 1); !x.Leftover {
			t.Errorf("process %d is not said to be left behind", pid)
		}
		if n := table.SignalTree(1, int(unix.SIGKILL)); n != 1 {
			t.Errorf("signalled %d processes, want 1", n)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		await(t, "the sibling to be gone", func() bool {
			table.Reap(true, func(Exit) {})
			return !alive(pid)
		})
	}
}

// TestAProcessThatHidesItsRunIsNamed: it has left its parents, session and environment and lowered its mark, so that nothing tells
// whose it is. Who ends before it was started is not suspected.
func TestAProcessThatHidesItsRunIsNamed(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("hide")})
	daemon, err := strconv.Atoi(line(t, out))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(daemon, unix.SIGKILL) })
	if table.marks.next == 0 {
		t.Skip("there are no marks here")
	}
	table.SignalTree(1, int(unix.SIGKILL))
	if x := exitOf(t, table, 1); x.Leftover || !slices.Equal(x.Strays, []int{daemon}) {
		t.Errorf("leftover is %v, and these hide: %v, not %d", x.Leftover, x.Strays, daemon)
	}
	if !alive(daemon) {
		t.Error("it was killed on a guess")
	}
	p, _ := table.proc.stat(daemon)
	await(t, "a tick of the kernel's clock", func() bool { // else both may have begun in the same one
		pid, _ := spawn(t, table, Spec{ID: 2, Name: "later", Argv: testproc.Argv("exit")})
		later, ok := table.proc.stat(pid)
		x := exitOf(t, table, 2)
		table.Forget(2)
		if !ok || later.start <= p.start {
			return false
		}
		if len(x.Strays) != 0 {
			t.Errorf("of a run that began later these are said to hide: %v", x.Strays)
		}
		return true
	})
}

// TestAProcessWhoseFirstThreadHasEndedIsAlive: the kernel shows it as a zombie, and it was taken for one.
func TestAProcessWhoseFirstThreadHasEndedIsAlive(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("escape", "clean", "headless")})
	daemon, err := strconv.Atoi(line(t, out))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "its first thread to end", func() bool {
		p, ok := table.proc.stat(daemon)
		return ok && p.state == 'Z'
	})
	if n := table.SignalTree(1, int(unix.SIGTERM)); n != 2 {
		t.Errorf("signalled %d processes, want 2", n)
	}
	if x := exitOf(t, table, 1); !x.Leftover {
		t.Error("nothing is said to be left behind")
	}
	if len(table.Gone([]uint64{1})) != 0 {
		t.Error("the run is said to be gone")
	}
	table.SignalTree(1, int(unix.SIGKILL))
	await(t, "the daemon to be gone", func() bool {
		table.Reap(true, func(Exit) {})
		return unix.Kill(daemon, 0) != nil && len(table.Gone([]uint64{1})) == 1
	})
}

func TestAnotherServicesDaemonIsLeftAlone(t *testing.T) {
	table := newTable(t)
	daemons := make([]int, 2)
	for i := range daemons {
		_, out := spawn(t, table, Spec{ID: uint64(i + 1), Name: "svc", Argv: testproc.Argv("escape", "clean", "deaf")})
		daemons[i], _ = strconv.Atoi(line(t, out))
	}
	table.SignalTree(1, int(unix.SIGKILL))
	exitOf(t, table, 1)
	await(t, "the first daemon to be gone", func() bool {
		table.Reap(true, func(Exit) {})
		return !alive(daemons[0])
	})
	if !alive(daemons[1]) {
		t.Error("the daemon of the other service is gone")
	}
}

func TestMarksNestAndRunOut(t *testing.T) {
	m := marker{base: firstMark, next: firstMark, step: outerStep}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTTIME, &before); err != nil {
		t.Fatal(err)
	}
	if before.Max < firstMark>>1 {
		t.Skip("real-time scheduling is limited here")
	}
	first := m.take()
	if first == 0 && before.Max != unix.RLIM_INFINITY {
		t.Skip("this process has lower marks already")
	}
	nested := newMarker()
	if nested.step != nestedStep || nested.next != first {
		t.Errorf("nested marker %+v under mark %d", nested, first)
	}
	inner := nested.take()
	if inner >= first || inner <= first-outerStep {
		t.Errorf("inner mark %d is not within the outer run's range (%d, %d]", inner, first-outerStep, first)
	}
	m.next = firstMark >> 1
	if m.take() != 0 {
		t.Error("marks go below their floor")
	}
}

func TestWhatACrashLeavesBehindIsReported(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("children", "3")})
	line(t, out)
	if err := table.Signal(1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if x := exitOf(t, table, 1); !x.Leftover {
		t.Fatalf("exit = %+v, want leftovers", x)
	}
	if gone := table.Gone([]uint64{1}); len(gone) != 0 {
		t.Error("reported as gone while children live")
	}
	if n := table.SignalTree(1, int(unix.SIGTERM)); n != 3 {
		t.Errorf("signalled %d, want 3", n)
	}
	await(t, "all gone", func() bool {
		table.Reap(true, func(Exit) {})
		return len(table.Gone([]uint64{1})) == 1
	})
}

func TestAnotherUsersEscapeeIsFoundByRootWithoutPtraceCapability(t *testing.T) {
	if os.Getuid() != 0 {
		skipUnlessCI(t, "needs root")
	}
	table := newTable(t)
	script := `(setsid sleep 100 >/dev/null 2>&1 & echo $!) ; exec sleep 100`
	_, out := spawn(t, table, Spec{
		ID: 1, Name: "svc", Argv: []string{"/bin/sh", "-c", script}, Dir: "/", Cred: &Cred{UID: 10000, GID: 10000},
	})
	daemon, err := strconv.Atoi(line(t, out))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the orphan to carry the tag", func() bool {
		_, err := readAs("/proc/"+strconv.Itoa(daemon)+"/environ", 10000, 10000)
		return err == nil && table.tagged(daemon) == 1
	})
	if n := table.SignalTree(1, int(unix.SIGKILL)); n < 2 || n > 3 { // the shell that made the daemon may be there still
		t.Errorf("signalled %d, want 2 or 3", n)
	}
	if uid := syscall.Geteuid(); uid != 0 {
		t.Errorf("this process's user is %d now", uid)
	}
}

func TestAProcessThatForksWhileBeingKilledDoesNotGetAway(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{
		ID: 1, Name: "svc", Argv: []string{"/bin/sh", "-c", "echo ready; while :; do (sleep 5 &) ; done"},
	})
	line(t, out)
	table.SignalTree(1, int(unix.SIGKILL))
	exitOf(t, table, 1)
	await(t, "everything of it to be gone", func() bool {
		table.SignalTree(1, int(unix.SIGKILL))
		table.Reap(true, func(Exit) {})
		return len(table.Gone([]uint64{1})) == 1
	})
}

func TestParseStatSurvivesAnyCommandName(t *testing.T) {
	tail := " S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0"
	for _, name := range []string{"sh", "a b", "x) S 9 9", "((", ")"} {
		st, ok := parseStat([]byte("12 (" + name + ")" + tail))
		if !ok || st != (stat{12, 1, 2, 3, 'S', 1, 777}) {
			t.Errorf("%q: %+v %v", name, st, ok)
		}
	}
	for _, bad := range []string{"", "12", "12 (sh)", "x (sh)" + tail, "12 (sh) S 1"} {
		if _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestEverythingThatIsStartedGoesBeforeHinit: the process, and what it has started itself before this one had a word with the kernel.
func TestEverythingThatIsStartedGoesBeforeHinit(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Argv: []string{"/bin/sh", "-c", "sleep 1000 & sh -c 'sleep 1000 & echo ready; wait' & wait"}, OOM: 300})
	line(t, out)
	table.Observe(1)
	table.proc.look()
	table.sort()
	want := strconv.Itoa(min(int(table.oom)+300, oomMost))
	if n := len(table.fam.living[1]); n != 3 {
		t.Fatalf("%d children", n)
	}
	for _, p := range append(table.fam.living[1], stat{pid: table.Main(1)}) {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.pid))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("process %d has %q, want %s (%v)", p.pid, got, want, err)
		}
	}
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || strings.TrimSpace(string(own)) != strconv.Itoa(int(table.oom)) {
		t.Errorf("this process has %q, it had %d (%v)", own, table.oom, err)
	}
}
