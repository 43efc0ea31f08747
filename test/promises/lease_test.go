package promises_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// noLocks makes the lease of a volume be kept by a heartbeat, as on a network file system.
const noLocks = "lock * ENOLCK"

// fleet is containers that share a volume. Each has its own network, processes and host name.
type fleet struct {
	t      *testing.T
	boxes  []*box
	file   string // where the gateways say when they ran
	resume map[string][]float64
	able   map[string][]spell // when a container could have served, besides now
	since  map[string]float64 // since when it can, if it can
}

// spell is a stretch of time.
type spell struct{ from, to float64 }

// can takes note of whether a container can serve.
func (f *fleet) can(b *box, yes bool) {
	if from, could := f.since[b.Host]; could {
		f.able[b.Host] = append(f.able[b.Host], spell{from, uptime()})
		delete(f.since, b.Host)
	}
	if yes {
		f.since[b.Host] = uptime()
	}
}

// could returns for how long at a stretch some container could have served within a gap.
func (f *fleet) could(gap spell) (longest float64) {
	for _, b := range f.boxes {
		spells := f.able[b.Host]
		if from, can := f.since[b.Host]; can {
			spells = append(slices.Clone(spells), spell{from, uptime()})
		}
		for _, s := range spells {
			longest = max(longest, min(gap.to, s.to)-max(gap.from, s.from))
		}
	}
	return longest
}

// newFleet makes containers; standby says of each whether it waits for the lease. Their gateways say in a file, ten times a second,
// that they run.
func newFleet(t *testing.T, many int, standby, heartbeat bool, profiles ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, resume: map[string][]float64{}, able: map[string][]spell{}, since: map[string]float64{}}
	for i := range many {
		s := setup{order: order{Host: fmt.Sprintf("c%d", i)}, config: quick, faults: true}
		if i > 0 {
			s.shares = f.boxes[0]
		}
		if standby {
			s.env = []string{"HINIT_STANDBY=1"}
		}
		b := newBox(t, s)
		if heartbeat {
			b.fail(noLocks)
		}
		f.boxes = append(f.boxes, b)
	}
	b := f.boxes[0]
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

// uptime is the clock of the gateways.
func uptime() float64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it is there
	return float64(ts.Nano()) / 1e9
}

// pause stops everything in a container, its init first, as a freezer would at the worst moment.
func (f *fleet) pause(b *box) {
	f.can(b, false)
	_ = b.cmd.Process.Signal(unix.SIGSTOP)
	for _, p := range b.processes() {
		_ = unix.Kill(p.pid, unix.SIGSTOP) // it may have ended
	}
}

// unpause lets everything go on, the init last.
func (f *fleet) unpause(b *box) {
	f.resume[b.Host] = append(f.resume[b.Host], uptime())
	for _, p := range b.processes() {
		_ = unix.Kill(p.pid, unix.SIGCONT)
	}
	_ = b.cmd.Process.Signal(unix.SIGCONT)
	f.can(b, true)
}

// start starts a container, after its end.
func (f *fleet) start(b *box) {
	f.can(b, false)
	b.start()
	f.can(b, true)
}

// ran is one life of a gateway, as it saw itself.
type ran struct {
	host string
	at   []float64
}

// lives reads what the gateways have said, by profile and run.
func (f *fleet) lives() map[string]map[string]*ran {
	f.t.Helper()
	file, err := os.Open(f.file)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	all := map[string]map[string]*ran{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) != 3 {
			continue // it was killed while it wrote
		}
		at, err := strconv.ParseFloat(w[2], 64)
		if err != nil {
			continue
		}
		if all[w[0]] == nil {
			all[w[0]] = map[string]*ran{}
		}
		r := all[w[0]][w[1]]
		if r == nil {
			r = &ran{host: strings.SplitN(w[1], "/", 2)[0]}
			all[w[0]][w[1]] = r
		}
		r.at = append(r.at, at)
	}
	return all
}

// fenced is how long a gateway may go on after a pause during which its container has lost the lease: its init has to look first.
const fenced = 2.0

// check fails the test when two gateways of one profile ran at the same time, but for those that came back from a pause, or when
// nobody ran a wanted one for longer than 15 s while one and the same container could. It returns the longest such time, and the longest that one came back for.
func (f *fleet) check(from float64, wanted ...string) (still, back float64) {
	f.t.Helper()
	for profile, runs := range f.lives() {
		var moments []float64
		for name, r := range runs {
			moments = append(moments, r.at...)
			for other, o := range runs {
				if name == other || o.at[0] < r.at[0] {
					continue
				}
				// o began later: r must not have been there from then on.
				for _, at := range r.at {
					if at <= o.at[0] {
						continue
					}
					i := slices.IndexFunc(f.resume[r.host], func(resumed float64) bool { return at >= resumed-.02 && at < resumed+fenced })
					if i < 0 {
						f.t.Fatalf("%s ran at %.2f as %s, and as %s from %.2f to %.2f; it was resumed at %v", profile, at, name, other, o.at[0], o.at[len(o.at)-1], f.resume[r.host])
					}
					back = max(back, at-f.resume[r.host][i])
				}
			}
		}
		if !slices.Contains(wanted, profile) {
			continue
		}
		slices.Sort(moments)
		last := from
		for _, at := range append(moments, uptime()) {
			idle := f.could(spell{last, at})
			if idle > 15 {
				f.t.Fatalf("no gateway of %s ran between %.2f and %.2f, although somebody could for %.2f s", profile, last, at, idle)
			}
			still, last = max(still, idle), at
		}
	}
	return still, back
}

// serving complains unless a container serves the volume.
func serving(b *box) func() error {
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

// waiting complains unless a container says that another one serves the volume.
func waiting(b, holder *box) func() error {
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
		if l := s.Init.Lease; l == nil || l.State != client.LeaseElsewhere || l.Holder == nil || l.Holder.Host != holder.Host {
			return fmt.Errorf("%s says %+v", b.Host, l)
		}
		return nil
	}
}

// newPair starts two containers with the profiles a and b: the first serves, the second waits. From is when the first was started.
func newPair(t *testing.T, heartbeat bool) (f *fleet, from float64) {
	t.Helper()
	f = newFleet(t, 2, true, heartbeat, "a", "b")
	from = uptime()
	f.start(f.boxes[0])
	within(t, patience, serving(f.boxes[0]))
	f.start(f.boxes[1])
	within(t, patience, waiting(f.boxes[1], f.boxes[0]))
	return f, from
}

// TestTwoContainersOnOneVolume starts two containers on one volume. The second leaves the gateways to the first, says so, and takes
// over when that one ends; what was asked of the first stays so.
func TestTwoContainersOnOneVolume(t *testing.T) {
	beside(t)
	requireRoot(t)
	for _, heartbeat := range []bool{false, true} {
		t.Run(map[bool]string{false: "lock", true: "heartbeat"}[heartbeat], func(t *testing.T) {
			t.Parallel()
			f, from := newPair(t, heartbeat)
			one, two := f.boxes[0], f.boxes[1]
			within(t, patience, func() error {
				if s := two.status(); len(s.Services) > 0 || s.Init.Cmd == nil {
					return fmt.Errorf("the second has %v, and the CMD %v", s.Services, s.Init.Cmd)
				}
				return nil
			})
			for _, verb := range []string{"start", "stop", "restart"} {
				if err := two.tell(verb, "a"); err == nil || !strings.Contains(err.Error(), "served by another hinit, "+one.Host+"/") {
					t.Errorf("%s at the second: %v", verb, err)
				}
			}
			one.check(one.tell("stop", "b"))
			one.kill()
			killed := time.Now()
			within(t, patience, serving(two))
			t.Logf("after a kill the other had its gateway up in %v", time.Since(killed).Round(time.Millisecond))
			if err := two.restored("b", "stopped"); err != nil {
				t.Error(err)
			}
			// The other comes back, and waits now.
			f.start(one)
			within(t, patience, waiting(one, two))
			two.kill()
			f.start(two) // a container that comes back has the lease at once, or the other has taken it by then
			within(t, patience, func() error {
				if serving(one)() == nil {
					return nil
				}
				return serving(two)()
			})
			still, _ := f.check(from, "a")
			t.Logf("the longest time without a gateway: %.1f s", still)
			// A clean end gives the lease back: who waits has it at the next look.
			first, second := one, two
			if serving(two)() == nil {
				first, second = two, one
			}
			first.stop()
			begin := time.Now()
			within(t, patience, serving(second))
			t.Logf("after a clean end the other had its gateway up in %v", time.Since(begin).Round(time.Millisecond))
			sheet.add("takeovers", 3)
		})
	}
}

// TestAPausedContainerComesBackToALostLease pauses the container that serves until another one does, on a local disk, whose lock the
// paused one keeps, and on a volume without locks. When it is resumed its gateways run before its init does. They are killed before
// anything else happens, and nothing that is wanted is written.
func TestAPausedContainerComesBackToALostLease(t *testing.T) {
	beside(t)
	requireRoot(t)
	for _, heartbeat := range []bool{false, true} {
		t.Run(map[bool]string{false: "lock", true: "heartbeat"}[heartbeat], func(t *testing.T) {
			t.Parallel()
			f, from := newPair(t, heartbeat)
			one, two := f.boxes[0], f.boxes[1]
			f.pause(one)
			paused := time.Now()
			within(t, patience, serving(two))
			t.Logf("after the pause began the other had its gateway up in %v", time.Since(paused).Round(10*time.Millisecond))
			two.check(two.tell("stop", "b"))
			f.unpause(one)
			within(t, patience, waiting(one, two))
			within(t, patience, func() error {
				if left := one.of("gateway-a"); len(left) > 0 {
					return fmt.Errorf("%d processes of a are left", len(left))
				}
				return nil
			})
			within(t, patience, func() error { // the console comes after the status
				text, err := os.ReadFile(one.path("err"))
				if err == nil && !(strings.Contains(string(text), "is lost: ") && strings.Contains(string(text), "its gateways and services were killed")) {
					err = fmt.Errorf("it does not say so:\n%s", text)
				}
				return err
			})
			if wanted := two.desired("b"); wanted != "stopped" {
				t.Errorf("the stop of b is %q on the disk", wanted)
			}
			two.check(serving(two)())
			if !heartbeat { // the lock is free now, and the next one has it
				within(t, patience, func() error {
					if l := two.status().Init.Lease; l == nil || l.Heartbeat {
						return fmt.Errorf("the lease is %+v", l)
					}
					return nil
				})
			}
			still, back := f.check(from, "a")
			t.Logf("the longest time without a gateway: %.1f s; after the pause one ran for %.2f s", still, back)
		})
	}
}

// TestAFrozenVolumeKeepsItsHolder freezes a local volume that one container serves and another waits for. No gateway ends, and nobody
// takes over, neither meanwhile nor after.
func TestAFrozenVolumeKeepsItsHolder(t *testing.T) {
	beside(t)
	requireRoot(t)
	span := 9 * time.Second // longer than the silence after which a lease may be taken
	if *full {
		span = 30 * time.Second
	}
	one := newBox(t, setup{order: order{Host: "c0"}, config: quick, env: []string{"HINIT_STANDBY=1"}})
	freeze, thaw := one.freezable()
	two := newBox(t, setup{order: order{Host: "c1"}, config: quick, env: []string{"HINIT_STANDBY=1"}, shares: one})
	one.profile("a", "exec sleep 1000")
	state := filepath.Join(one.profileDir("a"), "gateway_state.json")
	one.check(os.WriteFile(state, []byte(`{"desired_state":"running"}`), 0o644), os.Chown(state, one.uid, one.uid))
	one.start()
	within(t, patience, serving(one))
	two.start()
	within(t, patience, waiting(two, one))
	before, err := one.service("a")
	one.check(err)
	epoch := one.status().Init.Lease.Epoch
	freeze()
	<-time.After(span)
	thaw()
	<-time.After(span / 2) // who has counted the freeze as silence takes the lease by now
	after, err := one.service("a")
	one.check(err)
	if l := one.status().Init.Lease; after.PID != before.PID || l.State != client.LeaseHeld || l.Epoch != epoch {
		t.Errorf("the gateway was %d and is %d; the lease was of epoch %d and is %+v", before.PID, after.PID, epoch, l)
	}
	one.check(waiting(two, one)())
	two.kill()
}

// TestOnAVolumeFrozenAtTheBootNothingStartsTwice starts two containers on a volume that does not take writes, so that neither can tell
// whether the other serves it. Both run their CMD and nothing else. After the thaw one of them boots. It was so that both ran the
// hooks and the services of hinit.yaml.
func TestOnAVolumeFrozenAtTheBootNothingStartsTwice(t *testing.T) {
	beside(t)
	requireRoot(t)
	one := newBox(t, setup{order: order{Host: "c0"}})
	ran := one.path("ran")
	one.check(os.WriteFile(ran, nil, 0o666), os.Chmod(ran, 0o666))
	one.config = quick + fmt.Sprintf(`boot: {hooks: [{command: [sh, -c, "echo hook on $(uname -n) >>%[1]s"]}]}
services:
  beside: {command: [sh, -c, "echo service on $(uname -n) >>%[1]s; exec sleep 1000"], cwd: "{home}"}
`, ran)
	two := newBox(t, setup{order: order{Host: "c1"}, config: one.config})
	one.check(os.WriteFile(one.path("hinit.yaml"), fmt.Appendf(nil, baseConfig+one.config, one.uid, built.agent, one.agent), 0o644))
	freeze, thaw := one.freezable()
	two.home = one.home
	freeze()
	for _, b := range []*box{one, two} {
		b.start()
	}
	for _, b := range []*box{one, two} {
		within(t, patience, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			s, err := b.client.Status(ctx)
			switch {
			case err != nil:
				return err
			case s.Init.Cmd == nil || s.Init.Cmd.PID == 0:
				return errors.New("the CMD does not run")
			case s.Init.Lease.State != client.LeaseWaiting || !s.Init.Booting:
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
		for _, pair := range [][2]*box{{one, two}, {two, one}} {
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

// TestALeaseComesBackAtOnce kills a container that has the lease by a heartbeat, and starts it again. It need not wait for itself.
func TestALeaseComesBackAtOnce(t *testing.T) {
	beside(t)
	requireRoot(t)
	f := newFleet(t, 1, false, true, "a")
	b := f.boxes[0]
	for range 3 {
		b.boot()
		b.check(poll(patience, serving(b)))
		if l := b.status().Init.Lease; l == nil || l.State != client.LeaseHeld || !l.Heartbeat {
			t.Fatalf("the lease is %+v", l)
		}
		b.kill()
	}
	text, err := os.ReadFile(b.path("err"))
	if err != nil || strings.Contains(string(text), "waiting up to") {
		t.Errorf("it has waited for itself: %v\n%s", err, text)
	}
}

// TestALeaseIsHandedOver re-executes a container that has the lease: it has it still, and no other gets it.
func TestALeaseIsHandedOver(t *testing.T) {
	beside(t)
	requireRoot(t)
	for _, heartbeat := range []bool{false, true} {
		f := newFleet(t, 2, false, heartbeat, "a")
		one, two := f.boxes[0], f.boxes[1]
		one.boot()
		within(t, patience, serving(one))
		before := one.status().Init.Lease
		gateway, err := one.service("a")
		one.check(err)
		one.reexec()
		if heartbeat { // it beats on
			name := filepath.Join(one.home, ".hinit", fmt.Sprintf("lease.%d", before.Epoch))
			first, err := os.ReadFile(name)
			one.check(err)
			within(t, patience, func() error {
				if next, err := os.ReadFile(name); err != nil || string(next) == string(first) {
					return fmt.Errorf("no heartbeat: %w", err)
				}
				return nil
			})
		}
		two.start()
		within(t, patience, waiting(two, one))
		s := one.status()
		after, err := one.service("a")
		one.check(err)
		if l := s.Init.Lease; s.Init.Image != 2 || l.State != client.LeaseHeld || l.Epoch != before.Epoch || l.Holder.Boot != before.Holder.Boot || after.PID != gateway.PID {
			t.Errorf("image %d has the lease %+v, and it was %+v; the gateway is %d and was %d", s.Init.Image, l, before, after.PID, gateway.PID)
		}
	}
}

// TestTheAgentSpoilsTheLease lets the agent remove, garble and replace what the lease is made of. Nothing stops because of it.
func TestTheAgentSpoilsTheLease(t *testing.T) {
	beside(t)
	requireRoot(t)
	f := newFleet(t, 1, false, true, "a")
	b := f.boxes[0]
	b.boot()
	within(t, patience, serving(b))
	before, err := b.service("a")
	b.check(err)
	epoch := b.status().Init.Lease.Epoch
	dir := filepath.Join(b.home, ".hinit")
	own := filepath.Join(dir, fmt.Sprintf("lease.%d", epoch))
	secret := b.path("secret")
	b.check(os.WriteFile(secret, []byte("root's"), 0o600))
	for _, spoil := range []func() error{
		func() error { return os.Remove(filepath.Join(dir, "lease")) },
		func() error { return os.RemoveAll(dir) },
		func() error { return os.WriteFile(own, []byte("\x1b[31m{}"), 0o644) },
		func() error { return errors.Join(os.Remove(own), os.Symlink(secret, own)) },
		func() error { return errors.Join(os.RemoveAll(own), os.MkdirAll(filepath.Join(own, "deep"), 0o755)) },
		func() error { return errors.Join(os.RemoveAll(dir), os.Symlink(filepath.Dir(secret), dir)) },
	} {
		within(t, patience, spoil) // a renewal may come in the middle of it
		// The next renewal puts it right.
		within(t, patience, func() error {
			text, err := os.ReadFile(own)
			if err == nil && !strings.Contains(string(text), fmt.Sprintf(`"epoch":%d,`, epoch)) {
				err = fmt.Errorf("the record is %q", text)
			}
			if info, statErr := os.Lstat(dir); statErr == nil && !info.IsDir() {
				err = errors.New("the directory is a link")
			}
			return err
		})
	}
	after, err := b.service("a")
	b.check(err)
	if after.PID != before.PID || b.status().Init.Lease.State != client.LeaseHeld {
		t.Errorf("the gateway was %d and is %d; the lease is %+v", before.PID, after.PID, b.status().Init.Lease)
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "root's" {
		t.Errorf("the secret is %q, %v", text, err)
	}
}

// TestCrashAfterEveryStepOfABootWithAHeartbeat is TestCrashAfterEveryStepOfABoot on a volume whose lease is kept by a heartbeat.
// Each crash leaves a lease behind, in every state that it can be in; the next boot of the container serves all the same.
func TestCrashAfterEveryStepOfABootWithAHeartbeat(t *testing.T) {
	beside(t)
	requireRoot(t)
	f := newFleet(t, 1, false, true, "a")
	b := f.boxes[0]
	file := b.traceFile()
	b.fail(noLocks, "* * trace="+file)
	b.boot()
	within(t, patience, serving(b))
	b.kill()
	text, err := os.ReadFile(file)
	b.check(err)
	of := 0
	for k, call := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if !strings.Contains(call, "lease") {
			continue // those are in the other test
		}
		b.check(os.RemoveAll(filepath.Join(b.home, ".hinit")))
		b.fail(noLocks, fmt.Sprintf("* * crash skip=%d", k))
		b.start()
		b.wait(patience)
		b.fail(noLocks)
		b.boot()
		within(t, patience, serving(b))
		b.kill()
		sheet.add("crashes", 1)
		of++
	}
	if of < 5 {
		t.Errorf("only %d calls are about the lease:\n%s", of, text)
	}
}

// TestContainersOnOneVolumeAtRandom pauses, kills and restarts two, three and ten containers on one volume. Their gateways say
// themselves when they ran: never two of one profile at the same time, and one of each while somebody can.
func TestContainersOnOneVolumeAtRandom(t *testing.T) {
	long(t)
	requireRoot(t)
	if !*full {
		t.Skip("it takes minutes; the short form is TestTwoContainersOnOneVolume, and internal/lease has a model in virtual time")
	}
	random := rand.New(rand.NewPCG(*seed, 27))
	var worst struct{ still, back float64 }
	for _, heartbeat := range []bool{false, true} {
		for _, many := range []int{2, 3, 10} {
			f := newFleet(t, many, true, heartbeat, "a", "b")
			from := uptime()
			for _, b := range f.boxes {
				f.start(b)
			}
			paused := map[*box]time.Time{} // until when
			deeds := 0
			for end := time.Now().Add(*leaseSpan); time.Now().Before(end); deeds++ {
				<-time.After(time.Duration(random.Int64N(int64(6 * time.Second))))
				for b, until := range paused {
					if time.Now().After(until) {
						f.unpause(b)
						delete(paused, b)
					}
				}
				b := f.boxes[random.IntN(many)]
				if _, is := paused[b]; is {
					continue
				}
				switch random.IntN(4) {
				case 0:
					b.kill()
					f.start(b)
				case 1:
					f.can(b, false)
					b.stop()
					f.start(b)
				case 2, 3:
					if len(paused) < many-1 { // somebody can always serve
						f.pause(b)
						paused[b] = time.Now().Add(time.Duration(random.Int64N(int64(20 * time.Second))))
					}
				}
			}
			for b := range paused {
				f.unpause(b)
			}
			<-time.After(time.Second)
			still, back := f.check(from, "a", "b")
			what := fmt.Sprintf("%d containers, heartbeat %v", many, heartbeat)
			t.Logf("%s: %d deeds; the longest time without a gateway %.1f s; one that came back from a pause ran for at most %.2f s", what, deeds, still, back)
			sheet.add("lease deeds", deeds)
			worst.still, worst.back = max(worst.still, still), max(worst.back, back)
			sheet.set("lease still", fmt.Sprintf("%.1f s", worst.still))
			sheet.set("lease back", fmt.Sprintf("%.2f s", worst.back))
			for _, b := range f.boxes {
				b.kill()
			}
		}
	}
}
