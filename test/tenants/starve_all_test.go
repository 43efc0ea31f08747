package tenants_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/isolation"
	"hinit/internal/procstat"
	"hinit/internal/testkit"
)

// patience limits the wait for a gateway's answer on a busy machine.
const patience = 2 * time.Minute

// write requests a gateway to take or use a resource, through a file, and returns the file's text.
func (c *container) write(t *testing.T, gateway, resource string) (word string) {
	t.Helper()
	c.requests++
	word = fmt.Sprintf("%d %s", c.requests%10, resource)
	path := filepath.Join(c.dir, answersDir, "take-"+gateway)
	if err := os.WriteFile(path, []byte(word), 0o644); err != nil { //nolint:gosec // the gateways read this file
		t.Fatal(err)
	}
	return word
}

// request sends a request like write, and returns the gateway's answer. The attacker may have ended.
func (c *container) request(t *testing.T, gateway, resource string) (answer string) {
	t.Helper()
	word := c.write(t, gateway, resource)
	looks := 0
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(c.dir, answersDir, gateway))
		if of, answer, _ := strings.Cut(string(text), "\n"); of == word {
			return answer
		}
		// Each status takes hinit a millisecond, so ask rarely.
		if looks++; gateway == "a" && looks%20 == 0 && c.ended(t) != "" {
			return "done"
		}
	}
	t.Fatalf("%s does not answer about %s:\n%s", gateway, resource, c.errs.String())
	return ""
}

// ended returns why hinit has stopped the attacker since the last request; "" if it has not.
func (c *container) ended(t *testing.T) string {
	t.Helper()
	s := c.service(t, name(0))
	if s.LastExit == nil || !s.LastExit.EndedAt.After(c.begun) {
		return ""
	}
	return s.LastExit.Cause
}

// awaitExhauster waits until a gateway takes or misses the resource. It restarts an attacker that hinit
// stopped late.
func (c *container) awaitExhauster(t *testing.T, i int, gateway string) {
	t.Helper()
	testkit.Until(t, "gateway "+name(i)+" is ready", func() bool {
		s := c.service(t, name(i))
		if s.State == client.StateDown {
			c.start(t, name(i))
		}
		pid, err := os.ReadFile(filepath.Join(c.dir, answersDir, gateway+".ready"))
		return err == nil && s.State == client.StateUp && string(pid) == strconv.Itoa(s.PID)
	})
}

// starve lets the attacker take a resource. It returns whether and how the victim lacks it. want
// only decides what starve waits for.
func (c *container) starve(t *testing.T, r resource, want string) (word, how string) {
	t.Helper()
	c.awaitExhauster(t, 0, "a")
	c.awaitExhauster(t, 1, "b")
	c.begun = time.Now()
	if r.limit == "cpu.weight" {
		defer c.setSessionNice("0")
	}
	defer c.recover(t)
	how = c.request(t, "a", r.name)
	if r.limit == "cpu.weight" {
		c.setSessionNice("19")
	}
	taken := how == "done"
	open := taken && r.attempt == nil && r.check == nil
	if taken && r.attempt != nil {
		how = c.request(t, "b", r.name)
		open = how != "done"
	}
	if taken && r.check != nil {
		if err := r.check(c); err != nil {
			open, how = true, err.Error()
		}
	}
	after := func() string {
		return fmt.Sprintf("%s, for %s, until hinit", how, time.Since(c.begun).Round(100*time.Millisecond))
	}
	for deadline := time.Now().Add(patience); open && want == "held" && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if note := c.service(t, name(0)).Problem; strings.HasPrefix(note, "processors: ") && c.attackerIsConfined() {
			return "held", fmt.Sprintf("%s has acted: %s; then %s", after(), note, c.request(t, "b", r.name))
		}
		how = c.request(t, "b", r.name) // The victim still lacks the resource.
	}
	// hinit may have stopped the attacker early.
	for deadline := time.Now().Add(patience); want == "stopped" && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if c.ended(t) == r.stopped {
			return "stopped", fmt.Sprintf("%s has ended it: %s", after(), c.service(t, name(0)).Reason)
		}
	}
	if open {
		return "OPEN", how
	}
	return "closed", how
}

// attackerIsConfined reports whether the attacker's processes can't use all processors.
func (c *container) attackerIsConfined() bool {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(c.dir, "home", "profiles", name(0)), &st) != nil {
		return false
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	return !slices.ContainsFunc(all, func(path string) bool {
		var set unix.CPUSet
		uid, _ := procstat.ReadStatus(filepath.Base(path)).Number("Uid", 10)
		pid, _ := strconv.Atoi(filepath.Base(path))
		return uid == uint64(st.Uid) && unix.SchedGetaffinity(pid, &set) == nil && set.Count() == runtime.NumCPU()
	})
}

// setSessionNice sets the nice value of all gateways' sessions (sched(7), autogroup), so that the
// gateways compete only with each other.
func (c *container) setSessionNice(nice string) {
	namespace, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.pid))
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if in, _ := os.Readlink(dir + "/ns/pid"); in == namespace && filepath.Base(dir) != strconv.Itoa(c.pid) {
			_ = os.WriteFile(dir+"/autogroup", []byte(nice), 0) // An error means that the process has ended, or that the kernel has no autogroups.
		}
	}
}

// recover releases the resource that the attacker has taken, and restarts a stopped attacker.
func (c *container) recover(t *testing.T) {
	t.Helper()
	if c.ended(t) == "" {
		c.request(t, "a", "")
	}
	if c.ended(t) != "" {
		for _, dir := range []string{filepath.Join(c.dir, "home", "profiles", name(0)), fmt.Sprintf("/proc/%d/root/tmp/hinit-%s-*", c.pid, name(0))} {
			for _, file := range []string{"fill", "many"} {
				found, _ := filepath.Glob(filepath.Join(dir, file))
				for _, path := range found {
					_ = os.RemoveAll(path)
				}
			}
		}
		c.start(t, name(0))
	}
}

// TestNoTenantStarvesAnother lets one profile take all of each resource, in each mode.
// It prints the effects on another profile.
func TestNoTenantStarvesAnother(t *testing.T) {
	testkit.Parallel(t)
	testkit.NeedRoot(t)
	if isolation.LandlockABI() == 0 {
		testkit.SkipOrFail(t, "the kernel has no Landlock")
	}
	words := make([]map[string]string, len(everyMode))
	t.Run("modes", func(t *testing.T) {
		for i, mode := range everyMode {
			t.Run(mode, func(t *testing.T) {
				testkit.Parallel(t) // hinit mostly waits for its next measurement, so this test runs beside others.
				words[i] = starveAll(t, mode, setup{
					agent: agentID + 1 + i, // The kernel counts per user, and other tests' gateways run as agentID.
					roles: [2]string{"taker", "misser"}, flags: syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
					yaml:  fmt.Sprintf("limits: {nofile: %d}, memory: {max: %d}, cpu: {weight: 100}, quota: {warn: %d, stop: %d},", maxFiles, maxMemory, quota/2, quota),
					share: answersDir,
					mount: fmt.Sprintf("mount -t devpts -o newinstance,ptmxmode=0666 none /dev/pts && mount --bind /dev/pts/ptmx /dev/ptmx && mount -t tmpfs -o size=%d,mode=1777 none /tmp && mount -t tmpfs -o size=%d,mode=1777 none /dev/shm && echo %d %d >/proc/sys/net/ipv4/ip_local_port_range &&",
						tmpSize, tmpSize, firstPort, firstPort+ports-1),
				})
			})
		}
	})
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TAKEN\tNONE\tFILES\tUSER\tHELD BY")
	for _, r := range resources {
		fmt.Fprintln(tw, strings.Join([]string{r.name, words[0][r.name], words[1][r.name], words[2][r.name], r.exhaustedMessage}, "\t"))
	}
	_ = tw.Flush()
	t.Logf("limits of each profile: %d processes, %d files, %d MB of memory, quota.stop %d MB of %d\n%s", maxProcesses, maxFiles, maxMemory>>20, quota>>20, volumeSize>>20, table.String())
}

// machineLock is held by the mode whose attacker takes a machine-wide resource.
var machineLock sync.Mutex

// starveAll lets the attacker take each resource in turn, and returns the result for each.
func starveAll(t *testing.T, mode string, s setup) map[string]string {
	t.Helper()
	c := startContainer(t, mode, s)
	c.mode = mode
	c.start(t, name(1), name(3), name(0))
	enforced := map[string]bool{}
	for _, limit := range c.service(t, name(0)).Limits {
		enforced[limit.Key] = limit.EnforcedBy == client.LimitedByGroup
	}
	words := map[string]string{}
	for _, r := range resources {
		if r.name == terminalsRow && !*wholeMachine {
			words[r.name] = "not tried"
			continue
		}
		want := "closed"
		if slices.Contains(r.open, mode) && !enforced[r.limit] {
			want = "OPEN"
			if r.stopped != "" && !slices.Contains(r.never, mode) {
				want = "stopped"
			}
			if slices.Contains(r.protectedModes, mode) {
				want = "held"
			}
		}
		word, how := func() (word, how string) {
			if r.limit == "cpu.weight" || r.name == terminalsRow {
				machineLock.Lock()
				defer machineLock.Unlock()
			}
			return c.starve(t, r, want)
		}()
		words[r.name] = word
		t.Logf("%s: %s: %s", r.name, word, how)
		if word != want && (want != "held" || word != "closed") { // hinit may have acted before the victim was delayed.
			t.Errorf("%s is %s, not %s: %s", r.name, word, want, how)
		}
	}
	return words
}
