package logrotate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// testService is a Log with open pipes, and a console with a reader.
type testService struct {
	t          *testing.T
	set        *Set
	log        *Log
	stdoutSink *sink
	warn       *warnings
	dir        string

	stdout, stderr *os.File
	written        []string
}

func newService(t *testing.T, dir string, o Options) *testService {
	t.Helper()
	v := &testService{t: t, stdoutSink: newSink(t), warn: &warnings{}, dir: dir}
	o.Stdout, o.Warn = v.stdoutSink.file, v.warn.add
	v.set = newSet(o)
	v.log = v.set.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	v.stdout, v.stderr = openPipes(t, v.log)
	return v
}

// printLine writes a line to the pipe and waits until the console shows it.
func (v *testService) printLine(line string) {
	v.t.Helper()
	writeText(v.t, v.stdout, line+"\n")
	v.written = append(v.written, line)
	v.wantOnConsole(line)
}

func (v *testService) wantOnConsole(line string) {
	v.t.Helper()
	testkit.Until(v.t, fmt.Sprintf("%.50q on the console", line), func() bool {
		return strings.HasSuffix("\n"+v.stdoutSink.textSoFar(), "\n"+line+"\n")
	})
}

// wantInFile waits until the file ends with line.
func (v *testService) wantInFile(line string) {
	v.t.Helper()
	testkit.Until(v.t, fmt.Sprintf("%.50q in the file", line), func() bool {
		data, _ := os.ReadFile(filepath.Join(v.dir, archive.CurrentFile))
		return strings.HasSuffix(string(data), "  "+line+"\n")
	})
}

func (v *testService) closeOutputs() {
	v.t.Helper()
	closeAll(v.stdout, v.stderr)
	closeSet(v.t, v.set)
}

// TestWhoComesNextSeesWhetherAFileIsFinished checks the mode of the file current, by which s6-log
// recognises a complete file (contract of s6, section 7).
func TestWhoComesNextSeesWhetherAFileIsFinished(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, archive.CurrentFile)
	if err := os.WriteFile(path, []byte("2026-11-22 00:00:00.000000000  of s6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o744); err != nil { // Chmod, because the umask may have removed bits of the mode.
		t.Fatal(err)
	}
	mode := func() os.FileMode {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	v := newService(t, dir, Options{})
	v.printLine("of hinit")
	v.wantInFile("of hinit")
	if mode() != 0o644 {
		t.Errorf("while it is written its mode is %v", mode())
	}
	v.closeOutputs()
	if mode() != 0o744 {
		t.Errorf("in the end its mode is %v", mode())
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := newService(t, dir, Options{limits: Limits{MaxSize: 5000, Archives: 1000}})
	var want []string
	for i := range 2000 {
		line := fmt.Sprintf("line %d %s", i, strings.Repeat("y", i%120))
		if i == 1000 {
			line = strings.Repeat("larger than a file", 500)
		}
		want = append(want, line)
	}
	writeText(t, v.stdout, strings.Join(want, "\n")+"\n")
	v.closeOutputs()
	checkLines(t, storedLines(t, dir), want...)
	paths, err := archivePaths(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 30 {
		t.Errorf("only %d archives", len(paths))
	}
	for _, path := range paths {
		lines := fileLines(t, path) // fileLines also checks that each line is complete.
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st.Size() > 5000 && len(lines) > 1 {
			t.Errorf("%s has %d bytes", path, st.Size())
		}
		if st.Size() < 5000-int64(stampLen)-130 && !strings.Contains(lines[len(lines)-1], "line 999 ") && len(lines) > 1 {
			t.Errorf("%s is rotated at %d bytes", path, st.Size())
		}
		if st.Mode() != 0o644 {
			t.Errorf("%s has mode %v", path, st.Mode())
		}
	}
	v.warn.checkContains(t)
}

func TestPrune(t *testing.T) {
	t.Parallel()
	for _, keep := range []int{3, 0} {
		dir := t.TempDir()
		// Archives with old and future times, and archives of s6-log, must all count.
		for _, name := range []string{"@400000006b00e1dd1213c744.s", "@400000005c2aad0a00000000.s.gz", "@400000078fa50a8000000000.s"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		v := newService(t, dir, Options{})
		v.log.SetLimits(Limits{MaxSize: 200, Archives: keep})
		var want []string
		for i := range 30 {
			want = append(want, fmt.Sprintf("%3d%s", i, strings.Repeat("z", 150)))
		}
		writeText(t, v.stdout, strings.Join(want, "\n")+"\n")
		v.closeOutputs()
		checkLines(t, storedLines(t, dir), want[len(want)-1-keep:]...)
		v.warn.checkContains(t)
	}
}

func TestExistingFileIsContinued(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := "2026-11-21 00:08:34.292924624  "
	if err := os.WriteFile(filepath.Join(dir, archive.CurrentFile), []byte(old+"whole\n"+old+"torn by a crash"), 0o744); err != nil {
		t.Fatal(err)
	}
	v := newService(t, dir, Options{})
	v.printLine("new")
	v.closeOutputs()
	checkLines(t, fileLines(t, filepath.Join(dir, archive.CurrentFile)), "whole", "torn by a crash", "new")
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	disk := mountSmallDisk(t, size)
	dir := filepath.Join(disk, "coder")
	v := newService(t, dir, Options{limits: Limits{MaxSize: 1 << 30}})
	v.printLine("before")
	v.wantInFile("before")
	ballast := filepath.Join(disk, "ballast")
	if err := os.WriteFile(ballast, make([]byte, size/2), 0o600); err != nil {
		t.Fatal(err)
	}
	// The lines exceed the disk and the buffer.
	const lines = 20_000
	for i := range lines {
		line := fmt.Sprintf("line %5d %s", i, strings.Repeat("f", 89))
		writeText(t, v.stdout, line+"\n")
	}
	testkit.Until(t, "all lines are read", func() bool { return v.log.Stats().Lines == lines+1 })
	v.warn.checkContains(t, "no space left on device")
	if st := v.log.Stats(); st.LinesLost == 0 || !strings.Contains(st.LastError, "no space left") {
		t.Errorf("stats: %+v", st)
	}
	// The disk is full up to the last complete line.
	fileLines(t, filepath.Join(dir, archive.CurrentFile))
	if err := os.Truncate(ballast, 0); err != nil {
		t.Fatal(err)
	}
	// The kept lines must be written without a new line.
	testkit.Until(t, "it is written again", func() bool { return len(v.warn.all()) == 2 })
	v.printLine("after")
	v.closeOutputs()
	v.warn.checkContains(t, "no space left on device", "is written again, "+fmt.Sprint(v.log.Stats().LinesLost)+" lines were lost")

	got := storedLines(t, dir)
	at := slices.IndexFunc(got, func(s string) bool { return strings.HasPrefix(s, "[hinit] ") })
	if at < 0 {
		t.Fatal("no gap marker")
	}
	var lost int
	var why string
	if _, err := fmt.Sscanf(got[at], "[hinit] %d lines lost here: %s", &lost, &why); err != nil || !strings.HasSuffix(got[at], ": no space left on device") {
		t.Errorf("marker %q: %v", got[at], err)
	}
	if got[0] != "before" || got[len(got)-1] != "after" {
		t.Errorf("first %q, last %q", got[0], got[len(got)-1])
	}
	next := 0
	for i, line := range got[1 : len(got)-1] {
		if i+1 == at {
			next += lost
			continue
		}
		if want := fmt.Sprintf("line %5d %s", next, strings.Repeat("f", 89)); line != want {
			t.Fatalf("got %q, want %q", line, want)
		}
		next++
	}
	if next != lines {
		t.Errorf("%d lines are accounted for, want %d", next, lines)
	}
	if st := v.log.Stats(); st.LinesLost != uint64(lost) || st.LastError != "" {
		t.Errorf("lost %d, stats %+v", lost, st)
	}
	if kept := (at - 1) * 131; kept < maxKeptBytes {
		t.Errorf("only %d bytes were kept", kept)
	}
}

// TestShortFaultLosesNothing checks that no line is lost when the disk is full for a moment.
func TestShortFaultLosesNothing(t *testing.T) {
	t.Parallel()
	const size = 256 << 10
	disk := mountSmallDisk(t, size)
	v := newService(t, filepath.Join(disk, "coder"), Options{})
	v.printLine("before")
	v.wantInFile("before")
	ballast := filepath.Join(disk, "ballast")
	_ = os.WriteFile(ballast, make([]byte, size), 0o600) // Fill the disk as far as possible.
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprintf("line %d %s", i, strings.Repeat("s", 60)))
	}
	writeText(t, v.stdout, strings.Join(want, "\n")+"\n")
	testkit.Until(t, "the fault", func() bool { return len(v.warn.all()) == 1 })
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	v.wantInFile(want[len(want)-1])
	v.closeOutputs()
	v.warn.checkContains(t, "no space left", "no line was lost")
	checkLines(t, storedLines(t, v.dir), append([]string{"before"}, want...)...)
}

func TestUnwritable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ make, undo func(dir string) error }{
		"read-only file": {
			func(dir string) error { return os.WriteFile(filepath.Join(dir, archive.CurrentFile), nil, 0o444) },
			func(dir string) error { return os.Chmod(filepath.Join(dir, archive.CurrentFile), 0o666) },
		},
		"read-only directory": {
			func(dir string) error { return os.Chmod(dir, 0o555) },
			func(dir string) error { return os.Chmod(dir, 0o777) },
		},
		"root's directory": {
			func(dir string) error { return os.Mkdir(filepath.Join(dir, "sub"), 0o700) },
			func(dir string) error { return os.Chmod(filepath.Join(dir, "sub"), 0o777) },
		},
		"directory": {
			func(dir string) error { return os.Mkdir(filepath.Join(dir, archive.CurrentFile), 0o755) },
			func(dir string) error { return os.Remove(filepath.Join(dir, archive.CurrentFile)) },
		},
		"fifo": {
			func(dir string) error {
				path := filepath.Join(dir, archive.CurrentFile)
				return errors.Join(unix.Mkfifo(path, 0o600), os.Chmod(path, 0o666))
			},
			func(dir string) error { return os.Remove(filepath.Join(dir, archive.CurrentFile)) },
		},
		"link": {
			func(dir string) error {
				return os.Symlink(filepath.Join(dir, "victim"), filepath.Join(dir, archive.CurrentFile))
			},
			func(dir string) error { return os.Remove(filepath.Join(dir, archive.CurrentFile)) },
		},
		"linked directory": {
			func(dir string) error { return os.Symlink("../"+filepath.Base(dir), filepath.Join(dir, "sub")) },
			func(dir string) error { return os.Remove(filepath.Join(dir, "sub")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			actor, dir := newAgentDir(t)
			if name == "root's directory" && !actor.SwitchesIdentity() {
				testkit.SkipOrFail(t, "needs root")
			}
			if err := c.make(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "victim"), nil, 0o666); err != nil && name != "read-only directory" {
				t.Fatal(err)
			}
			logs := dir
			if strings.HasSuffix(name, "directory") && name != "read-only directory" && name != "directory" {
				logs = filepath.Join(dir, "sub")
			}
			v := newService(t, logs, Options{Actor: actor})
			v.printLine("one")
			testkit.Until(t, "the fault", func() bool { return len(v.warn.all()) == 1 })
			v.printLine("two")
			if data, err := os.ReadFile(filepath.Join(dir, "victim")); err == nil && len(data) > 0 {
				t.Errorf("the link was followed: %q", data)
			}
			if err := c.undo(dir); err != nil {
				t.Fatal(err)
			}
			testkit.Until(t, "it is written again", func() bool { return len(v.warn.all()) == 2 })
			v.printLine("three")
			v.closeOutputs()
			v.warn.checkContains(t, map[string]string{
				"fifo": "not a regular file", "directory": "is a directory", "link": "symbolic link refused",
				"linked directory": "symbolic link refused",
			}[name], "no line was lost")
			checkLines(t, storedLines(t, logs), "one", "two", "three")
		})
	}
}

func TestFilesBelongToTheAgent(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t)
	actor, base := newAgentDir(t)
	dir := filepath.Join(base, "logs", "gateways", "coder")
	v := newService(t, dir, Options{limits: Limits{MaxSize: 300, Archives: 2}, Actor: actor})
	for i := range 20 {
		v.printLine(fmt.Sprintf("line %d %s", i, strings.Repeat("o", 100)))
	}
	var st unix.Stat_t
	raw, err := v.stdout.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) })
	if err != nil || st.Uid != agentID {
		t.Errorf("the pipe belongs to %d, %v", st.Uid, err)
	}
	v.closeOutputs()
	v.warn.checkContains(t)
	n := 0
	err = filepath.Walk(base, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		n++
		want := os.FileMode(0o644)
		switch {
		case info.IsDir():
			want = os.ModeDir | 0o755
		case info.Name() == archive.CurrentFile:
			want = 0o744 // Mode of a finished file.
		}
		if sys := info.Sys().(*syscall.Stat_t); sys.Uid != agentID || sys.Gid != agentID || info.Mode() != want {
			t.Errorf("%s: owner %d:%d, mode %v", path, sys.Uid, sys.Gid, info.Mode())
		}
		return nil
	})
	if err != nil || n != 4+3 {
		t.Errorf("%d files and directories, %v", n, err)
	}
	checkLines(t, storedLines(t, dir), v.written[20-len(storedLines(t, dir)):]...)
}

// TestAFileOfAnotherUserKeepsItsMode checks that hinit does not change the mode of root's file that
// the agent renamed to the log.
func TestAFileOfAnotherUserKeepsItsMode(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t)
	actor, dir := newAgentDir(t)
	path := filepath.Join(dir, archive.CurrentFile)
	if err := errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(path, 0o666)); err != nil { //nolint:gosec // the agent may write this file
		t.Fatal(err)
	}
	v := newService(t, dir, Options{Actor: actor})
	v.printLine("one")
	v.closeOutputs()
	v.warn.checkContains(t)
	checkLines(t, storedLines(t, dir), "one")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o666 {
		t.Errorf("root's file has mode %v, %v", info.Mode(), err)
	}
}

func TestCloseSaysWhatIsNotWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, archive.CurrentFile), 0o755); err != nil {
		t.Fatal(err)
	}
	v := newService(t, dir, Options{})
	v.printLine("one")
	v.printLine("two")
	closeAll(v.stdout, v.stderr)
	err := v.set.Close(t.Context())
	if want := `cannot write the last 2 lines of "gateway-coder"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestLumberjackFence checks that lumberjack can't replace a log whose file name is a descriptor
// link in /proc.
func TestLumberjackFence(t *testing.T) {
	t.Parallel()
	actor, dir := newAgentDir(t)
	path := filepath.Join(dir, archive.CurrentFile)
	err := actor.Do(func() error {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		writeText(t, f, "precious\n")
		if err := f.Chmod(0); err != nil {
			return err
		}
		if os.Geteuid() == 0 && !actor.SwitchesIdentity() {
			return nil // This process is root and can open any file.
		}
		lj := newWriter()
		lj.Filename = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		defer lj.Close()
		if _, err := lj.Write([]byte("lost\n")); err == nil {
			t.Error("lumberjack writes to a file that it may not open")
		}
		if err := lj.Rotate(); err == nil {
			t.Error("lumberjack renames a descriptor")
		}
		return f.Chmod(0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); string(data) != "precious\n" {
		t.Errorf("the file is %q, %v", data, err)
	}
	if names, err := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("files: %v, %v", names, err)
	}
}
