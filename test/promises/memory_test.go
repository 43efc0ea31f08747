package promises_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// critical returns a configuration with critical profiles, which hinit never stops to free memory.
func critical(profiles ...string) string {
	return "profiles: {" + strings.Join(profiles, ": {priority: critical}, ") + ": {priority: critical}}\n"
}

// TestNoMoreMemory fills the container's memory. The kernel must kill other processes before PID 1,
// which must report and restart them.
func TestNoMoreMemory(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	group := memoryGroup(t, 64<<20)
	b := newTestContainer(t, setup{config: quick + critical("small", "large", "calm"), stageConfig: stageConfig{Memory: group}})
	small := `x=$(head -c 900000 /dev/zero | tr "\\0" x); echo full; sleep 1000000`
	b.profile("small", "while :; do sh -c '"+small+"' & sleep 0.02; done\n")
	b.profile("large", "exec "+b.program()+" testproc:eat 100000000\n")
	b.profile("calm", sleeper)
	b.boot()
	b.startAndAwait("calm")
	before, err := b.service("calm")
	within(t, patience, func() error { return b.checkInherited("calm") }) // The process gets its oom_score_adj a moment after its start.
	b.check(err, b.sendCommand("start", "small"))
	kills := 0
	within(t, 5*time.Minute, func() error { // A busy machine starts only a few processes in a second.
		if !b.running() {
			return errHopeless
		}
		if kills = oomKills(group); kills < shortOrFull(20, 200) {
			return fmt.Errorf("the kernel has killed %d", kills)
		}
		return nil
	})
	b.check(b.commandAndAwait("stop", "small"), b.sendCommand("start", "large"))
	within(t, patience, func() error {
		s, err := b.service("large")
		if err == nil && (s.LastExit == nil || s.LastExit.Cause != "oom" || s.Restarts == 0) {
			err = fmt.Errorf("large ended by %+v", s.LastExit)
		}
		return err
	})
	b.check(b.commandAndAwait("stop", "large"))
	now, err := b.service("calm")
	b.check(err)
	// The kernel may choose again before its last victim's memory is free.
	if now.Restarts > before.Restarts+1 || now.State != client.StateUp {
		t.Errorf("a gateway that takes nothing was restarted %d times, and is %s", now.Restarts-before.Restarts, now.State)
	}
	if code, _ := b.stop(); code != 0 {
		t.Errorf("the container ended with code %d", code)
	}
	sheet.add("memory kills", oomKills(group))
}

// TestPID1SurvivesItsOwnExecWithoutMemory re-executes hinit in a container whose memory is full.
// The kernel must never kill PID 1.
func TestPID1SurvivesItsOwnExecWithoutMemory(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	group := memoryGroup(t, 64<<20)
	filled := func() *testContainer {
		b := newTestContainer(t, setup{config: quick + critical("fill1", "fill2", "fill3"), faults: true, stageConfig: stageConfig{Memory: group}})
		for _, name := range []string{"fill1", "fill2", "fill3"} {
			b.profile(name, "while :; do "+b.program()+" testproc:eat 60000000; done\n")
		}
		b.boot()
		b.check(b.sendCommand("start", "fill1"), b.sendCommand("start", "fill2"), b.sendCommand("start", "fill3"))
		return b
	}
	b := filled()
	rounds := shortOrFull(5, 200)
	for range rounds {
		before := oomKills(group)
		within(t, patience, func() error {
			if oomKills(group) == before {
				return errors.New("the kernel has killed nothing")
			}
			return nil
		})
		b.reexec()
	}
	if n := b.status().Init.Generation; n != rounds+1 {
		t.Errorf("it is image %d after %d re-executions", n, rounds)
	}
	sheet.add("re-executions without memory", rounds)
	b.kill()
	for range shortOrFull(1, 50) {
		b := filled()
		b.check(os.WriteFile(b.path("run/panic.new"), []byte("loop"), 0o644), os.Rename(b.path("run/panic.new"), b.path("run/panic")))
		within(t, patience, func() error {
			if s, err := b.client.Status(t.Context()); err != nil || s.Init.Generation != 2 {
				return errors.Join(fmt.Errorf("it is image %d", s.Init.Generation), err)
			}
			return nil
		})
		sheet.add("panics without memory", 1)
		b.kill()
	}
}

// TestAVolumeFullOfNamesDoesNotKillPID1AtEachBoot checks a boot with little memory and very many
// long file names.
func TestAVolumeFullOfNamesDoesNotKillPID1AtEachBoot(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	group := memoryGroup(t, shortOrFull(32, 64)<<20)
	b := newTestContainer(t, setup{config: quick + critical("calm"), stageConfig: stageConfig{Memory: group}})
	b.profile("calm", sleeper)
	b.boot()
	b.startAndAwait("calm")
	b.stop()
	n := shortOrFull(40_000, 400_000)
	long := strings.Repeat("n", 240)
	full := []string{b.volume()}
	if shortOrFull(0, 1) == 1 {
		full = append(full, b.profileDir("calm"), b.profileDir(""), filepath.Join(b.volume(), "logs/gateways"))
	}
	for i := range n {
		b.check(os.Symlink("x", fmt.Sprintf("%s/%s%07d", full[i%len(full)], long, i)))
	}
	kills := oomKills(group)
	for range shortOrFull(1, 3) {
		b.boot()
		within(t, patience, b.checkState("calm", client.StateUp))
		b.kill()
	}
	if now := oomKills(group); now != kills {
		t.Errorf("the kernel has killed %d processes for memory", now-kills)
	}
	sheet.add("names on a volume", n)
}

// checkInherited returns an error unless the kernel would kill the CMD and a service's processes before
// PID 1.
func (b *testContainer) checkInherited(profile string) error {
	const most = 1000 // Largest oom_score_adj; some machines start the tests with a value other than 0.
	own := oomScoreAdj(b.cmd.Process.Pid)
	var errs []error
	for _, p := range b.processes() {
		if adj := oomScoreAdj(p.pid); adj < min(own+700, most) {
			errs = append(errs, fmt.Errorf("%s has the oom_score_adj %d, PID 1 %d", p.name, adj, own))
		}
	}
	for _, p := range b.processesOf("gateway-" + profile) {
		if adj := oomScoreAdj(p.pid); adj != min(own+755, most) {
			errs = append(errs, fmt.Errorf("%s of the gateway has the oom_score_adj %d, PID 1 %d", p.name, adj, own))
		}
	}
	return errors.Join(errs...)
}

func oomScoreAdj(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// memoryGroup makes a control group with a memory limit, or skips the test.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	for _, limitFile := range []string{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"} {
		root, file := filepath.Split(limitFile)
		dir := filepath.Join(root, fmt.Sprintf("hinit-memory-%d-%s", os.Getpid(), t.Name()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			_ = poll(patience, func() error { return os.Remove(dir) }) // An error means that the kernel is still removing the group's processes.
		})
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0) // os.WriteFile would create the file on a tmpfs.
		if err != nil {
			continue
		}
		_, err = f.WriteString(strconv.Itoa(limit))
		if errors.Join(err, f.Close()) == nil {
			return dir
		}
	}
	t.Skip("no control group with a memory limit can be made here")
	return ""
}

// oomKills returns how many processes of a control group the kernel has killed for memory.
func oomKills(group string) int {
	for _, file := range []string{"memory.oom_control", "memory.events"} {
		text, _ := os.ReadFile(filepath.Join(group, file))
		for line := range strings.Lines(string(text)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
				kills, _ := strconv.Atoi(n)
				return kills
			}
		}
	}
	return 0
}
