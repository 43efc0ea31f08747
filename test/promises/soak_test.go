package promises_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hinit/client"
)

// TestOrphans checks that no orphan stays a zombie while PIDs are reused.
func TestOrphans(t *testing.T) {
	parallelLong(t)
	requireRoot(t)
	// Each shell leaves twenty background processes as orphans.
	shells := shortOrFull(4_000, 1_000_000)/20 + 1
	want := uint64(20 * shells)
	script := `i=0; while [ $i -lt $0 ]; do (: | : | : | : | : | : | : | : | : | : | : | : | : | : | : | : | : | : | : | : &); i=$((i+1)); done; echo made; exec sleep 1000000`
	b := newTestContainer(t, setup{config: quick, cmdline: []string{"sh", "-c", script, fmt.Sprint(shells)}})
	b.profile("a", sleeper)
	b.start()
	within(t, patience, b.booted)
	b.startAndAwait("a")
	begin, worst := time.Now(), 0
	within(t, time.Hour, func() error {
		worst = max(worst, b.zombies())
		if out, err := os.ReadFile(b.path("out")); err != nil || !slices.Contains(strings.Split(string(out), "\n"), "made") {
			return fmt.Errorf("only %d are made, %w", b.status().Init.OrphansReaped, err)
		}
		return nil
	})
	var status client.Status
	within(t, patience, func() error { // The newest processes may not have ended yet.
		if status = b.status(); status.Init.OrphansReaped < want {
			return fmt.Errorf("only %d orphans were reaped, of %d", status.Init.OrphansReaped, want)
		}
		return b.checkReaped()
	})
	if s, err := b.service("a"); err != nil || s.State != client.StateUp || s.Restarts != 0 {
		t.Errorf("a is %+v, %v", s, err)
	}
	sheet.add("orphans", int(status.Init.OrphansReaped))
	t.Logf("%d orphans in %v; at most %d zombies were seen at once", status.Init.OrphansReaped, time.Since(begin), worst)
}

// TestADayOfTwoHundredProfiles performs a day's events of 200 profiles in minutes. At the end, PID
// 1 must have the same memory, threads and descriptors as before.
func TestADayOfTwoHundredProfiles(t *testing.T) {
	parallelLong(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: `restart: {initial: 1ms, max: 5ms, crash_loop_count: 1000}
stop: {grace: 5s}
logs: {archives: 1}
`})
	b.Tmpfs = map[string]string{b.home: "mode=755"}
	names := b.profiles(shortOrFull(40, 200), sleeper)
	// Some profiles write much, so their logs are rotated every ten lives.
	blurb := strings.Repeat(strings.Repeat("x", 99)+"\n", 700)
	b.check(os.WriteFile(b.path("blurb"), []byte(blurb), 0o644))
	for _, name := range names[:10] {
		b.check(os.WriteFile(filepath.Join(b.profileDir(name), "run"), []byte("cat "+b.path("blurb")+"\n"+sleeper), 0o644))
	}
	b.boot()
	b.startAndAwait(names...)
	events := shortOrFull(1000, 100_000)
	if *dayEvents > 0 {
		events = *dayEvents
	}
	d := &soakContainer{testContainer: b, names: names}
	d.performEvents(0, events/10) // By now, the heap has its final size.
	before := d.restUsage(func(usage, int) error { return nil })
	began := time.Now()
	d.performEvents(1, events-events/10)
	// Freed memory returns to the system slowly, and the runtime never ends threads. lumberjack keeps a
	// goroutine for each writer, which a later log reuses.
	threads, memory := shortOrFull(64, 8), shortOrFull(8<<10, 2<<10)
	after := d.restUsage(func(now usage, goroutines int) error {
		if now.private > before.private+before.private/5+memory || now.files > before.files+8 || now.threads > before.threads+threads || goroutines > before.goroutines+32 {
			return fmt.Errorf("PID 1 was %+v after a tenth of the events, and is %+v with %d goroutines after all", before, now, goroutines)
		}
		return nil
	})
	sheet.add("events", int(d.events.Load()))
	sheet.add("kills", int(d.crashes.Load()))
	sheet.set("soak memory", fmt.Sprintf("%.1f MiB before, %.1f MiB after", float64(before.private)/1024, float64(after.private)/1024))
	sheet.set("soak files", fmt.Sprintf("%d before, %d after", before.files, after.files))
	sheet.set("soak goroutines", fmt.Sprintf("%d before, %d after", before.goroutines, after.goroutines))
	t.Logf("%d events, %d of them crashes, %d profiles that came and went; nine tenths in %v; before %+v, after %+v",
		d.events.Load(), d.crashes.Load(), d.shortLivedProfiles.Load(), time.Since(began).Round(time.Second), before, after)
}

// soakContainer is the container of TestADayOfTwoHundredProfiles.
type soakContainer struct {
	*testContainer

	names                               []string
	events, crashes, shortLivedProfiles atomic.Int64
	killed                              sync.Map // Run that was killed last, by service.
}

// restingUsage is PID 1's resource use at rest.
type restingUsage struct {
	usage

	goroutines int
}

// restUsage waits until all services are up, no other process remains, and holds succeeds.
func (d *soakContainer) restUsage(holds func(usage, int) error) restingUsage {
	d.t.Helper()
	d.awaitRest(d.names)
	var now restingUsage
	if err := poll(time.Duration(shortOrFull(60, 180))*time.Second, func() error {
		now = restingUsage{d.usage(), d.status().Init.Goroutines}
		return holds(now.usage, now.goroutines)
	}); err != nil {
		d.t.Error(err)
	}
	return now
}

// performEvents performs the given number of events on the profiles.
func (d *soakContainer) performEvents(part uint64, events int) {
	d.t.Helper()
	kill, end := d.startKiller()
	defer end()
	target := d.events.Load() + int64(events)
	var workers sync.WaitGroup
	const parallel = 24
	for worker := range parallel {
		random := rand.New(rand.NewPCG(*seed, 8+part<<32+uint64(worker)))
		workers.Go(func() {
			for d.events.Load() < target && d.running() {
				switch name, kind := d.names[random.IntN(len(d.names))], random.IntN(100); {
				case kind < 70:
					d.crash(name, kill)
				case kind < 80:
					d.count(d.sendCommand("restart", name))
				case kind < 90:
					d.count(d.sendCommand("stop", name))
					d.count(d.sendCommand("start", name))
				default:
					d.shortLivedProfile()
				}
			}
		})
	}
	workers.Wait()
}

// count counts the events that succeeded.
func (d *soakContainer) count(err error) {
	if err == nil {
		d.events.Add(1)
	}
}

func (d *soakContainer) crash(name string, kill func(int)) {
	s, err := d.service(name)
	if err != nil || s.PID == 0 {
		return
	}
	if last, _ := d.killed.Swap(name, s.RunNumber); last != s.RunNumber {
		kill(s.PID)
		d.crashes.Add(1)
		d.events.Add(1)
	}
}

// shortLivedProfile creates, runs and deletes a profile with a unique name.
func (d *soakContainer) shortLivedProfile() {
	name := fmt.Sprintf("guest%d", d.shortLivedProfiles.Add(1))
	if err := d.tryMakeProfile(name, sleeper); err != nil {
		d.t.Error(err)
		return
	}
	d.count(nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = d.client.Rescan(ctx) // An error means that the start does not count.
	d.count(d.sendCommand("start", name))
	err := poll(patience, func() error { return os.RemoveAll(d.profileDir(name)) }) // hinit may be writing in the directory.
	if err != nil {
		d.t.Error(err)
	}
	d.count(err)
}

// startKiller starts a process that kills others by their PID in the container. end stops it.
func (b *testContainer) startKiller() (kill func(inner int), end func()) {
	b.t.Helper()
	cmd := exec.Command("nsenter", "-t", strconv.Itoa(b.cmd.Process.Pid), "-p", "-m", "--", "sh", "-c", "while read -r p; do kill -KILL $p; done")
	in, err := cmd.StdinPipe()
	b.check(err, cmd.Start())
	var mu sync.Mutex
	return func(inner int) {
			mu.Lock()
			defer mu.Unlock()
			_, _ = fmt.Fprintln(in, inner) // The killer runs until end is called.
		}, func() {
			_ = in.Close()
			_ = cmd.Wait() // Ignore the error: the process may have ended.
		}
}

// awaitRest waits until all services are up and no other process remains.
func (b *testContainer) awaitRest(names []string) {
	b.t.Helper()
	b.check(poll(time.Minute, func() error {
		services := 0
		for _, s := range b.status().Services {
			if s.Profile == "" || s.Profile == "default" {
				continue
			}
			services++
			if s.State != client.StateUp {
				return fmt.Errorf("%s is %s: %s", s.Name, s.State, s.Reason)
			}
		}
		if services != len(names) {
			return fmt.Errorf("there are %d services, not %d", services, len(names))
		}
		return nil
	}))
}
