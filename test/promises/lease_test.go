package promises_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// onServer makes hinit treat the volume as a network file system with locks on a server.
const onServer = "lock server EEXIST"

// fleet is a set of containers that share a volume.
type fleet struct {
	t          *testing.T
	containers []*testContainer
	file       string // File in which the gateways record their running times.
}

// newFleet creates containers whose gateways record ten times a second that they run.
func newFleet(t *testing.T, many int, profiles ...string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for i := range many {
		s := setup{stageConfig: stageConfig{Host: fmt.Sprintf("c%d", i)}, config: quick, faults: true}
		if i > 0 {
			s.shares = f.containers[0]
		}
		f.containers = append(f.containers, newTestContainer(t, s))
	}
	b := f.containers[0]
	f.file = b.path("ran")
	b.check(os.WriteFile(f.file, nil, 0o666), os.Chmod(f.file, 0o666))
	for _, name := range profiles {
		b.profile(name, `host=$(uname -n)
while :; do
  read up idle </proc/uptime
  echo "`+name+` $host/$HINIT_RUN $up" >>`+f.file+`
  sleep .1
done
`)
		state := filepath.Join(b.profileDir(name), "gateway_state.json")
		b.check(os.WriteFile(state, []byte(`{"desired_state":"running"}`), 0o644), os.Chown(state, b.uid, b.uid))
	}
	return f
}

// pause stops all processes of a container, its init first.
func (f *fleet) pause(b *testContainer) {
	_ = b.cmd.Process.Signal(unix.SIGSTOP)
	for _, p := range b.processes() {
		_ = unix.Kill(p.pid, unix.SIGSTOP) // Ignore the error: the process may have ended.
	}
}

// unpause resumes all processes, the init last.
func (f *fleet) unpause(b *testContainer) {
	for _, p := range b.processes() {
		_ = unix.Kill(p.pid, unix.SIGCONT)
	}
	_ = b.cmd.Process.Signal(unix.SIGCONT)
}

// checkExclusive fails the test if two gateways of one profile ran at the same time.
func (f *fleet) checkExclusive() {
	f.t.Helper()
	file, err := os.Open(f.file)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	type lifetime struct{ from, to float64 }
	all := map[string]map[string]lifetime{} // Lives of each profile's runs.
	for lines := bufio.NewScanner(file); lines.Scan(); {
		w := strings.Fields(lines.Text())
		if len(w) != 3 {
			continue // The gateway was killed while it wrote this line.
		}
		at, err := strconv.ParseFloat(w[2], 64)
		if err != nil {
			continue
		}
		if all[w[0]] == nil {
			all[w[0]] = map[string]lifetime{}
		}
		l, known := all[w[0]][w[1]]
		if !known {
			l.from = at
		}
		l.to = at
		all[w[0]][w[1]] = l
	}
	for profile, runs := range all {
		for name, l := range runs {
			for other, o := range runs {
				if name != other && l.from <= o.from && o.from < l.to {
					f.t.Fatalf("%s ran as %s until %.2f, and as %s from %.2f on", profile, name, l.to, other, o.from)
				}
			}
		}
	}
}

// serving returns an error unless a container serves the volume.
func serving(b *testContainer) func() error {
	return func() error {
		if !b.running() {
			return errHopeless
		}
		s, err := b.service("a")
		if err == nil && s.State != client.StateUp {
			err = fmt.Errorf("a is %s in %s", s.State, b.Host)
		}
		return err
	}
}

// waiting returns an error unless a container reports that it waits for holder.
func waiting(b, holder *testContainer) func() error {
	return func() error {
		if !b.running() {
			return errHopeless
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s, err := b.client.Status(ctx)
		if err != nil {
			return err
		}
		if l := s.Init.Lease; s.Init.Booting || l == nil || l.State != client.LeaseWaiting || l.Holder == nil || l.Holder.Host != holder.Host {
			return fmt.Errorf("%s says %+v", b.Host, l)
		}
		return nil
	}
}

// newPair starts two containers with two profiles: the first serves, and the second waits.
func newPair(t *testing.T) (f *fleet, one, two *testContainer) {
	t.Helper()
	f = newFleet(t, 2, "a", "b")
	one, two = f.containers[0], f.containers[1]
	one.start()
	within(t, patience, serving(one))
	two.start()
	within(t, patience, waiting(two, one))
	return f, one, two
}

// TestTwoContainersOnOneVolume checks that the second container leaves the gateways to the first,
// and takes over when the first ends.
func TestTwoContainersOnOneVolume(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	f, one, two := newPair(t)
	if s := two.status(); len(s.Services) > 0 || s.Init.Cmd == nil {
		t.Errorf("the second has %v, and the CMD %v", s.Services, s.Init.Cmd)
	}
	for _, verb := range []string{"start", "stop", "restart"} {
		if err := two.sendCommand(verb, "a"); err == nil || !strings.Contains(err.Error(), "is held by another hinit, by its note "+one.Host+" since ") {
			t.Errorf("%s at the second: %v", verb, err)
		}
	}
	one.check(one.sendCommand("stop", "b"))
	one.kill()
	killed := time.Now()
	within(t, patience, serving(two))
	t.Logf("after a kill the other had its gateway up in %v", time.Since(killed).Round(time.Millisecond))
	if err := two.checkRestored("b", "stopped"); err != nil {
		t.Error(err)
	}
	one.start()
	within(t, patience, waiting(one, two))
	two.stop()
	begin := time.Now()
	within(t, patience, serving(one))
	t.Logf("after a clean end the other had its gateway up in %v", time.Since(begin).Round(time.Millisecond))
	f.checkExclusive()
	sheet.add("takeovers", 2)
}

// TestAPausedContainerKeepsItsVolume checks that no other container takes over from a paused one.
// Otherwise both would run gateways after the resume.
func TestAPausedContainerKeepsItsVolume(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	f, one, two := newPair(t)
	before, err := one.service("a")
	one.check(err)
	f.pause(one)
	// The agent forges lease files of an older version. A paused holder must not lose its volume
	// because of them.
	dir := filepath.Join(one.home, ".hinit")
	one.check(os.RemoveAll(dir), os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, "lease.50"), nil, 0o666))
	for i := range 20 {
		two.check(os.WriteFile(filepath.Join(dir, fmt.Sprintf("lease.%d", 100+i)), nil, 0o666))
		if l := two.status().Init.Lease; l.State != client.LeaseWaiting || len(two.processesOf("gateway-a")) > 0 {
			t.Fatalf("the second has %+v", l)
		}
	}
	f.unpause(one)
	within(t, patience, serving(one))
	after, err := one.service("a")
	one.check(err)
	if after.PID != before.PID {
		t.Errorf("the gateway was %d and is %d", before.PID, after.PID)
	}
	f.checkExclusive()
}

// TestTheAgentCannotKeepAVolumeFromBeingServed checks that the agent can't block a container with
// files in .hinit. If the agent's lock delays an init, a message must name it.
func TestTheAgentCannotKeepAVolumeFromBeingServed(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	f, one, two := newPair(t)
	dir := filepath.Join(one.home, ".hinit")
	for _, name := range []string{"lease.50", "lease.51", "lease.4503599627370496", "waiting"} {
		one.check(os.WriteFile(filepath.Join(dir, name), nil, 0o666))
	}
	if out, err := one.asAgent("flock", "-n", one.home, "true"); err == nil {
		t.Errorf("the agent gets the lock: %s", out)
	}
	one.check(serving(one)())
	two.kill()
	one.kill()
	one.start()
	within(t, patience, serving(one))
	f.checkExclusive()
}

// TestALeaseIsHandedOver checks that a container keeps its lock across a re-execution.
func TestALeaseIsHandedOver(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	_, one, two := newPair(t)
	gateway, err := one.service("a")
	one.check(err)
	one.reexec()
	within(t, patience, serving(one))
	after, err := one.service("a")
	one.check(err)
	if s := one.status(); s.Init.Generation != 2 || s.Init.Lease.State != client.LeaseHeld || after.PID != gateway.PID {
		t.Errorf("image %d has the lock %+v; the gateway is %d and was %d", s.Init.Generation, s.Init.Lease, after.PID, gateway.PID)
	}
	one.check(one.commandAndAwait("restart", "a"))
	for _, p := range one.processesOf("gateway-a") {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
		one.check(err)
		for _, fd := range fds {
			if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.pid, fd.Name())); err == nil && to == one.home {
				t.Errorf("process %d has the locked directory as %s", p.pid, fd.Name())
			}
		}
	}
	one.check(waiting(two, one)())
	one.kill()
	within(t, patience, serving(two))
}

// TestOnAServerALostLockEndsTheGateways replaces the lock file. The holder must kill its gateways,
// and their exits must name the lost lock.
func TestOnAServerALostLockEndsTheGateways(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	f := newFleet(t, 1, "a")
	b := f.containers[0]
	b.setFaultRules(onServer)
	b.start()
	within(t, patience, serving(b))
	before, err := b.service("a")
	b.check(err)
	b.check(os.RemoveAll(filepath.Join(b.home, ".hinit")))
	within(t, patience, func() error {
		after, err := b.service("a")
		if err == nil && (after.State != client.StateUp || after.PID == before.PID) {
			err = fmt.Errorf("a is %s as %d", after.State, after.PID)
		}
		return err
	})
	causes := ""
	b.check(b.client.Events(t.Context(), client.EventOptions{MaxPast: 1000}, func(e client.Event) error {
		if e.Service == "gateway-a" && e.Exit != nil {
			causes += e.Exit.Cause + " "
		}
		return nil
	}))
	if causes != "lease " {
		t.Errorf("the gateway's exits have the causes %q", causes)
	}
	f.checkExclusive()
}

// TestOnAVolumeFrozenAtTheBootNothingStartsTwice starts two containers on a frozen volume. Both may
// run only their CMD; after the thaw, only one may boot.
func TestOnAVolumeFrozenAtTheBootNothingStartsTwice(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	one := newTestContainer(t, setup{stageConfig: stageConfig{Host: "c0"}})
	ran := one.path("ran")
	one.check(os.WriteFile(ran, nil, 0o666), os.Chmod(ran, 0o666))
	one.config = quick + fmt.Sprintf(`boot: {hooks: [{command: [sh, -c, "echo hook on $(uname -n) >>%[1]s"]}]}
services:
  beside: {command: [sh, -c, "echo service on $(uname -n) >>%[1]s; exec sleep 1000"], cwd: "{home}"}
`, ran)
	two := newTestContainer(t, setup{stageConfig: stageConfig{Host: "c1"}, config: one.config})
	one.check(os.WriteFile(one.path("hinit.yaml"), fmt.Appendf(nil, baseConfig+one.config, one.uid, built.agent, one.agent), 0o644))
	freeze, thaw := one.useFreezableVolume()
	two.home = one.home
	freeze()
	for _, b := range []*testContainer{one, two} {
		b.start()
	}
	for _, b := range []*testContainer{one, two} {
		within(t, patience, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			s, err := b.client.Status(ctx)
			switch {
			case err != nil:
				return err
			case s.Init.Cmd == nil || s.Init.Cmd.PID == 0:
				return errors.New("the CMD does not run")
			case s.Init.Lease.State != client.LeaseWaiting:
				return fmt.Errorf("booting %v, lease %+v", s.Init.Booting, s.Init.Lease)
			}
			return nil
		})
	}
	if text, err := os.ReadFile(ran); err != nil || len(text) > 0 {
		t.Errorf("while nobody knew whose the volume is: %v\n%s", err, text)
	}
	thaw()
	within(t, patience, func() error {
		for _, pair := range [][2]*testContainer{{one, two}, {two, one}} {
			s, err := pair[0].service("beside")
			if err == nil && s.State == client.StateUp && waiting(pair[1], pair[0])() == nil {
				return nil
			}
		}
		return fmt.Errorf("c0 has %+v, and c1 %+v", one.status().Init.Lease, two.status().Init.Lease)
	})
	within(t, patience, func() error {
		text, err := os.ReadFile(ran)
		if err == nil && (strings.Count(string(text), "\n") != 2 || strings.Contains(string(text), "c0") == strings.Contains(string(text), "c1")) {
			err = fmt.Errorf("after the thaw:\n%s", text)
		}
		return err
	})
	two.kill()
}

// TestContainersOnOneVolumeAtRandom randomly pauses, kills and restarts up to ten containers on one
// volume. No profile may have two gateways.
func TestContainersOnOneVolumeAtRandom(t *testing.T) {
	parallelLong(t)
	requireRoot(t)
	if !*full {
		t.Skip("it takes minutes; the short form is TestTwoContainersOnOneVolume")
	}
	random := rand.New(rand.NewPCG(*seed, 27))
	for _, many := range []int{2, 3, 10} {
		f := newFleet(t, many, "a", "b")
		for _, b := range f.containers {
			b.start()
		}
		paused := map[*testContainer]time.Time{} // End of the pause, by container.
		deeds := 0
		for end := time.Now().Add(*leaseSpan); time.Now().Before(end); deeds++ {
			<-time.After(time.Duration(random.Int64N(int64(3 * time.Second))))
			for b, until := range paused {
				if time.Now().After(until) {
					f.unpause(b)
					delete(paused, b)
				}
			}
			b := f.containers[random.IntN(many)]
			if _, is := paused[b]; is {
				continue
			}
			switch random.IntN(4) {
			case 0:
				b.kill()
				b.start()
			case 1:
				b.stop()
				b.start()
			default:
				f.pause(b)
				paused[b] = time.Now().Add(time.Duration(random.Int64N(int64(20 * time.Second))))
			}
		}
		for b := range paused {
			f.unpause(b)
		}
		within(t, patience, func() (err error) {
			for _, b := range f.containers {
				if err = serving(b)(); err == nil {
					return nil
				}
			}
			return err
		})
		f.checkExclusive()
		t.Logf("%d containers: %d deeds", many, deeds)
		sheet.add("lease deeds", deeds)
		for _, b := range f.containers {
			b.kill()
		}
	}
}

// TestAFileSystemThatRefusesLocksDoesNotHoldUpTheBoot checks that hinit serves a volume whose file system refuses flock(2), and
// says that nothing protects it. With EPERM, it must not say for ever that it can't lock the volume yet.
func TestAFileSystemThatRefusesLocksDoesNotHoldUpTheBoot(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	for _, errno := range []string{"EPERM", "ENOLCK"} {
		b := newTestContainer(t, setup{config: quick, faults: true})
		b.profile("a", sleeper)
		b.setFaultRules("lock " + b.home + " " + errno)
		b.boot()
		b.startAndAwait("a")
		if !b.outputContains("err", "nothing keeps another container") || !b.outputContains("err", "see to it that only one uses this volume") || b.outputContains("err", "yet: ") {
			t.Errorf("%s: %s", errno, b.lastWords())
		}
		b.kill()
	}
}
