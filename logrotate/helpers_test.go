package logrotate

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
	"hinit/logrotate/packer"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(writerEnv); order != "" {
		os.Exit(runWriter(order))
	}
	if order := os.Getenv(flooderEnv); order != "" {
		os.Exit(runFlooder(order))
	}
	testkit.IsolateProcess()
	testkit.LimitParallel(6)
	// lumberjack's clean-up goroutine never ends, see the package comment.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

var lineFormat = regexp.MustCompile(`^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d{9}  `)

// setLimits calls l.Limit. A MaxSize or Archives of 0 keeps the present limit.
func setLimits(l *Log, limits Limits) {
	limits.MaxSize, limits.Archives = cmp.Or(limits.MaxSize, l.set.opts.limits.MaxSize), cmp.Or(limits.Archives, l.set.opts.limits.Archives)
	l.SetLimits(limits)
}

func newSet(o Options) *Set {
	o.limits.MaxSize, o.limits.Archives = cmp.Or(o.limits.MaxSize, defaultLimits.MaxSize), cmp.Or(o.limits.Archives, defaultLimits.Archives)
	if o.period == 0 {
		o.period = 20 * time.Millisecond
	}
	o.PackArchives = func(ctx context.Context, logs []gzipped.Archives, young time.Duration) ([]gzipped.Result, error) {
		return packer.Pack(ctx, cmp.Or(o.Actor, fsutil.ProcessActor()), logs, young), nil
	}
	if o.Warn == nil {
		o.Warn = func(string, string) {}
	}
	if o.OnWrite == nil {
		o.OnWrite = func() {}
	}
	return New(o)
}

func closeSet(t testing.TB, s *Set) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func openPipes(t testing.TB, l *Log) (stdout, stderr *os.File) {
	t.Helper()
	stdout, stderr, err := l.Pipes()
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr
}

func writeText(t testing.TB, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// storedLines returns the lines in dir without their timestamps, archives first. It checks the
// timestamps.
func storedLines(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := archivePaths(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, path := range append(paths, filepath.Join(dir, archive.CurrentFile)) {
		all = append(all, fileLines(t, path)...)
	}
	return all
}

func fileLines(t testing.TB, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && strings.HasSuffix(path, archive.PackedSuffix) {
		data, err = gunzip(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return completeLines(t, path, data)
}

func completeLines(t testing.TB, path string, data []byte) []string {
	t.Helper()
	if len(data) == 0 {
		return nil
	}
	text, ok := strings.CutSuffix(string(data), "\n")
	if !ok {
		t.Errorf("%s doesn't end with a newline", path)
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !lineFormat.MatchString(line) {
			t.Fatalf("%s, line %d: bad format: %.80q", path, i+1, line)
		}
		lines[i] = line[stampLen:]
	}
	return lines
}

func gunzip(data []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

func checkLines(t testing.TB, got []string, want ...string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("line %d of %d: got %.200q, want %.200q", i+1, len(got), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("got %d lines %.500s\nwant %d lines %.500s", len(got), fmt.Sprintf("%q", got), len(want), fmt.Sprintf("%q", want))
	}
}

// sink collects all bytes that are written to its file. Only the console uses the file, so the test closes it.
type sink struct {
	file *os.File
	mu   sync.Mutex
	data bytes.Buffer
	done chan struct{}
}

func newSink(t testing.TB) *sink {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{file: w, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer r.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Read(buf)
			s.mu.Lock()
			s.data.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { s.closeAndText() })
	return s
}

func (s *sink) textSoFar() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.String()
}

// closeAndText closes the sink and returns its content.
func (s *sink) closeAndText() string {
	s.file.Close()
	<-s.done
	return s.textSoFar()
}

// warnings collects the texts of calls of Warn.
type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) add(service, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, service+": "+message)
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.list...)
}

// checkContains fails the test unless the warnings contain the parts, one each.
func (w *warnings) checkContains(t testing.TB, parts ...string) {
	t.Helper()
	got := w.all()
	if len(got) != len(parts) {
		t.Fatalf("warnings: got %q, want parts %q", got, parts)
	}
	for i := range parts {
		if !strings.Contains(got[i], parts[i]) {
			t.Errorf("warning %d: got %q, want part %q", i, got[i], parts[i])
		}
	}
}

const agentID = 10000

// newAgentDir returns an unprivileged actor, and a directory that it can write.
func newAgentDir(t *testing.T) (*fsutil.Actor, string) {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		return fsutil.ProcessActor(), dir
	}
	a := fsutil.NewActor(fsutil.Identity{UID: agentID, GID: agentID})
	if !a.SwitchesIdentity() {
		testkit.SkipOrFail(t, "root here can't act as another user")
	}
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, agentID, agentID)); err != nil {
		t.Fatal(err)
	}
	return a, dir
}

// mountSmallDisk mounts a tmpfs of size bytes.
func mountSmallDisk(t *testing.T, size int) string {
	t.Helper()
	testkit.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", size)); err != nil {
		testkit.SkipOrFail(t, fmt.Sprintf("cannot mount a tmpfs: %v", err))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func dirNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func archivePaths(dir string) ([]string, error) {
	names, err := archive.Dir{Path: dir, Actor: fsutil.ProcessActor()}.Names()
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names, err
}
