package proc

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/isolation"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// The agent may hold a lease on a program file (fcntl F_SETLEASE). The kernel then delays the execve of the program for 45 s,
// and PID 1 must not wait for that.
func TestAFileThatTheAgentHoldsDoesNotStopPID1(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "run")
	for _, err := range []error{
		os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), testkit.WriteProgram(program, []byte("#!/bin/sh\nexit 7\n")), os.Chown(program, 10000, 10000),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	agent := &Cred{UID: 10000, GID: 10000}
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "holder", Argv: testproc.Argv("lease", program), Dir: "/", Cred: agent})
	readLine(t, out)
	began := time.Now()
	for id := uint64(2); id < 5; id++ {
		if _, err := table.Spawn(Spec{ID: id, Name: "svc", Argv: []string{program}, Env: os.Environ(), Dir: dir, Cred: agent}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("three starts took %v", took)
	}
}

// hinit-isolate can change the user itself. Only the program in hinit's directory may do that, because a program of the same
// name elsewhere would run as root.
func TestAnIsolatedGatewayBeginsInHinitIsolate(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	table, other := newTable(t), filepath.Join(t.TempDir(), isolation.Program)
	t.Cleanup(func() { _ = os.Remove(isolation.ProgramPath()) })
	for i, path := range []string{isolation.ProgramPath(), other} {
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err == nil {
				err = os.Chmod(dir, info.Mode()|0o055)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := testkit.WriteProgram(path, []byte("#!/bin/sh\necho $(id -u) $*\n")); err != nil {
			t.Fatal(err)
		}
		_, out := spawn(t, table, Spec{ID: uint64(i + 1), Name: "svc", Argv: []string{path, "name=x"}, Dir: "/", Cred: &Cred{UID: 12321, GID: 12321}})
		want := "12321 name=x"
		if path == isolation.ProgramPath() {
			want = "0 user=12321:12321 dir=/ -- " + path + " " + path + " name=x"
		}
		if got := readLine(t, out); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A child must call execve before it changes to the agent's user. PID 1 waits for the execve, and the agent could delay it.
func TestAChildOfPID1ExecutesBeforeItIsTheAgents(t *testing.T) {
	agent := &Cred{UID: uint32(os.Geteuid()) + 1, GID: 1}
	if sys := sysProcAttr(Spec{Cred: agent}); sys.Credential != nil {
		t.Errorf("it changes its user between fork and execve: %+v", sys.Credential)
	}
}

// slowDir returns a directory to which the kernel follows links for milliseconds. The agent's user can reach it.
func slowDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	deep, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range 1900 {
		at := deep
		if err == nil {
			err = unix.Mkdirat(at, "d", 0o755)
		}
		if err == nil {
			deep, err = unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		unix.Close(at)
	}
	way := dir + strings.Repeat("/d", 1900) + "/"
	for i := range 38 {
		if err == nil {
			err = unix.Symlinkat(way+strconv.Itoa(i+1), deep, strconv.Itoa(i))
		}
	}
	unix.Close(deep)
	if err := errors.Join(err, os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Symlink(way+"0", dir+"/x")); err != nil {
		t.Fatal(err)
	}
	return dir + "/x"
}

// TestACommandPanickedWhileTheVolumeHung checks that a program of the command line starts a command of the agent's user whose
// path takes long. hinit profile create panicked on a volume that did not answer within a second. An agent could do the same to
// hinit shell.
func TestACommandPanickedWhileTheVolumeHung(t *testing.T) {
	testkit.SkipIfShort(t)
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, err = Run(t.Context(), Spec{
		ID: 1, Name: "command", Argv: []string{"nothere"}, Env: []string{"PATH=" + strings.Repeat(slowDir(t)+":", 300)}, Dir: "/", Cred: &Cred{UID: 10000, GID: 10000},
		Files: []*os.File{null, null, null},
	})
	if err != nil && !errors.Is(err, unix.ENOENT) { // a fast machine may find that the program does not exist
		t.Fatal(err)
	}
}

// PID 1 must not follow a PATH of an agent for long. A PATH of links through thousands of directories takes minutes, in
// which PID 1 would answer no status and reap nothing.
func TestAPathThatTakesMinutesDoesNotHoldUpPID1(t *testing.T) {
	testkit.SkipIfShort(t)
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	slowPath := []string{"PATH=" + strings.Repeat(slowDir(t)+":", 300)}
	agent := &Cred{UID: 10000, GID: 10000}
	table := newTable(t)
	start := func(id uint64, name string) {
		pid, err := table.Spawn(Spec{ID: id, Name: name, Argv: []string{"nothere"}, Env: slowPath, Dir: "/", Cred: agent})
		switch {
		case err == nil:
			_ = unix.Kill(pid, unix.SIGKILL) // the child's own search would only take seconds of the processor
		case !errors.Is(err, unix.ENOENT): // a fast machine may find that the program does not exist
			t.Fatal(err)
		}
	}
	began := time.Now()
	for id := uint64(1); id < 11; id++ { // each search takes 2 s or more
		start(id, "run")
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("10 starts took %v", took)
	}
	// The growing pause of one slow service must not delay the look-ups of other services.
	_, slow := table.slowServices["run"]
	if left := time.Until(table.checkBudgetFrom); left > checkTimeShare*maxCheckTime/2 {
		t.Errorf("the looks of others wait for %v", left)
	}
	// Ten seconds later, other services must not delay PID 1 for another second.
	table.checkBudgetFrom = table.checkBudgetFrom.Add(-10 * time.Second)
	for id := uint64(11); id < 20; id++ {
		start(id, "run"+strconv.Itoa(int(id)))
	}
	if left := time.Until(table.checkBudgetFrom); left > checkTimeShare*maxCheckTime/2 {
		t.Errorf("the looks of nine other services took %v more than their share", left/checkTimeShare)
	}
	table.checkBudgetFrom = time.Time{}
	blocking.Run(blocking.Programs, func() {})
	for name, looks := range map[string]bool{"other": true, "run": !slow} {
		_, err := table.Spawn(Spec{ID: 20, Name: name, Argv: []string{"nothere"}, Env: []string{"PATH=/nothere"}, Dir: "/", Cred: agent})
		if (err != nil) != looks {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Program look-ups that hang, as on a dead network mount, must leave threads for all other blocking calls.
func TestPathsThatHangHoldUpNoOtherWork(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	free := make(chan struct{})
	defer close(free)
	hangs := make(chan struct{})
	go blocking.Run(blocking.Programs, func() { close(hangs); <-free })
	<-hangs
	table := newTable(t)
	began := time.Now()
	for id := uint64(1); id < 4; id++ {
		if _, err := table.Spawn(Spec{ID: id, Name: "run", Argv: []string{"nothere"}, Env: []string{"PATH=/nothere"}, Dir: "/", Cred: &Cred{UID: 10000, GID: 10000}}); err != nil {
			t.Errorf("its paths are looked at: %v", err)
		}
	}
	if took := time.Since(began); took > 3*maxCheckTime/2 {
		t.Errorf("three starts took %v", took)
	}
	if !blocking.HasFreeTurn(blocking.Foreign) {
		t.Error("there is no turn for other work")
	}
}

// If PID 1 has not found a command in time, the new process must find it, as the agent.
func TestACommandThatPID1HasNotLookedUpIsFound(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	table := newTable(t)
	table.checkBudgetFrom = time.Now().Add(time.Hour)
	for name, code := range map[string]int{"true": 0, "nothere": 127} {
		id := uint64(code + 1)
		spec := Spec{ID: id, Name: "run", Argv: []string{name}, Env: []string{"PATH=/nothere:/bin:/usr/bin"}, Dir: "/", Cred: &Cred{UID: 10000, GID: 10000}}
		if _, err := table.Spawn(spec); err != nil {
			t.Fatal(err)
		}
		if x := awaitExit(t, table, id); x.Code != code {
			t.Errorf("%s: %+v", name, x)
		}
	}
}

// A run must not start in a directory that PID 1 has open, if its directory is a link in /proc/self/fd. The error must not tell
// which directories PID 1 has open.
func TestARunEntersNoDescriptorOfPID1(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	table, dir := newTable(t), t.TempDir()
	var at [2]string
	for i, file := range []string{dir, "/etc/passwd"} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		// No child has opened a descriptor with this high number.
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 100)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		at[i] = "self/fd/" + strconv.Itoa(fd)
	}
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Symlink("/proc/"+at[0], link)); err != nil {
		t.Fatal(err)
	}
	for i, path := range []string{"/proc/" + at[0], "/proc/" + at[1], "/proc/self/fd/9999", "/proc/thread-" + at[0], "//proc/" + at[0], link} {
		id := uint64(i + 1)
		_, out := spawn(t, table, Spec{ID: id, Name: "run", Argv: []string{"/bin/pwd"}, Dir: path, Cred: &Cred{UID: 10000, GID: 10000}})
		got, _ := io.ReadAll(out)
		if x := awaitExit(t, table, id); x.Code != 126 || len(got) > 0 {
			t.Errorf("in %s it ended with %d and wrote %q", path, x.Code, got)
		}
	}
}
