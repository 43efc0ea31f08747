package logrotate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// writerVar makes this test binary a gateway that writes numbered lines. Its value is the gateway, the run, and the ledger.
const writerVar = "LOGROTATE_TEST_WRITER"

// numbered is line n of a run's stream. Its length depends on n, and every byte of it is known.
func numbered(gateway, run string, stream, n int) string {
	return fmt.Sprintf("%s %s %d %d %s", gateway, run, stream, n, strings.Repeat("abcdefghij", n%27))
}

// write is such a gateway: it writes to both streams until it is killed, each line with one write, and keeps a ledger in shared
// memory, which outlives it: of each stream how many lines it began to write and how many it has written.
func write(order string) int {
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
		line := []byte(numbered(fields[0], fields[1], stream, n) + "\n")
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

// gateway is one that is started again whenever it is killed.
type gateway struct {
	name    string
	log     *Log
	dir     string
	ledgers string

	mu   sync.Mutex
	cmd  *exec.Cmd
	runs int
	over bool
}

// keep runs the gateway until it is over.
func (g *gateway) keep(t *testing.T) {
	for g.again(t) {
		_ = g.cmd.Wait() // it is killed
	}
}

func (g *gateway) again(t *testing.T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
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
	g.cmd.Env = append(os.Environ(), writerVar+"="+g.name+" "+run+" "+ledger)
	g.cmd.Stdout, g.cmd.Stderr = stdout, stderr
	if err := g.cmd.Start(); err != nil {
		t.Error(err)
		return false
	}
	g.runs++
	return true
}

// kill kills the present process, and for good if over is set.
func (g *gateway) kill(over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = g.over || over
	if g.cmd != nil {
		_ = g.cmd.Process.Kill() // it may be dead already
	}
}

// TestEveryLineIsAccountedFor has twenty gateways killed two hundred times while their files rotate.
func TestEveryLineIsAccountedFor(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Run("all is well", func(t *testing.T) {
		lines, lost := account(t, t.TempDir(), nil)
		if lost != 0 {
			t.Errorf("%d of %d lines are lost", lost, lines)
		}
	})
	t.Run("disk full at times", func(t *testing.T) {
		disk := smallDisk(t, 256<<20)
		lines, lost := account(t, disk, func() { fillAndEmpty(t, filepath.Join(disk, "ballast")) })
		if lost == 0 {
			t.Errorf("none of %d lines is lost: the disk was never full for long", lines)
		}
	})
}

// fillAndEmpty takes all of a disk for longer than the memory for waiting lines lasts, and gives it back.
func fillAndEmpty(t *testing.T, ballast string) {
	for range 2 {
		end := time.Now().Add(3 * time.Second)
		f, err := os.Create(ballast)
		if err != nil {
			t.Error(err)
			return
		}
		for block := make([]byte, 64<<10); time.Now().Before(end); {
			if _, err := f.Write(block); err != nil {
				block = block[:max(len(block)/2, 1)] // the last bytes too
				<-time.After(time.Millisecond)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Error(err)
		}
		<-time.After(2 * retryEvery) // it is written again
	}
}

// account lets twenty gateways write to files below dir, kills two hundred times, does during meanwhile, and counts.
func account(t *testing.T, dir string, during func()) (lines, lost uint64) {
	s := New(Options{MaxSize: 200_000, Archives: 100_000})
	gateways := make([]*gateway, 20)
	var all sync.WaitGroup
	for i := range gateways {
		name := "g" + strconv.Itoa(i)
		path := filepath.Join(dir, name, Current)
		g := &gateway{name: name, dir: filepath.Dir(path), ledgers: t.TempDir(), log: s.Open(name, "", path)}
		gateways[i] = g
		all.Go(func() { g.keep(t) })
	}
	var trouble sync.WaitGroup
	if during != nil {
		trouble.Go(during)
	}
	const kills = 200
	for range kills {
		<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
		gateways[rand.IntN(len(gateways))].kill(false)
	}
	trouble.Wait()
	for _, g := range gateways {
		g.kill(true)
	}
	all.Wait()
	closeSet(t, s)

	archives, runs := 0, 0
	for _, g := range gateways {
		paths, err := Archives(g.dir)
		if err != nil {
			t.Fatal(err)
		}
		archives += len(paths)
		runs += g.runs
		gone := g.check(t)
		st := g.log.Stats()
		if gone != st.FileLost {
			t.Errorf("%s: the markers say %d lines, the counter %d", g.name, gone, st.FileLost)
		}
		lines, lost = lines+st.Lines, lost+gone
	}
	t.Logf("%d lines of %d runs in %d files, %d lost and counted", lines, runs, archives+len(gateways), lost)
	if runs < kills/2 || archives < 20 || lines < 20_000 {
		t.Errorf("%d runs, %d rotations, %d lines are too few to prove anything", runs, archives, lines)
	}
	return lines, lost
}

var lostMarker = regexp.MustCompile(`^\[hinit\] (\d+) lines lost here: `)

// check compares the files with the ledgers and returns how many lines the gap markers say are missing.
func (g *gateway) check(t *testing.T) (gone uint64) {
	type stream struct{ run, stream int }
	next := make(map[stream]int) // number that comes next
	missing := make(map[stream]uint64)
	var found uint64
	for _, line := range stored(t, g.dir) {
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
		if line != numbered(g.name, strconv.Itoa(run), index, n) {
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
