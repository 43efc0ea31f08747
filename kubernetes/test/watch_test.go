package test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// initCommand begins the command line of process 1 in the agents' container.
const initCommand = "/init\x00/opt/hermes/docker/main-wrapper.sh\x00"

// gatewayPIDs returns the pids of all gateways by profile. /proc shows them, because the pods' PID
// namespaces are below the test's own.
func gatewayPIDs() map[string][]int {
	out := map[string][]int{}
	for pid, command := range processes() {
		words := strings.Split(strings.TrimSuffix(command, "\x00"), "\x00")
		i := slices.Index(words, "gateway")
		if strings.HasPrefix(command, initCommand) || i < 1 || i+1 >= len(words) || words[i+1] != "run" || !strings.HasSuffix(words[0], "/hermes") {
			continue
		}
		profile := "default"
		if at := slices.Index(words, "-p"); at >= 0 && at+1 < len(words) {
			profile = words[at+1]
		}
		out[profile] = append(out[profile], pid)
	}
	return out
}

// initPIDs returns the pids of the inits of all pods.
func initPIDs() (out []int) {
	for pid, command := range processes() {
		if strings.HasPrefix(command, initCommand) {
			out = append(out, pid)
		}
	}
	return out
}

// processes returns the command lines of all living processes.
func processes() map[int]string {
	out := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*") // Ignore the error: the pattern is valid.
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name)) // Ignore the error: the name consists of digits.
		if command, err := os.ReadFile(name + "/cmdline"); err == nil && len(command) > 0 {
			out[pid] = string(command)
		}
	}
	return out
}

// gatewayWatch samples which gateways run, every few milliseconds.
type gatewayWatch struct {
	stop       chan struct{}
	done       sync.WaitGroup
	longest    map[string]time.Duration // Longest time without a gateway, by profile.
	maxRunning map[string]int           // Largest number of simultaneous gateways, by profile.
	down       map[string]time.Duration // Total time without a gateway, by profile.
	duplicates int                      // Number of samples with two gateways of one profile.
}

// watchGateways starts to look for the gateways of profiles.
func watchGateways(profiles ...string) *gatewayWatch {
	w := &gatewayWatch{stop: make(chan struct{}), longest: map[string]time.Duration{}, maxRunning: map[string]int{}, down: map[string]time.Duration{}}
	w.done.Go(func() {
		last := map[string]time.Time{} // Time at which each profile's gateway was last seen.
		now := time.Now()
		for _, p := range profiles {
			last[p] = now
		}
		for {
			looked := now
			seen := gatewayPIDs()
			now = time.Now()
			for _, p := range profiles {
				w.maxRunning[p] = max(w.maxRunning[p], len(seen[p]))
				if len(seen[p]) > 1 {
					w.duplicates++
				}
				if len(seen[p]) == 0 {
					w.down[p] += now.Sub(looked)
				} else {
					w.longest[p], last[p] = max(w.longest[p], now.Sub(last[p])), now
				}
			}
			select {
			case <-w.stop:
				for _, p := range profiles {
					w.longest[p] = max(w.longest[p], time.Since(last[p]))
				}
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	return w
}

// String formats each profile's longest time without a gateway. Call it after end.
func (w *gatewayWatch) String() string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(w.longest)) {
		out = append(out, p+" "+w.longest[p].Round(10*time.Millisecond).String())
	}
	return strings.Join(out, ", ")
}

// end returns the longest time without a gateway, and the largest number of simultaneous gateways
// of one profile.
func (w *gatewayWatch) end() (gap time.Duration, most int) {
	close(w.stop)
	w.done.Wait()
	for _, d := range w.longest {
		gap = max(gap, d)
	}
	for _, n := range w.maxRunning {
		most = max(most, n)
	}
	return gap.Round(10 * time.Millisecond), most
}

// parentOf returns the parent of a process (proc_pid_stat(5)).
func parentOf(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // The process may have ended.
	_, rest, _ := strings.Cut(string(text), ") ")
	if words := strings.Fields(rest); len(words) > 1 {
		parent, _ := strconv.Atoi(words[1])
		return parent
	}
	return 0
}
