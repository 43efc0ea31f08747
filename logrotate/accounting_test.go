package logrotate

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
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

// writerEnv makes this test binary a gateway that writes numbered lines. It holds the gateway's
// name, the run, and the ledger's path.
const writerEnv = "LOGROTATE_TEST_WRITER"

// numberedLine returns line n of one stream of a run. Its length depends on n.
func numberedLine(gateway, run string, stream, n int) string {
	return fmt.Sprintf("%s %s %d %d %s", gateway, run, stream, n, strings.Repeat("abcdefghij", n%27))
}

// runWriter is the main function of a test gateway, see writerEnv. It writes lines until it is killed.
// A ledger in shared memory counts the started and the written lines of each stream.
func runWriter(order string) int {
	fields := strings.Fields(order)
	f, err := os.OpenFile(fields[2], os.O_RDWR, 0)
	if err != nil {
		return 1
	}
	ledger, err := unix.Mmap(int(f.Fd()), 0, ledgerSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 1
	}
	var counts [2]int
	for i := 0; ; i++ {
		stream := 0
		if i%3 == 0 {
			stream = 1
		}
		n := counts[stream]
		line := []byte(numberedLine(fields[0], fields[1], stream, n) + "\n")
		binary.NativeEndian.PutUint64(ledger[stream*16:], uint64(n+1))
		if _, err := unix.Write(stream+1, line); err != nil {
			return 1
		}
		counts[stream]++
		binary.NativeEndian.PutUint64(ledger[stream*16+8:], uint64(n+1))
		if i%8 == 0 {
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 4_000_000}, nil)
		}
	}
}

const ledgerSize = 32

// gateway is a gateway that restarts whenever it is killed.
type gateway struct {
	name    string
	log     *Log
	dir     string
	ledgers string

	mu      sync.Mutex
	cmd     *exec.Cmd
	runs    int
	stopped bool

	removed [][]string // Lines in removed directories, oldest first.
}

func (g *gateway) keepRunning(t *testing.T) {
	for g.restart(t) {
		_ = g.cmd.Wait() // Wait returns an error, because the test kills the process.
	}
}

func (g *gateway) restart(t *testing.T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	run := strconv.Itoa(g.runs)
	ledger := filepath.Join(g.ledgers, run)
	if err := os.WriteFile(ledger, make([]byte, ledgerSize), 0o600); err != nil {
		t.Error(err)
		return false
	}
	stdout, stderr, err := g.log.Pipes()
	if err != nil {
		t.Error(err)
		return false
	}
	defer closeAll(stdout, stderr)
	g.cmd = exec.Command(os.Args[0])
	g.cmd.Env = append(os.Environ(), writerEnv+"="+g.name+" "+run+" "+ledger)
	g.cmd.Stdout, g.cmd.Stderr = stdout, stderr
	if err := g.cmd.Start(); err != nil {
		t.Error(err)
		return false
	}
	g.runs++
	return true
}

func (g *gateway) runCount() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.runs
}

// kill kills the running process. If over is true, the gateway does not restart.
func (g *gateway) kill(over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = g.stopped || over
	if g.cmd != nil {
		_ = g.cmd.Process.Kill() // An error means that the process has ended already.
	}
}

// TestEveryLineIsAccountedFor checks that the files contain every line or a gap marker, although
// gateways are killed while their files rotate.
func TestEveryLineIsAccountedFor(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Run("all is well", func(t *testing.T) {
		lines, lost := runGatewaysAndCountLines(t, t.TempDir(), Limits{}, nil)
		if lost != 0 {
			t.Errorf("%d of %d lines are lost", lost, lines)
		}
	})
	t.Run("disk full at times", func(t *testing.T) {
		disk := mountSmallDisk(t, 256<<20)
		lines, lost := runGatewaysAndCountLines(t, disk, Limits{}, func(all []*gateway) { fillAndEmptyDisk(t, filepath.Join(disk, "ballast"), all) })
		if lost == 0 {
			t.Errorf("none of %d lines is lost: the disk was never full for long", lines)
		}
	})
}

// TestEveryLineIsAccountedForWhenDirectoriesGo checks the accounting of lines while the log
// directories are repeatedly moved and removed.
func TestEveryLineIsAccountedForWhenDirectoriesGo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	grave := t.TempDir()
	lines, lost := runGatewaysAndCountLines(t, t.TempDir(), Limits{}, func(gateways []*gateway) {
		for i := range 40 {
			gateways[rand.IntN(len(gateways))].moveAway(t, filepath.Join(grave, strconv.Itoa(i)), i%2 == 0)
		}
	})
	if lost != 0 {
		t.Errorf("%d of %d lines are lost", lost, lines)
	}
}

// moveAway moves the log's directory, and removes it if remove is true. It reads the old files
// through descriptors that it opened before.
func (g *gateway) moveAway(t *testing.T, to string, remove bool) {
	if err := os.Rename(g.dir, to); err != nil {
		return // The directory does not exist yet.
	}
	paths, err := archivePaths(to)
	if err != nil {
		t.Error(err)
		return
	}
	files := make([]*os.File, 0, len(paths)+1)
	for _, path := range append(paths, filepath.Join(to, archive.CurrentFile)) {
		f, err := os.Open(path)
		if err == nil {
			files = append(files, f)
		}
	}
	defer closeAll(files...)
	if remove {
		if err := os.RemoveAll(to); err != nil {
			t.Error(err)
		}
	}
	testkit.Until(t, "a new directory", func() bool {
		st, err := os.Stat(filepath.Join(g.dir, archive.CurrentFile))
		return err == nil && st.Size() > 0
	})
	var lines []string
	for _, f := range files {
		text, err := io.ReadAll(f)
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			lines = append(lines, strings.TrimSuffix(line[stampLen:], "\n"))
		}
	}
	g.removed = append(g.removed, lines)
}

// lines returns every line that is or was in a named file. A batch that was written while the file
// lost its name is written again to the next file, and counts once.
func (g *gateway) lines(t *testing.T) []string {
	all := storedLines(t, g.dir)
	for _, old := range slices.Backward(g.removed) {
		again := make(map[string]bool, len(all))
		for _, line := range all {
			again[line] = true
		}
		for len(old) > 0 && again[old[len(old)-1]] {
			old = old[:len(old)-1]
		}
		all = append(slices.Clip(old), all...)
	}
	return all
}

// totalLosses returns how many lines all gateways have lost so far.
func totalLosses(gateways []*gateway) (n uint64) {
	for _, g := range gateways {
		n += g.log.Stats().LinesLost
	}
	return n
}

// fillAndEmptyDisk fills the disk for longer than the memory for waiting lines lasts, and empties it again.
func fillAndEmptyDisk(t *testing.T, ballast string, gateways []*gateway) {
	for range 2 {
		before := totalLosses(gateways)
		giveUp := time.Now().Add(testkit.Patience)
		f, err := os.Create(ballast)
		if err != nil {
			t.Error(err)
			return
		}
		for block := make([]byte, 64<<10); totalLosses(gateways) == before && time.Now().Before(giveUp); {
			if _, err := f.Write(block); err != nil {
				block = block[:max(len(block)/2, 1)] // Smaller blocks take the last free bytes, too.
				<-time.After(time.Millisecond)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Error(err)
		}
		awaitNoErrors(t, gateways)
	}
}

// awaitNoErrors waits until no log reports an error any more.
func awaitNoErrors(t *testing.T, gateways []*gateway) {
	testkit.Until(t, "all is written again", func() bool {
		return !slices.ContainsFunc(gateways, func(g *gateway) bool { return g.log.Stats().LastError != "" })
	})
}

// fullAccounting makes these tests larger.
var fullAccounting = flag.Bool("full", false, "account for the lines of twenty gateways, killed two hundred times, instead of eight, killed sixty times")

// runGatewaysAndCountLines lets gateways write to files below dir and kills them, and calls during at the same time.
// It returns the numbers of lines and of lost lines.
func runGatewaysAndCountLines(t *testing.T, dir string, limits Limits, during func([]*gateway)) (lines, lost uint64) {
	s := newSet(Options{})
	limits.MaxSize, limits.Archives = 200_000, 100_000
	n, kills, fewestLines := 8, 60, uint64(8000)
	if *fullAccounting {
		n, kills, fewestLines = 20, 200, 20_000
	}
	gateways := make([]*gateway, n)
	var all sync.WaitGroup
	for i := range gateways {
		name := "g" + strconv.Itoa(i)
		path := filepath.Join(dir, name, archive.CurrentFile)
		g := &gateway{name: name, dir: filepath.Dir(path), ledgers: t.TempDir(), log: s.Open(name, "", path)}
		setLimits(g.log, limits)
		gateways[i] = g
		all.Go(func() { g.keepRunning(t) })
	}
	var trouble sync.WaitGroup
	if during != nil {
		trouble.Go(func() { during(gateways) })
	}
	for range kills {
		<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
		gateways[rand.IntN(len(gateways))].kill(false)
	}
	trouble.Wait()
	// A busy machine may need longer until enough runs and archives exist.
	fewestRuns, fewestArchives := kills/2, n
	for giveUp := time.Now().Add(testkit.Patience); time.Now().Before(giveUp); <-time.After(20 * time.Millisecond) {
		runs, archives, written := 0, 0, uint64(0)
		for _, g := range gateways {
			paths, _ := archivePaths(g.dir)
			runs, archives, written = runs+g.runCount(), archives+len(paths), written+g.log.Stats().Lines
		}
		if runs >= fewestRuns && archives >= fewestArchives && written >= fewestLines {
			break
		}
		if runs < fewestRuns {
			gateways[rand.IntN(len(gateways))].kill(false)
		}
	}
	for _, g := range gateways {
		g.kill(true)
	}
	all.Wait()
	closeSet(t, s)

	archives, runs := 0, 0
	for _, g := range gateways {
		paths, err := archivePaths(g.dir)
		if err != nil {
			t.Fatal(err)
		}
		archives += len(paths)
		runs += g.runs
		gone := g.checkLedgers(t)
		st := g.log.Stats()
		if gone != st.LinesLost {
			t.Errorf("%s: the markers say %d lines, the counter %d", g.name, gone, st.LinesLost)
		}
		lines, lost = lines+st.Lines, lost+gone
	}
	t.Logf("%d lines of %d runs in %d files, %d lost and counted", lines, runs, archives+len(gateways), lost)
	if runs < fewestRuns || archives < fewestArchives || lines < fewestLines {
		t.Errorf("%d runs, %d rotations, %d lines are too few to prove anything", runs, archives, lines)
	}
	return lines, lost
}

var lostMarker = regexp.MustCompile(`^\[hinit\] (\d+) lines lost here: `)

// checkLedgers compares the files with the ledgers, and returns how many lines the gap markers report as
// missing.
func (g *gateway) checkLedgers(t *testing.T) (gone uint64) {
	type stream struct{ run, stream int }
	next := make(map[stream]int) // Number of the next expected line.
	missing := make(map[stream]uint64)
	var found uint64
	for _, line := range g.lines(t) {
		if m := lostMarker.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseUint(m[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			gone += n
			continue
		}
		var name string
		var run, index, n int
		if _, err := fmt.Sscanf(line, "%s %d %d %d", &name, &run, &index, &n); err != nil {
			t.Fatalf("%s: no line of a gateway: %.200q", g.name, line)
		}
		if line != numberedLine(g.name, strconv.Itoa(run), index, n) {
			t.Fatalf("%s: torn: %.400q", g.name, line)
		}
		key := stream{run, index}
		if n < next[key] {
			t.Fatalf("%s: line %d of run %d, stream %d is there twice or out of order", g.name, n, run, index)
		}
		missing[key] += uint64(n - next[key])
		next[key] = n + 1
		found++
	}
	var began, wrote uint64
	for run := range g.runs {
		text, err := os.ReadFile(filepath.Join(g.ledgers, strconv.Itoa(run)))
		if err != nil {
			t.Fatal(err)
		}
		for index := range 2 {
			entry := bytes.NewReader(text[index*16:])
			var b, w uint64
			if err := binary.Read(entry, binary.NativeEndian, &b); err != nil {
				t.Fatal(err)
			}
			if err := binary.Read(entry, binary.NativeEndian, &w); err != nil {
				t.Fatal(err)
			}
			began, wrote = began+b, wrote+w
			key := stream{run, index}
			if gone == 0 && (missing[key] > 0 || uint64(next[key]) < w) {
				t.Errorf("%s: run %d, stream %d wrote %d lines; %d are missing and the last is number %d", g.name, run, index, w, missing[key], next[key]-1)
			}
			if uint64(next[key]) > b {
				t.Errorf("%s: run %d, stream %d began %d lines, and number %d is there", g.name, run, index, b, next[key]-1)
			}
		}
	}
	if read := g.log.Stats().Lines; found+gone != read || read < wrote || read > began {
		t.Errorf("%s: %d lines in files, %d counted as lost, %d read, %d to %d written", g.name, found, gone, read, wrote, began)
	}
	return gone
}
