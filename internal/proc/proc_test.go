package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
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

// await polls until cond holds.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 10s for: %s", what)
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

func TestEachChildHasItsOwnSessionDirectoryAndTag(t *testing.T) {
	table := newTable(t)
	dir := t.TempDir()
	pid, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("ids"), Dir: dir})
	if got, want := line(t, out), fmt.Sprintf("%d %d %d %s", pid, pid, pid, dir); got != want {
		t.Errorf("pid, group, session, directory = %q, want %q", got, want)
	}
	_, out = spawn(t, table, Spec{ID: 2, Name: "svc", Argv: testproc.Argv("env"), Env: []string{"A=b"}})
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
		{Spec{Argv: []string{"/bin/true"}, Dir: "/no/dir"}, 127, `cannot start "/no/dir": no such file`},
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
	if n := table.SignalTree(1, int(unix.SIGKILL)); n != 2 {
		t.Errorf("signalled %d, want 2", n)
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
		if !ok || st != (stat{12, 1, 2, 3, 'S', 777}) {
			t.Errorf("%q: %+v %v", name, st, ok)
		}
	}
	for _, bad := range []string{"", "12", "12 (sh)", "x (sh)" + tail, "12 (sh) S 1"} {
		if _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}
