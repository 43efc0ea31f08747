package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

func TestBothSinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs", "gateways", "coder")
	out, errs := newSink(t), newSink(t)
	s := newSet(Options{Stdout: out.file, Stderr: errs.file})
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	if s.Open("gateway-coder", "x", "y") != l {
		t.Error("Open of the same name made another log")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory is made before there is a line")
	}
	stdout, stderr := openPipes(t, l)
	writeText(t, stdout, "⚕ Hermes Gateway Starting\n\nwith\rCR and \x00\xff\nno end")
	stdout.Close()
	testkit.Until(t, "the end of stdout is in the file", func() bool { return l.Stats().Lines == 4 })
	writeText(t, stderr, "from stderr\n")
	stderr.Close()
	closeSet(t, s)

	want := []string{"⚕ Hermes Gateway Starting", "", "with\rCR and \x00\xff", "no end", "from stderr"}
	checkLines(t, fileLines(t, filepath.Join(dir, archive.CurrentFile)), want...)
	if got, want := out.closeAndText(), strings.Join(want[:4], "\n")+"\n"; got != want {
		t.Errorf("stdout: got %q, want %q", got, want)
	}
	if got := errs.closeAndText(); got != "from stderr\n" {
		t.Errorf("stderr: got %q", got)
	}
	st, err := os.Stat(filepath.Join(dir, archive.CurrentFile))
	if err != nil || st.Mode() != 0o744 { // Mode of a finished file.
		t.Errorf("mode of current: %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("mode of the directory: %v, %v", st.Mode(), err)
	}
	if got := l.Stats(); got != (Stats{Lines: 5, Bytes: uint64(len(strings.Join(want, "\n")) + 1)}) {
		t.Errorf("stats: %+v", got)
	}
	if _, _, err := l.Pipes(); err == nil {
		t.Error("Pipes of a closed Set works")
	}
}

func TestPipesAreFitForAChild(t *testing.T) {
	s := newSet(Options{})
	defer closeSet(t, s)
	stdout, stderr := openPipes(t, s.Open("x", "", ""))
	for _, f := range []*os.File{stdout, stderr} {
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			if fl, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || fl&unix.O_NONBLOCK != 0 {
				t.Errorf("%s: flags %#x, %v", f.Name(), fl, err)
			}
			if fl, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s: descriptor flags %#x, %v", f.Name(), fl, err)
			}
		})
		f.Close()
	}
}

// writeFlood writes numbered lines with a tag, in pieces that do not end at line ends.
func writeFlood(t testing.TB, w *os.File, tag string, lines int, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var buf bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&buf, "%s %d %s\n", tag, i, strings.Repeat("x", rnd.IntN(200)))
		for buf.Len() > 4096 || i == lines-1 && buf.Len() > 0 {
			if _, err := w.Write(buf.Next(1 + rnd.IntN(3000))); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

var noticeFormat = regexp.MustCompile(`^\[hinit\] (\d+) lines of gateway-(\S+) not shown here; see \S+/current$`)

// checkFlood fails the test unless got has lines 0 to n-1 of each tag once and in order, or exact
// notices in their place.
func checkFlood(t testing.TB, source string, got []string, n int, tags ...string) {
	t.Helper()
	next := make(map[string]int)
	for _, line := range got {
		if m := noticeFormat.FindStringSubmatch(line); m != nil && source != "file" {
			missing, _ := strconv.Atoi(m[1])
			for _, tag := range tags {
				if name, _, _ := strings.Cut(tag, "-"); name == m[2] {
					next[tag] += missing
				}
			}
			continue
		}
		var tag, rest string
		var i int
		if c, err := fmt.Sscanf(line, "%s %d %s", &tag, &i, &rest); c < 2 {
			t.Fatalf("%s: torn line %.100q: %v", source, line, err)
		}
		if strings.Trim(rest, "x") != "" {
			t.Fatalf("%s: mixed line %.100q", source, line)
		}
		if next[tag] != i {
			t.Fatalf("%s: %s: got line %d, want %d", source, tag, i, next[tag])
		}
		next[tag]++
	}
	for _, tag := range tags {
		if next[tag] != n {
			t.Errorf("%s: %s: got %d lines, want %d", source, tag, next[tag], n)
		}
		delete(next, tag)
	}
	if len(next) > 0 {
		t.Errorf("%s: unknown tags %v", source, next)
	}
}

func TestTwentyGatewaysKeepLinesWhole(t *testing.T) {
	const gateways, lines = 20, 700
	dir := t.TempDir()
	out, errs := newSink(t), newSink(t)
	s := newSet(Options{limits: Limits{MaxSize: 20_000, Archives: 1000}, Stdout: out.file, Stderr: errs.file})
	var wg sync.WaitGroup
	var logs []*Log
	var outTags, errTags []string
	for g := range gateways {
		name := fmt.Sprintf("g%d", g)
		l := s.Open("gateway-"+name, name, filepath.Join(dir, name, archive.CurrentFile))
		logs = append(logs, l)
		stdout, stderr := openPipes(t, l)
		for i, w := range []*os.File{stdout, stderr} {
			tag := fmt.Sprintf("%s-%d", name, i)
			if i == 0 {
				outTags = append(outTags, tag)
			} else {
				errTags = append(errTags, tag)
			}
			wg.Go(func() {
				defer w.Close()
				writeFlood(t, w, tag, lines, uint64(2*g+i))
			})
		}
	}
	wg.Wait()
	closeSet(t, s)
	for g := range gateways {
		checkFlood(t, "file", storedLines(t, filepath.Join(dir, fmt.Sprintf("g%d", g))), lines, outTags[g], errTags[g])
		if st := logs[g].Stats(); st.LinesLost != 0 || st.LastError != "" || st.Lines != 2*lines {
			t.Errorf("%s: %+v", logs[g].name, st)
		}
	}
	text, _ := strings.CutSuffix(out.closeAndText(), "\n")
	checkFlood(t, "stdout", strings.Split(text, "\n"), lines, outTags...)
	text, _ = strings.CutSuffix(errs.closeAndText(), "\n")
	checkFlood(t, "stderr", strings.Split(text, "\n"), lines, errTags...)
}

func TestOverlappingRuns(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	const lines = 3000
	dir := t.TempDir()
	s := newSet(Options{limits: Limits{MaxSize: 50_000, Archives: 1000}})
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	var wg sync.WaitGroup
	var tags []string
	for run := range 4 {
		stdout, stderr := openPipes(t, l)
		for i, w := range []*os.File{stdout, stderr} {
			tag := fmt.Sprintf("run%d-%d", run, i)
			tags = append(tags, tag)
			wg.Go(func() {
				defer w.Close()
				writeFlood(t, w, tag, lines, uint64(run))
			})
		}
	}
	wg.Wait()
	closeSet(t, s)
	checkFlood(t, "file", storedLines(t, dir), lines, tags...)
}

func TestLongLineIsSplitInBothSinks(t *testing.T) {
	dir := t.TempDir()
	out := newSink(t)
	s := newSet(Options{Stdout: out.file})
	stdout, stderr := openPipes(t, s.Open("x", "x", filepath.Join(dir, archive.CurrentFile)))
	stderr.Close()
	long := strings.Repeat("⚕é", 60_000) // The text has 300,000 bytes.
	writeText(t, stdout, "before\n"+long+"\nafter\n"+long)
	stdout.Close()
	closeSet(t, s)
	want := "before\n" + long + "\nafter\n" + long + "\n"
	text := out.closeAndText()
	if got := string(joinSplitLines([]byte(text))); got != want {
		t.Errorf("console: got %d bytes, want %d", len(got), len(want))
	}
	got := fileLines(t, filepath.Join(dir, archive.CurrentFile))
	checkLines(t, got, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	for _, line := range got {
		if len(line) > 64<<10+len(SplitEnd)+len(SplitBegin) {
			t.Errorf("a piece of %d bytes", len(line))
		}
	}
	if len(got) != 12 {
		t.Errorf("got %d pieces", len(got))
	}
}

// awaitTail returns the answer of Tail.
func awaitTail(t *testing.T, l *Log) []string {
	t.Helper()
	got := make(chan []string, 1)
	l.Tail(func(lines []string) { got <- lines })
	select {
	case lines := <-got:
		return lines
	case <-time.After(testkit.Patience):
		t.Fatal("Tail was never answered")
		return nil
	}
}

func TestTail(t *testing.T) {
	s := newSet(Options{TailLines: 3, tailTimeout: testkit.Patience})
	defer closeSet(t, s)
	l := s.Open("x", "x", "")
	checkLines(t, awaitTail(t, l))
	for run := range 2 { // The second run must not see lines of the first.
		stdout, stderr := openPipes(t, l)
		for i := range 10 {
			writeText(t, stdout, fmt.Sprintf("run %d line %d\n", run, i))
			// The answer must contain all lines that are in the pipe now, although another process keeps the
			// pipe open.
			want := []string{}
			for j := max(0, i-2); j <= i; j++ {
				want = append(want, fmt.Sprintf("run %d line %d", run, j))
			}
			checkLines(t, awaitTail(t, l), want...)
		}
		writeText(t, stderr, strings.Repeat("e", 600))
		checkLines(t, awaitTail(t, l), fmt.Sprintf("run %d line 8", run), fmt.Sprintf("run %d line 9", run), strings.Repeat("e", 500))
		writeText(t, stderr, " end\n")
		checkLines(t, awaitTail(t, l), fmt.Sprintf("run %d line 8", run), fmt.Sprintf("run %d line 9", run), strings.Repeat("e", 500))
		writeText(t, stdout, "dying words")
		closeAll(stdout, stderr)
		testkit.Until(t, "the pipes end", func() bool { return l.Stats().Lines == uint64(12*(run+1)) })
		checkLines(t, awaitTail(t, l), fmt.Sprintf("run %d line 9", run), strings.Repeat("e", 500), "dying words")
	}
}

func TestTailWhileAGrandchildFloods(t *testing.T) {
	s := newSet(Options{TailLines: 3})
	l := s.Open("x", "x", filepath.Join(t.TempDir(), archive.CurrentFile))
	stdout, stderr := openPipes(t, l)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		line := []byte(strings.Repeat("f", 99) + "\n")
		for {
			select {
			case <-stop:
				return
			default:
				stdout.Write(line)
			}
		}
	})
	testkit.Until(t, "the flood has begun", func() bool { return l.Stats().Lines > 10 })
	var took []time.Duration
	for range 20 {
		writeText(t, stderr, "last words\n")
		begin := time.Now()
		if got := awaitTail(t, l); len(got) != 3 {
			t.Errorf("got %q", got)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took) // An answer takes 100 ms, but a slow machine may need longer for some.
	if median := took[len(took)/2]; median > 2*time.Second {
		t.Errorf("half of the answers took %v and longer", median)
	}
	close(stop)
	wg.Wait()
	closeAll(stdout, stderr)
	closeSet(t, s)
}

func TestDropAndOpenAgain(t *testing.T) {
	dir := t.TempDir()
	s := newSet(Options{limits: Limits{MaxSize: 1000, Archives: 100}})
	path := filepath.Join(dir, archive.CurrentFile)
	first := s.Open("x", "x", path)
	out1, err1 := openPipes(t, first)
	writeText(t, out1, "one\n")
	s.Drop("x")
	s.Drop("x")
	if _, _, err := first.Pipes(); err == nil {
		t.Error("Pipes of a dropped log works")
	}
	second := s.Open("x", "x", path)
	if second == first {
		t.Fatal("a dropped log is opened again")
	}
	if second.file != first.file {
		t.Error("two sinks write to one path")
	}
	out2, err2 := openPipes(t, second)
	writeText(t, out1, "grandchild\n")
	closeAll(out1, err1)
	testkit.Until(t, "the first log's lines are in the file", func() bool { return first.Stats().Lines == 2 })
	writeText(t, out2, "two\n")
	closeAll(out2, err2)
	testkit.Until(t, "the second log's line", func() bool { return second.Stats().Lines == 1 })
	s.Drop("x")
	testkit.Until(t, "the file is released", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.files) == 0 && len(s.idleWriters) == 1 && len(s.liveStreams) == 0
	})
	third := s.Open("y", "y", path)
	if len(s.idleWriters) != 0 {
		t.Error("the spare writer isn't used again")
	}
	out3, err3 := openPipes(t, third)
	writeText(t, out3, "three\n")
	closeAll(out3, err3)
	closeSet(t, s)
	got := fileLines(t, path)
	slices.Sort(got[:1])
	checkLines(t, got, "one", "grandchild", "two", "three")
}

func TestCloseWithAHeldPipe(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	dir := t.TempDir()
	out := newSink(t)
	s := newSet(Options{Stdout: out.file, closeReserve: testkit.Patience}) // Close waits for half of this time, and needs the other half for the rest.
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	stdout, stderr := openPipes(t, l)
	defer closeAll(stdout, stderr)
	writeText(t, stdout, "whole\nhalf")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := s.Close(ctx)
	if err == nil || !strings.Contains(err.Error(), `"gateway-coder"`) {
		t.Errorf("got %v", err)
	}
	if ctx.Err() != nil {
		t.Error("Close took all the time there was")
	}
	checkLines(t, fileLines(t, filepath.Join(dir, archive.CurrentFile)), "whole", "half")
	if got := out.closeAndText(); got != "whole\nhalf\n" {
		t.Errorf("console: %q", got)
	}
}

// TestThePipesOfOldRunsPiledUp checks that hinit keeps the pipes of only a limited number of old
// runs.
func TestThePipesOfOldRunsPiledUp(t *testing.T) {
	dir := t.TempDir()
	s := newSet(Options{})
	l := s.Open("svc", "", filepath.Join(dir, archive.CurrentFile))
	var ends []*os.File
	var want []string
	lines := strings.Repeat("a line that the service has written\n", 1000)
	for range 5 * maxRuns {
		stdout, stderr := openPipes(t, l)
		ends = append(ends, stdout, stderr)
		writeText(t, stdout, lines+"the last one")
		want = append(want, strings.Split(lines+"the last one", "\n")...)
	}
	testkit.Until(t, "the pipes of old runs are closed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.liveStreams) == 2*maxRuns
	})
	if _, err := ends[0].WriteString("more\n"); !errors.Is(err, unix.EPIPE) {
		t.Errorf("the first run can write still: %v", err)
	}
	writeText(t, ends[len(ends)-2*maxRuns], " and more\n") // The stdout pipe of the oldest kept run.
	closeAll(ends...)
	closeSet(t, s)
	got := storedLines(t, dir)
	if len(got) != len(want) || strings.Count(strings.Join(got, "\n"), "the last one") != 5*maxRuns || !slices.Contains(got, "the last one and more") {
		t.Errorf("%d lines are in the file, not %d", len(got), len(want))
	}
}
