package promises_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// chaos is a container with a model of its expected state.
type chaos struct {
	*testContainer

	random    *rand.Rand
	wanted    map[string]string // Intent by profile; "" for none yet.
	faulty    bool              // Whether commands may fail. Accepted requests must hold all the same.
	slots     *slots            // Slots of s6; nil if hinit does not answer as s6.
	uncertain bool              // Whether an answer said that a container restart may undo the command.
	conns     func()
	created   int
}

// TestChaos performs random actions on a container and compares it with a model. The test prints
// its seed; -seed repeats it.
func TestChaos(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	t.Logf("repeat it with -args -seed %d", *seed)
	c := &chaos{
		testContainer: newTestContainer(t, setup{faults: true, config: quick}), random: rand.New(rand.NewPCG(*seed, 0)), wanted: map[string]string{}, conns: func() {},
	}
	c.actFor()
}

// TestChaosInSlots is TestChaos with s6 emulation: s6 tools also control gateways and services.
func TestChaosInSlots(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	t.Logf("repeat it with -args -seed %d", *seed)
	c := &chaos{
		testContainer: newTestContainer(t, setup{faults: true, config: quick, stageConfig: stageConfig{Run: true}}), random: rand.New(rand.NewPCG(*seed, 6)), wanted: map[string]string{}, conns: func() {},
	}
	c.slots = newSlots(c)
	c.actFor()
}

// actFor performs random actions for a time.
func (c *chaos) actFor() {
	t := c.t
	for range 6 {
		c.create()
	}
	c.boot()
	end := time.Now().Add(time.Duration(shortOrFull(5, 60)) * time.Second)
	if *span > 0 {
		end = time.Now().Add(*span)
	}
	rounds := 0
	for ; time.Now().Before(end); rounds++ {
		for range 3 + c.random.IntN(15) {
			c.act()
		}
		c.awaitSettled()
	}
	names := c.names()
	for _, name := range names {
		c.check(c.sendCommand("stop", name))
		c.wanted[name] = "stopped"
	}
	c.awaitSettled()
	for _, name := range names {
		if err := poll(patience, func() error { // The last log lines may not have arrived yet.
			lines, err := c.logLines(name)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // The profile has never written a line.
			}
			if err == nil {
				err = checkCounts(lines)
			}
			return err
		}); err != nil {
			t.Errorf("the log of %s: %v; seed %d", name, err, *seed)
		}
	}
	sheet.add("chaos rounds", rounds)
	t.Logf("%d rounds", rounds)
}

func (c *chaos) names() []string {
	var names []string
	for name := range c.wanted {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *chaos) create() {
	name := fmt.Sprintf("c%d", c.created)
	c.created++
	script := counter
	if c.random.IntN(3) == 0 {
		script = "exec 2>/dev/null\ntrap '' TERM\nn=0\n(setsid sleep 1000000 &)\nwhile :; do n=$((n + 1)); echo \"line $n\"; sleep 0.01; done\n"
	}
	c.profile(name, script)
	c.wanted[name] = ""
}

// act performs one random action.
func (c *chaos) act() {
	c.t.Helper()
	names := c.names()
	name := names[c.random.IntN(len(names))]
	if c.slots != nil && c.random.IntN(3) == 0 {
		if !c.faulty && !c.uncertain { // With faults, the slots may differ from the requests.
			c.slots.act(name)
		}
		return
	}
	switch n := c.random.IntN(100); {
	case n < 40:
		verb := []string{"start", "stop", "restart"}[c.random.IntN(3)]
		if err := c.sendCommand(verb, name); err != nil {
			if !c.faulty {
				c.t.Fatalf("%v; seed %d", err, *seed)
			}
			c.uncertain = true
		}
		c.wanted[name] = map[bool]string{true: "stopped", false: "running"}[verb == "stop"]
		sheet.add("chaos commands", 1)
	case n < 60:
		for _, p := range c.processesOf("gateway-" + name) {
			if c.random.IntN(2) == 0 {
				_ = unix.Kill(p.pid, []unix.Signal{unix.SIGKILL, unix.SIGSEGV, unix.SIGSTOP, unix.SIGTERM}[c.random.IntN(4)])
				sheet.add("kills", 1)
			}
		}
	case n < 66:
		if len(names) < 12 {
			c.create()
		}
	case n < 70:
		if len(names) > 3 {
			c.check(poll(patience, func() error { return os.RemoveAll(c.profileDir(name)) })) // hinit may be writing in the directory.
			delete(c.wanted, name)
		}
	case n < 78:
		c.faulty = true
		c.setFaultRules(
			[]string{"write * ENOSPC", "write /current EIO", "sync * EIO", "open * EROFS", "rename * ESTALE", "sync * delay=300ms"}[c.random.IntN(6)],
			[]string{"fork * EAGAIN times=3", "pipe * EMFILE times=2", "fork * ENOMEM times=5", "watch * ENOSPC"}[c.random.IntN(4)],
		)
		sheet.add("faults", 1)
	case n < 84:
		c.setFaultRules()
		c.faulty = false
	case n < 88:
		c.conns()
		conns := c.connect(c.random.IntN(100))
		if conn := c.sendRaw(strings.Repeat("\x00garbage", c.random.IntN(1000))); conn != nil {
			conns = append(conns, conn)
		}
		c.conns = func() { closeAll(conns) }
	case n < 90 && !c.faulty:
		c.check(c.cmd.Process.Signal(unix.SIGSTOP))
		<-time.After(time.Duration(c.random.IntN(200)) * time.Millisecond)
		c.check(c.cmd.Process.Signal(unix.SIGCONT))
	case n < 93 && !c.faulty && !c.uncertain:
		c.kill()
		c.reboot()
		sheet.add("kills", 1)
	case n < 95 && !c.faulty && !c.uncertain:
		if code, _ := c.stop(); code != 0 {
			c.t.Fatalf("the container ended with code %d; seed %d", code, *seed)
		}
		c.reboot()
	default:
		<-time.After(time.Duration(c.random.IntN(100)) * time.Millisecond)
	}
}

// reboot reboots the container, which creates a new scan directory.
func (c *chaos) reboot() {
	c.t.Helper()
	c.boot()
	if c.slots != nil {
		clear(c.slots.wanted)
	}
}

// awaitSettled ends the faults, and compares the container with the model.
func (c *chaos) awaitSettled() {
	c.t.Helper()
	c.setFaultRules()
	c.faulty = false
	c.conns()
	c.conns = func() {}
	if err := poll(patience, func() error {
		if c.slots != nil {
			c.slots.skipDelays() // Repeat it in each try, because a failure may become visible late.
		}
		return c.compare()
	}); err != nil {
		c.t.Fatalf("%v; seed %d", err, *seed)
	}
	c.uncertain = false
}

// compare returns the first difference between the model and the container.
func (c *chaos) compare() error {
	if err := c.booted(); err != nil {
		return err
	}
	services := map[string]client.Service{}
	foreign := map[string]client.Service{}
	for _, s := range c.status().Services {
		if s.Profile == "" {
			foreign[s.Name] = s
		}
		services[s.Profile] = s
	}
	if c.slots != nil {
		if err := c.slots.compare(foreign); err != nil {
			return err
		}
	}
	for name, want := range c.wanted {
		s, known := services[name]
		delete(services, name)
		state, wanted := client.StateDown, client.WantDown
		if want == "running" {
			state, wanted = client.StateUp, client.WantUp
		}
		processes := c.processesOf("gateway-" + name)
		// A stopped gateway counts as up, because its parent does not know that a signal stopped it.
		switch {
		case !known:
			return fmt.Errorf("%s is not known", name)
		case s.Want != wanted || s.State != state:
			return fmt.Errorf("%s is %s, wanted %s (%s), and should be %s", name, s.State, s.Want, s.Reason, state)
		case c.desired(name) != want:
			return fmt.Errorf("the disk says that %q is wanted of %s, and should say %q", c.desired(name), name, want)
		case (len(processes) > 0) != (want == "running"):
			return fmt.Errorf("%s is %s and has the processes %+v", name, s.State, processes)
		}
	}
	delete(services, "default")
	delete(services, "")
	for name, s := range services {
		return fmt.Errorf("%s is %s, and should be gone", name, s.State)
	}
	return c.checkReaped()
}

// checkCounts returns an error unless each life in the log counts from 1 without gaps.
func checkCounts(lines []string) error {
	last := 0
	for i, line := range lines {
		var n int
		if _, err := fmt.Sscanf(line, "line %d", &n); err != nil || line != fmt.Sprintf("line %d", n) {
			return fmt.Errorf("line %d is %q", i+1, line)
		}
		if n != last+1 && n != 1 {
			return fmt.Errorf("line %d: after %d comes %d", i+1, last, n)
		}
		last = n
	}
	sheet.add("lines", len(lines))
	return nil
}
