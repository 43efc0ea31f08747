package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

func newTable(t *testing.T) *Table {
	t.Helper()
	table, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		table.SignalDescendants(int(unix.SIGKILL))
		testkit.Until(t, "no child left", func() bool { return table.Reap(false, func(Exit) {}) })
	})
	return table
}

// spawn starts a child and returns its PID and a reader of its output.
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

func readLine(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("reading the child's output: %v (got %q)", err, s)
	}
	return strings.TrimSuffix(s, "\n")
}

func awaitExit(t *testing.T, table *Table, id uint64) Exit {
	t.Helper()
	var got *Exit
	testkit.Until(t, "the run to end", func() bool {
		table.Reap(true, func(x Exit) {
			if x.ID == id {
				got = &x
			}
		})
		return got != nil
	})
	return *got
}

func isAlive(pid int) bool {
	st, err := procstat.Read(pid)
	return err == nil && !st.Dead()
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
	if x := awaitExit(t, table, 7); x.PID != pid || x.Code != 42 || x.Signal != 0 || x.Leftover {
		t.Errorf("exit = %+v", x)
	}
	_, out := spawn(t, table, Spec{ID: 8, Argv: testproc.Argv("sleep")})
	readLine(t, out)
	if err := table.Signal(8, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if x := awaitExit(t, table, 8); x.Code != -1 || x.Signal != int(unix.SIGKILL) {
		t.Errorf("exit = %+v", x)
	}
	if err := table.Signal(8, int(unix.SIGTERM)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestOrphansAreReapedAndNotMistakenForServices(t *testing.T) {
	table := newTable(t)
	const n = 200
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do (: &); i=$((i+1)); done", n)
	spawn(t, table, Spec{ID: 1, Argv: []string{"/bin/sh", "-c", script}})
	orphans, ended, childless := 0, 0, false
	testkit.Until(t, "all orphans to be reaped", func() bool {
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
		t.Errorf("%d orphans and %d services reaped, want %d and 1", orphans, ended, n)
	}
}

func TestMutedChildrenStayToBeReapedAndTheSignalComesBack(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	table := newTable(t)
	mute := SIGCHLDSilencer()
	end := func(id uint64) {
		_, out := spawn(t, table, Spec{ID: id, Argv: []string{"/bin/sh", "-c", "exit 3"}})
		_, _ = io.Copy(io.Discard, out)
		if x := awaitExit(t, table, id); x.Code != 3 {
			t.Errorf("run %d: %+v", id, x)
		}
	}
	mute(true)
	id := uint64(0)
	for quiet := 0; quiet < 5; {
		if id++; id > 50 {
			t.Fatal("SIGCHLD comes though it is muted")
		}
		end(id)
		select {
		case <-signals:
			quiet = 0
		default:
			quiet++
		}
	}
	mute(false)
	end(id + 1)
	testkit.Until(t, "SIGCHLD to come again", func() bool { return len(signals) > 0 })
}

func TestEachChildHasItsOwnSessionDirectoryAndTag(t *testing.T) {
	table := newTable(t)
	dir := t.TempDir()
	pid, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("ids"), Dir: dir})
	if got, want := readLine(t, out), fmt.Sprintf("%d %d %d %s", pid, pid, pid, dir); got != want {
		t.Errorf("pid, group, session, directory = %q, want %q", got, want)
	}
	_, out = spawn(t, table, Spec{ID: 2, Name: "svc", Argv: testproc.Argv("env"), Env: []string{TagVar + "=not:this:1", "A=b"}})
	all, _ := io.ReadAll(out)
	if got := string(all); !strings.HasPrefix(got, TagVar+"=svc:") || !strings.HasSuffix(got, ":2\nA=b\n") {
		t.Errorf("environment = %q", got)
	}
}

func TestChildrenStartWithDefaultSignalsEvenIfHinitWasStartedWithSomeBlocked(t *testing.T) {
	RestoreIgnoredSignals() // the parent of the test may ignore some signals
	table := newTable(t)
	table.signalsBlocked = true
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
		// The Go runtime of the test binary would raise its own soft limit, so the command is cat.
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
	if x := awaitExit(t, table, 1); x.Code != 0 {
		t.Errorf("exit = %+v", x)
	}
}

func TestAServiceThatCannotStartReportsTheReason(t *testing.T) {
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

// The error of a failed start must name the option that helps, not only "resource temporarily unavailable".
func TestWhatTheKernelIsShortOfIsSaidWithWhatHelps(t *testing.T) {
	for errno, want := range map[error]string{
		unix.EAGAIN: "--pids-limit", unix.ENOMEM: "--memory", unix.EMFILE: "--ulimit nofile", unix.ENFILE: "fs.file-max",
	} {
		err := &SpawnError{Object: "svc", Err: errno}
		if got := err.Error(); !strings.HasPrefix(got, `cannot start "svc": `+errno.Error()+"; ") || !strings.Contains(got, want) || !err.Temporary() {
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
		_, err := table.Spawn(Spec{ID: 1, Argv: []string{"./run"}, Dir: dir, DirIsFD: strings.HasPrefix(dir, "/proc/")})
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
	readLine(t, out)
	table.RecordMembers(1)
	children := table.members.alive[1]
	if len(children) != 2 {
		t.Fatalf("%d children", len(children))
	}
	if err := table.SignalGroup(1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	reaped := make(map[int]bool)
	testkit.Until(t, "the whole group has ended", func() bool {
		table.Reap(false, func(x Exit) { reaped[x.PID] = x.Signal == int(unix.SIGKILL) })
		return reaped[children[0].PID] && reaped[children[1].PID] && len(reaped) == 3
	})
	if err := table.SignalGroup(1, int(unix.SIGKILL)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("after its end: %v", err)
	}
}

func TestAServiceThatIsAloneIsStoppedWithoutALookAtAllProcesses(t *testing.T) {
	table := newTable(t)
	_, alone := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("sleep")})
	_, parent := spawn(t, table, Spec{ID: 2, Argv: testproc.Argv("children", "2")})
	readLine(t, alone)
	readLine(t, parent)
	looks := func(id uint64) int {
		table.procfs.scannedAt, table.procfs.scanSkippedAt = time.Time{}, time.Time{}
		before := table.procfs.scanCount
		table.RecordMembers(id)
		return table.procfs.scanCount - before
	}
	if n := looks(2); n != 1 || len(table.members.alive[2]) != 2 {
		t.Errorf("%d looks at a service with children, of which %d are known", n, len(table.members.alive[2]))
	}
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		t.Skip("this kernel does not tell who has children")
	}
	if n := looks(1); n != 0 {
		t.Errorf("%d looks at a service that is alone", n)
	}
	table.procfs.scanSkippedAt = time.Now().Add(time.Hour)
	if table.RecordMembers(1); table.procfs.scanCount != 2 {
		t.Errorf("%d looks", table.procfs.scanCount)
	}
}

func TestCredentials(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	table := newTable(t)
	// This user may not be able to read the test binary, so the command is a shell.
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

// A command starts in a directory that only a supplementary group may enter. For a user without this group, the error must say
// why the start fails.
func TestAStartThatOnlyAGroupAllows(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	dir := t.TempDir()
	program := dir + "/group/program"
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Mkdir(dir+"/group", 0o750), os.Chown(dir+"/group", 0, 12345),
		os.WriteFile(program, []byte("#!/bin/sh\nexit 7\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	table := newTable(t)
	spec := Spec{ID: 1, Name: "a", Argv: []string{program}, Dir: "/", Cred: &Cred{UID: 10000, GID: 10000, Groups: []uint32{12345}}}
	if _, err := table.Spawn(spec); err != nil {
		t.Fatal(err)
	}
	if x := awaitExit(t, table, 1); x.Code != 7 {
		t.Errorf("with the group: %+v", x)
	}
	for _, argv := range [][]string{{program}, {"program"}} {
		spec.ID++
		table.checkBudgetFrom = time.Time{}
		spec.Argv, spec.Env, spec.Cred = argv, []string{"PATH=" + dir + "/group"}, &Cred{UID: 10000, GID: 10000}
		var failed *SpawnError
		if _, err := table.Spawn(spec); !errors.As(err, &failed) || !errors.Is(err, unix.EACCES) || !failed.Permanent() {
			t.Errorf("%q without the group: %v", argv, err)
		}
	}
}

// A process that makes its own settings must have its oom_score_adj before its command begins.
func TestAServiceGoesBeforeHinitFromItsFirstInstruction(t *testing.T) {
	table := newTable(t)
	limits := []Limit{{Resource: unix.RLIMIT_CORE}}
	_, out := spawn(t, table, Spec{ID: 1, Argv: []string{"/bin/sh", "-c", "cat /proc/self/oom_score_adj"}, OOMIncrease: 300, Limits: limits})
	if got, want := readLine(t, out), strconv.Itoa(min(table.ownOOMScore+300, maxOOMScoreAdj)); got != want {
		t.Errorf("the process begins with %s, want %s", got, want)
	}
}

// A process that a service was forking while hinit raised the service's oom_score_adj kept hinit's own value, so the kernel would
// kill it after every gateway. With a lot of memory, the kernel needs long for a fork.
func TestAProcessThatWasBeingForkedKeptTheScoreOfHinit(t *testing.T) {
	table := newTable(t)
	const script = `x=$(head -c 30000000 /dev/zero | tr "\0" x); echo ready; for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait`
	_, out := spawn(t, table, Spec{ID: 1, Argv: []string{"/bin/sh", "-c", script}})
	want := strconv.Itoa(min(table.ownOOMScore+300, maxOOMScoreAdj))
	readLine(t, out)
	table.raiseOOMScore(table.MainPID(1), want)
	r := table.runs[1]
	r.oomScore = want // its raisedAt is long ago
	table.raised = append(table.raised, r)
	var children []string
	dir := strconv.Itoa(r.mainPID)
	testkit.Until(t, "the service has forked all", func() bool {
		list, _ := os.ReadFile("/proc/" + dir + "/task/" + dir + "/children")
		children = strings.Fields(string(list))
		return len(children) == 8
	})
	table.Reap(false, func(Exit) {})
	for _, child := range children {
		if got, _ := os.ReadFile("/proc/" + child + "/oom_score_adj"); strings.TrimSpace(string(got)) != want {
			t.Errorf("process %s has %q, want %s", child, got, want)
		}
	}
}

// When memory runs out, a new process must be killed before hinit, and so must all processes that it starts before hinit raises
// its oom_score_adj.
func TestEverythingThatIsStartedGoesBeforeHinit(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Argv: []string{"/bin/sh", "-c", "sleep 1000 & sh -c 'sleep 1000 & echo ready; wait' & wait"}, OOMIncrease: 300})
	readLine(t, out)
	table.RecordMembers(1)
	table.procfs.scan()
	table.assignRuns()
	want := strconv.Itoa(min(table.ownOOMScore+300, maxOOMScoreAdj))
	if n := len(table.members.alive[1]); n != 3 {
		t.Fatalf("%d children", n)
	}
	for _, p := range append(table.members.alive[1], stat{PID: table.MainPID(1)}) {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("process %d has %q, want %s (%v)", p.PID, got, want, err)
		}
	}
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || strings.TrimSpace(string(own)) != strconv.Itoa(table.ownOOMScore) {
		t.Errorf("this process has %q, it had %d (%v)", own, table.ownOOMScore, err)
	}
}

// A service of root may set its own oom_score_adj, as sshd does. hinit overwrote it when it raised the value a second time.
func TestAServiceKeepsTheOOMScoreThatItHasSet(t *testing.T) {
	table := newTable(t)
	const script = "echo 900 >/proc/self/oom_score_adj; echo ready; exec sleep 1000"
	_, out := spawn(t, table, Spec{ID: 1, Argv: []string{"/bin/sh", "-c", script}, OOMIncrease: 300})
	readLine(t, out)
	r := table.runs[1]
	r.raisedAt = time.Time{}
	table.Reap(false, func(Exit) {})
	if got, _ := os.ReadFile("/proc/" + strconv.Itoa(r.mainPID) + "/oom_score_adj"); strings.TrimSpace(string(got)) != "900" {
		t.Errorf("the service has set 900 and has %q", got)
	}
}
