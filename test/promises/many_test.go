package promises_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// TestTenThousandEmptyDirectories checks that empty directories in profiles/ cost a boot neither
// time nor threads or descriptors.
func TestTenThousandEmptyDirectories(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	group := pidsGroup(t)
	const most = 500
	b := newTestContainer(t, setup{config: fmt.Sprintf("profiles: {max: %d}\n", most), stageConfig: stageConfig{Cgroup: group}})
	b.profile("zz", sleeper)
	b.boot()
	b.startAndAwait("zz")
	alone := b.usage()
	b.stop()

	n := shortOrFull(1500, 100_000)
	for i := range n {
		dir := b.profileDir(fmt.Sprintf("a%06d", i))
		b.check(os.Mkdir(dir, 0o755), os.Lchown(dir, b.uid, b.uid))
	}
	b.check(os.WriteFile(filepath.Join(group, "pids.max"), []byte("60"), 0))
	b.boot()
	within(t, patience, b.checkState("zz", client.StateUp))
	if warnings := strings.Join(b.status().Init.Warnings, "\n"); !strings.Contains(warnings, "profiles.max") {
		t.Errorf("it is not said that there are too many: %q", warnings)
	}
	b.profile("new", sleeper)
	within(t, patience, func() error { return b.commandAndAwait("start", "new") })
	full := b.usage()
	if full.threads > alone.threads+4 || full.files > alone.files+8 {
		t.Errorf("%d directories cost %d threads and %d descriptors; without them they are %d and %d", n, full.threads, full.files, alone.threads, alone.files)
	}
	<-time.After(time.Duration(shortOrFull(0, 20)) * time.Second) // The new profile has caused a full scan, which runs only when hinit is idle.
	begin, before := time.Now(), b.usage()
	<-time.After(time.Duration(shortOrFull(1, 10)) * time.Second)
	quiet := b.usage()
	sheet.add("empty directories", n)
	sheet.set("their memory", fmt.Sprintf("%.1f MiB", float64(quiet.private-alone.private)/1024))
	sheet.set("their time", fmt.Sprintf("%v in %v", quiet.cpu-before.cpu, time.Since(begin).Round(time.Second)))
	t.Logf("%d directories: %+v; without them %+v; quiet for %v: %v", n, full, alone, time.Since(begin), quiet.cpu-before.cpu)
}

// TestTwoThousandProfiles checks that all gateways of thousands of profiles come up, and prints the
// cost of one gateway.
func TestTwoThousandProfiles(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	private := 0
	few := shortOrFull(25, 500)
	for i, n := range []int{few, 4 * few} {
		b := newTestContainer(t, setup{config: quick})
		for _, name := range b.profiles(n, sleeper) {
			file := filepath.Join(b.profileDir(name), "gateway_state.json")
			b.check(os.WriteFile(file, []byte(`{"desired_state":"running"}`+"\n"), 0o644), os.Lchown(file, b.uid, b.uid))
		}
		begin := time.Now()
		b.start()
		within(t, 10*time.Minute, b.booted)
		took := time.Since(begin)
		within(t, patience, func() error { // Some gateways may come up after the end of the boot.
			up := 0
			status := b.status()
			for _, s := range status.Services {
				if s.Kind == client.KindGateway && s.State == client.StateUp {
					up++
				}
			}
			if up != n || status.Init.BootProfiles != nil || len(status.Init.Warnings) > 0 {
				return fmt.Errorf("%d of %d are up, booting %v, warnings %q", up, n, status.Init.BootProfiles, status.Init.Warnings)
			}
			return nil
		})
		u := b.usage()
		each := fmt.Sprintf("%.1f ms, %.1f ms of them PID 1's", float64(took.Microseconds())/1000/float64(n), float64(u.cpu.Microseconds())/1000/float64(n))
		sheet.set("cost of each of "+[]string{"few", "many"}[i], each)
		if i == 1 {
			sheet.set("memory of each", fmt.Sprintf("%d KiB", (u.private-private)/(n-few)))
		}
		private = u.private
		sheet.add("profiles booted", n)
		t.Logf("%d profiles in %v: each %s; %+v", n, took, each, u)
		b.kill()
	}
}
