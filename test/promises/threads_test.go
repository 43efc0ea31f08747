package promises_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// forkBomb takes every process number as soon as one is free.
const forkBomb = "while :; do command eval 'sleep 3 &'; done 2>/dev/null\n"

// TestThreadsOfPID1AreAConstant checks that PID 1 creates no threads after the boot. The Go runtime
// would abort if it can't create one, for example under a fork bomb.
func TestThreadsOfPID1AreAConstant(t *testing.T) {
	parallelLong(t)
	requireRoot(t)
	group := pidsGroup(t)
	b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{Cgroup: group}})
	freeze := b.frozenVolume()
	names := b.profiles(shortOrFull(60, 500), sleeper)
	b.profile("counter", counter)
	b.profile("bomb", forkBomb)
	b.boot()
	after := b.usage().threads
	b.commandAll("start", append(names, "counter"))
	if *full {
		b.throttle()
	}
	b.check(os.WriteFile(filepath.Join(group, "pids.max"), []byte(strconv.Itoa(b.pids(group))), 0))

	var asked atomic.Int64
	for round, begin := 0, time.Now(); round < 1 || time.Since(begin) < time.Duration(shortOrFull(0, 600))*time.Second; round++ {
		_ = b.sendCommand("start", "bomb")
		asked.Add(b.concurrentClients(100, shortOrFull(1, 100), names[:20]))
		thaw := freeze()
		asked.Add(b.concurrentClients(60, 1, names)) // Each request waits for the frozen volume.
		asked.Add(b.concurrentClients(100, shortOrFull(1, 20), nil))
		thaw()
		_ = b.sendCommand("stop", "bomb") // Ignore the error: the bomb ends with the container.
		if now := b.usage().threads; now != after {
			t.Fatalf("PID 1 has %d threads after %d calls; after the boot it had %d", now, asked.Load(), after)
		}
	}
	b.check(os.WriteFile(filepath.Join(group, "pids.max"), []byte("max"), 0))
	b.check(b.commandAndAwait("stop", "bomb"))
	b.commandAll("start", names)
	within(t, patience, b.checkReaped)
	sheet.add("calls at the limit", int(asked.Load()))
	sheet.set("threads", strconv.Itoa(after))
}

// throttle limits PID 1 to a quarter of a processor, if possible, so that short system calls seem
// to block.
func (b *testContainer) throttle() {
	b.t.Helper()
	for root, files := range map[string]map[string]string{
		"/sys/fs/cgroup/cpu": {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "5000"},
		"/sys/fs/cgroup":     {"cpu.max": "5000 20000"},
	} {
		dir := filepath.Join(root, fmt.Sprintf("hinit-promises-cpu-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		b.t.Cleanup(func() {
			b.kill()
			_ = poll(patience, func() error { return os.Remove(dir) })
		})
		var failed error
		for file, text := range files {
			failed = errors.Join(failed, os.WriteFile(filepath.Join(dir, file), []byte(text), 0))
		}
		if failed == nil && os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(b.cmd.Process.Pid)), 0) == nil {
			return
		}
	}
}

func (b *testContainer) pids(group string) int {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(group, "pids.current"))
	b.check(err)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	b.check(err)
	return n
}

// commandAll repeats a command until every service has carried it out.
func (b *testContainer) commandAll(verb string, names []string) {
	b.t.Helper()
	state := map[string]string{"start": client.StateUp, "stop": client.StateDown}[verb]
	for _, name := range names {
		b.check(b.sendCommand(verb, name))
	}
	for _, name := range names {
		within(b.t, patience, b.checkState(name, state))
	}
}

// concurrentClients lets many clients send random requests concurrently, and returns their number.
func (b *testContainer) concurrentClients(clients, times int, names []string) int64 {
	b.t.Helper()
	var asked atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		random := rand.New(rand.NewPCG(*seed, uint64(i)))
		all.Go(func() {
			for range times {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(shortOrFull(300, 1000))*time.Millisecond)
				var err error
				switch ask := random.IntN(4); {
				case names == nil, ask == 0:
					_, err = b.client.Status(ctx)
				case ask == 1:
					_, err = b.client.Stop(ctx, names[random.IntN(len(names))], client.WaitOptions{})
				default:
					_, err = b.client.Start(ctx, names[random.IntN(len(names))], client.WaitOptions{})
				}
				_ = err // Ignore the error: a later check shows whether PID 1 is alive.
				cancel()
				asked.Add(1)
			}
		})
	}
	all.Wait()
	if !b.running() {
		b.t.Fatalf("PID 1 has ended, code %d", b.wait(patience))
	}
	return asked.Load()
}

// frozenVolume gives the volume its own file system. freeze blocks its writers like a hung disk.
func (b *testContainer) frozenVolume() (freeze func() (thaw func())) {
	b.t.Helper()
	image := b.path("volume")
	b.check(os.WriteFile(image, nil, 0o600), os.Truncate(image, 256<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-N", "20000", image).CombinedOutput(); err != nil {
		b.t.Skipf("no file system can be made here: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, b.home).CombinedOutput(); err != nil {
		b.t.Skipf("no file system can be mounted here: %v: %s", err, out)
	}
	dir, err := os.Open(b.home)
	b.check(err)
	const fifreeze, fithaw = 0xc0045877, 0xc0045878 // FIFREEZE and FITHAW, see ioctl_fs(2).
	thaw := func() { _ = unix.IoctlSetInt(int(dir.Fd()), fithaw, 0) }
	b.t.Cleanup(func() {
		thaw()
		b.kill()
		_ = dir.Close()
		if err := poll(patience, func() error { return unix.Unmount(b.home, 0) }); err != nil {
			b.t.Error(err)
		}
	})
	b.check(os.MkdirAll(filepath.Join(b.home, "profiles"), 0o755), chownTree(b.home, b.uid))
	return func() func() {
		b.t.Helper()
		b.check(unix.IoctlSetInt(int(dir.Fd()), fifreeze, 0))
		return thaw
	}
}
