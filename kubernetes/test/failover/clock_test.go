package failover

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"hinit/kubernetes/internal/cluster"
)

var stepClock = flag.Bool("step-clock", false, "step the wall clock of pods too; this builds hinit and its program of the lease with another time.Now")

// clockVar is the environment variable with the path of a file. The file holds the seconds by which
// a pod's clock is ahead.
const clockVar = "HINIT_FAILOVER_CLOCK"

// withClock builds hinit and hinit-lease-kubernetes with a wall clock that the test can step. It
// returns the directory of all programs.
func withClock(t *testing.T, programs string) string {
	t.Helper()
	dir := t.TempDir()
	overlay, err := cluster.SteppingClock(dir, clockVar)
	if err != nil {
		t.Fatal(err)
	}
	bin, err := os.MkdirTemp(filepath.Dir(programs), "clock-") //nolint:usetesting // the agents' user executes the programs in this directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(bin) })
	if err := os.CopyFS(bin, os.DirFS(programs)); err != nil {
		t.Fatal(err)
	}
	for module, program := range map[string]string{"../../..": "./cmd/hinit", "../..": "./cmd/hinit-lease-kubernetes"} {
		cmd := exec.Command("go", "build", "-overlay", overlay, "-o", bin+"/", program)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", program, err, out)
		}
	}
	if err := os.Chmod(bin, 0o755); err != nil { //nolint:gosec // the agents' user executes the programs in this directory
		t.Fatal(err)
	}
	return bin
}

// step sets the clock of a pod ahead.
func (p *pod) step(t *testing.T, ahead time.Duration) {
	t.Helper()
	file := filepath.Join(p.dir, "clock")
	if err := os.WriteFile(file+".new", []byte(strconv.Itoa(int(ahead.Seconds()))), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// TestTheClockOfANodeSteps steps the wall clocks of both pods by an hour in both directions.
// Neither pod may lose or take the Lease, and a takeover must still happen in time.
func TestTheClockOfANodeSteps(t *testing.T) {
	if !*stepClock {
		t.Skip("it builds two programs with another clock; give -step-clock")
	}
	s := newSite(t)
	s.ctx = t.Context()
	s.programs = withClock(t, s.programs)
	w, two, serves := startPair(t, s, 94)
	t.Cleanup(func() {
		for _, p := range two {
			if log, err := os.ReadFile(p.dir + "/log"); t.Failed() {
				t.Logf("pod %d: %v\n%s", p.number, err, log)
			}
		}
	})
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
		for _, p := range []*pod{serves, two[1-serves.number]} {
			before := w.gateway(serves)
			p.step(t, ahead)
			<-time.After(2 * leaseTime)
			if p == serves {
				if off := time.Until(p.lease().RenewTime.Time) - ahead; off.Abs() > time.Minute {
					t.Errorf("the clock of the pod has not stepped: its renewal is %v off", off)
				}
			}
			if now := w.gateway(serves); now != before || w.isRunning(two[1-serves.number]) {
				t.Errorf("pod %d by %v: the gateway was process %d and is %d", p.number, ahead, before, now)
			}
		}
	}
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		serves.step(t, ahead)
		<-time.After(leaseTime)
		old := serves
		began := time.Now()
		old.end()
		next, at, err := w.await(two, old)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("a takeover from a pod whose clock is %v off took %v", ahead, at.Sub(began))
		if took := at.Sub(began); took < leaseTime/2 || took > 2*maxTakeover {
			t.Errorf("a takeover from a pod whose clock is %v off took %v", ahead, took)
		}
		old.step(t, 0)
		old.start(t)
		serves = next
	}
	if w.countDuplicates(serves) > 0 {
		t.Error("two pods served")
	}
}
