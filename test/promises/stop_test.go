package promises_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// forkers lists the ways in which a service tries to escape a stop. Each runs for ever.
var forkers = map[string]string{
	"deaf":          "trap '' TERM\nwhile :; do sleep 1000000; done\n",
	"deaf children": "trap '' TERM\nfor i in 1 2 3 4 5; do (while :; do sleep 1000000; done) & done\nwait\n",
	"session":       "setsid sh -c \"trap '' TERM; while :; do sleep 1000000; done\" &\nwait\n",
	"daemon":        "(setsid env -i sh -c \"trap '' TERM; while :; do /bin/sleep 1000000; done\" &)\nexec sleep 1000000\n",
	"gone":          "(setsid env -i sh -c \"trap '' TERM; while :; do /bin/sleep 1000000; done\" &)\ntrap '' TERM\nwhile :; do sleep 1000000; done\n",
	"comet":         "trap '' TERM\ncat >\"$HOME/comet\" <<'END'\ntrap '' TERM\nsleep 0.02\n(setsid sh \"$0\" &)\nEND\nsh \"$HOME/comet\" &\nwhile :; do sleep 1000000; done\n",
	"stopped":       "trap '' TERM\nsleep 1000000 &\nkill -STOP $!\nkill -STOP $$\n",
	"obedient":      sleeper,
}

// TestStopEndsEverything stops services that try to escape, and containers full of them. It
// measures by how much a stop exceeds the grace.
func TestStopEndsEverything(t *testing.T) {
	parallelMeasurement(t)
	requireRoot(t)
	const grace = 500 * time.Millisecond
	budget := time.Duration(shortOrFull(2, 5)) * time.Second
	most := time.Duration(shortOrFull(20, 2)) * time.Second
	b := newTestContainer(t, setup{config: fmt.Sprintf("restart: {initial: 50ms}\nstop: {grace: %v}\nshutdown: {budget: %v}\n", grace, budget)})
	var names []string
	for name, script := range forkers {
		names = append(names, strings.ReplaceAll(name, " ", "-"))
		b.profile(names[len(names)-1], script)
	}
	slices.Sort(names)
	var over, answers, ends []time.Duration
	for range shortOrFull(1, 5) {
		b.boot()
		b.startAndAwait(names...)
		// Wait until all processes of the service exist, except for a comet.
		within(t, patience, func() error {
			if n := len(b.liveProcesses()); n < 2*len(names) {
				return fmt.Errorf("only %d processes", n)
			}
			return nil
		})
		for _, name := range names {
			begin := time.Now()
			b.check(b.commandAndAwait("stop", name))
			took := time.Since(begin)
			if name != "obedient" {
				over = append(over, b.stopTime("gateway-"+name)-grace)
				answers = append(answers, took-grace)
			} else if *full && took > grace {
				t.Errorf("the obedient one took %v", took)
			}
			if left := b.processesOf("gateway-" + name); len(left) > 0 {
				t.Errorf("after the stop of %s these are alive: %+v", name, left)
			}
			sheet.add("stops", 1)
		}
		// Only the CMD may remain.
		within(t, patience, func() error {
			if left := b.liveProcesses(); len(left) != 1 {
				return fmt.Errorf("alive are %+v", left)
			}
			return nil
		})
		b.startAndAwait(names...)
		code, took := b.stop()
		if code != 0 {
			t.Errorf("the container ended with code %d", code)
		}
		late := max(took-budget, 0)
		if late > most {
			t.Errorf("the end of the container took %v beyond its budget", late)
		}
		ends = append(ends, late)
		sheet.add("stops", 1)
	}
	checkNoCost(t)
	slices.Sort(over)
	slices.Sort(answers)
	slices.Sort(ends)
	worst := over[len(over)-1]
	if worst > most {
		t.Errorf("a stop took %v beyond its grace", worst)
	}
	sheet.set("most stops", over[len(over)/2].Round(time.Millisecond).String())
	sheet.set("worst stop", worst.Round(time.Millisecond).String())
	sheet.set("most ends", ends[len(ends)/2].Round(time.Millisecond).String())
	t.Logf("beyond the grace: %v; with the command, which writes the intent to the disk first: %v; beyond the budget: %v", over, answers, ends)
}

// checkNoCost fails the test if an obedient service's stop waits for its grace or for a stubborn
// service.
func checkNoCost(t *testing.T) {
	t.Helper()
	b := newTestContainer(t, setup{config: "stop: {grace: 1h}\n"})
	b.profile("deaf", forkers["deaf"])
	b.profile("obedient", sleeper)
	b.boot()
	b.startAndAwait("deaf", "obedient")
	within(t, patience, func() error { // The process does not ignore SIGTERM from the start.
		if p := b.processesOf("gateway-deaf"); len(p) < 2 {
			return fmt.Errorf("the deaf one has the processes %+v", p)
		}
		return nil
	})
	slow := make(chan error, 1)
	go func() { slow <- b.commandAndAwait("stop", "deaf") }()
	within(t, patience, b.checkState("deaf", client.StateStopping))
	b.check(b.commandAndAwait("stop", "obedient"), b.checkState("deaf", client.StateStopping)())
	select {
	case err := <-slow:
		t.Errorf("the deaf one ended before the obedient one: %v", err)
	default:
	}
	b.signal("gateway-deaf", unix.SIGKILL)
	b.check(<-slow)
	sheet.add("stops", 2)
}

// stopTime returns how long a service's last stop took.
func (b *testContainer) stopTime(service string) time.Duration {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var asked, gone time.Time
	b.check(b.client.Events(ctx, client.EventOptions{}, func(e client.Event) error {
		switch {
		case e.Service != service || e.FromState == e.ToState:
		case e.FromState == client.StateUp:
			asked = e.At
		case e.ToState == client.StateDown:
			gone = e.At
		}
		return nil
	}))
	if !gone.After(asked) || asked.IsZero() {
		b.t.Fatalf("%s was asked to end at %v and was gone at %v", service, asked, gone)
	}
	return gone.Sub(asked)
}

// TestNoSignalGoesAstray checks that uninvolved processes get no signal while everything else is
// stopped and PIDs are reused.
func TestNoSignalGoesAstray(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	bystander := `for s in HUP INT QUIT USR1 USR2 TERM CONT ALRM; do trap "echo $s >>HITS/$1" $s; done
mkfifo FIFOS/$1
while :; do read x <>FIFOS/$1; done
`
	bystander = strings.NewReplacer("HITS", b.path("hits"), "FIFOS", b.path("fifos")).Replace(bystander)
	for _, dir := range []string{"hits", "fifos"} {
		b.check(os.Mkdir(b.path(dir), 0o755), os.Chown(b.path(dir), b.uid, b.uid))
	}
	b.cmdline = []string{"sh", "-c", "(setsid sh -c '" + strings.ReplaceAll(bystander, "'", `'\''`) + "' x orphan &); exec sleep 1000000"}
	b.profile("bystander", "set -- service\n"+bystander)
	victims := b.profiles(4, "trap '' TERM\nsleep 1000000 & (setsid sleep 1000000 &)\nwhile :; do sleep 1000000; done\n")
	b.boot()
	b.startAndAwait(append(victims, "bystander")...)
	guest := make(chan error, 1)
	go func() {
		_, err := b.enter("sh", "-c", bystander, "x", "guest")
		guest <- err
	}()
	within(t, patience, func() error {
		fifos, err := os.ReadDir(b.path("fifos"))
		if err == nil && len(fifos) != 3 { // FIFOs of the orphan, the service, and the docker exec process.
			err = fmt.Errorf("there are %v", fifos)
		}
		return err
	})
	stays, err := b.service("bystander")
	b.check(err)
	sheet.add("recycled", 0) // The sheet needs this figure even if it is 0.
	for range shortOrFull(3, 30) {
		for i, name := range victims {
			s, err := b.service(name)
			b.check(err)
			switch i {
			case 0:
				b.check(b.commandAndAwait("stop", name))
			case 1:
				b.check(b.sendCommand("restart", name))
			case 2:
				for _, p := range b.processesOf("gateway-" + name) {
					_ = unix.Kill(p.pid, unix.SIGKILL)
				}
			case 3:
				b.check(b.commandAndAwait("stop", name))
				// Another process must get the same PID, and run during the next stop.
				out, err := b.enter("sh", "-c", fmt.Sprintf("echo %d >/proc/sys/kernel/ns_last_pid; sh -c 'echo $$; exec sleep 3 >/dev/null 2>&1' & :", s.PID-1))
				if err == nil && strings.TrimSpace(string(out)) == fmt.Sprint(s.PID) {
					sheet.add("recycled", 1)
				}
			}
			sheet.add("signals", 1)
		}
		for _, name := range victims {
			b.check(b.sendCommand("start", name))
		}
		for _, name := range victims {
			within(t, patience, b.checkState(name, client.StateUp))
		}
	}
	for _, name := range victims {
		b.check(b.commandAndAwait("stop", name))
	}
	now, err := b.service("bystander")
	b.check(err)
	if now.RunNumber != stays.RunNumber || now.PID != stays.PID {
		t.Errorf("the bystander is in run %d, it was in %d", now.RunNumber, stays.RunNumber)
	}
	hits, err := filepath.Glob(b.path("hits/*"))
	b.check(err)
	for _, name := range hits {
		signals, err := os.ReadFile(name)
		t.Errorf("the %s was hit by %q, %v", filepath.Base(name), signals, err)
	}
	within(t, patience, b.checkReaped)
	select {
	case err := <-guest:
		t.Errorf("the guest has ended: %v", err)
	default:
	}
	b.kill()
	<-guest
}
