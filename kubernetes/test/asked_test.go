package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/cluster"
)

// healthPoll polls the health of gateways, each at its own port, from inside their pods.
type healthPoll struct {
	cluster *cluster.Cluster
	ports   map[string]int // Port of each profile's gateway.
	stop    chan struct{}
	done    sync.WaitGroup

	polls              int
	unanswered         map[string]time.Duration // How long a gateway has not answered, by profile.
	longestUnexplained map[string]time.Duration // Longest time without an answer and without an explaining status, by profile.
	unexplainedSince   map[string]time.Time     // Start of the current time without answer and explanation, by profile.
	reasons            map[string]int           // Number of missed answers by the status that explained them.
}

const pollInterval = 500 * time.Millisecond

func pollGateways(c *cluster.Cluster, ports map[string]int) *healthPoll {
	a := &healthPoll{
		cluster: c, ports: ports, stop: make(chan struct{}), unanswered: map[string]time.Duration{}, longestUnexplained: map[string]time.Duration{},
		unexplainedSince: map[string]time.Time{}, reasons: map[string]int{},
	}
	a.done.Go(func() {
		for last := time.Now(); ; {
			answers := a.poll()
			now := time.Now()
			a.count(answers, now, now.Sub(last))
			last = now
			select {
			case <-a.stop:
				return
			case <-time.After(pollInterval):
			}
		}
	})
	return a
}

// end stops the polls. It returns the longest time for which a profile neither answered nor had an
// explaining status, and that profile.
func (a *healthPoll) end() (longest time.Duration, profile string) {
	close(a.stop)
	a.done.Wait()
	for name, d := range a.longestUnexplained {
		if d > longest {
			longest, profile = d, name
		}
	}
	return longest, profile
}

func (a *healthPoll) poll() map[string]bool {
	pids, answers := gatewayPIDs(), map[string]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, port := range a.ports {
		all.Go(func() {
			if len(pids[name]) > 0 && checkHealth(pids[name][0], port) == nil {
				mu.Lock()
				defer mu.Unlock()
				answers[name] = true
			}
		})
	}
	all.Wait()
	return answers
}

// count adds the answers of one round.
func (a *healthPoll) count(answers map[string]bool, now time.Time, passed time.Duration) {
	a.polls += len(a.ports)
	why := map[string]string{}
	if len(answers) < len(a.ports) {
		why = a.statuses()
	}
	for name := range a.ports {
		if answers[name] {
			delete(a.unexplainedSince, name)
			continue
		}
		a.unanswered[name] += passed
		if reason := why[name]; reason != "" {
			a.reasons[reason]++
			delete(a.unexplainedSince, name)
			continue
		}
		if a.unexplainedSince[name].IsZero() {
			a.unexplainedSince[name] = now.Add(-passed)
		}
		a.longestUnexplained[name] = max(a.longestUnexplained[name], now.Sub(a.unexplainedSince[name]))
	}
}

// statuses returns the phases of the profiles whose status explains why they don't serve.
func (a *healthPoll) statuses() map[string]string {
	list, out := &v1alpha1.AgentProfileList{}, map[string]string{}
	path := "/apis/" + v1alpha1.GroupVersion.String() + "/namespaces/" + fleetNamespace + "/agentprofiles"
	_ = a.cluster.Get(context.Background(), path, list) // After an error, the list of phases is empty.
	for _, p := range list.Items {
		if !p.Status.Ready {
			out[p.Name] = string(p.Status.Phase)
		}
	}
	return out
}

func checkHealth(pid, port int) error {
	conn, err := dialInNamespace(pid, fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}}
	answer, err := client.Get("http://gateway/health")
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !strings.Contains(string(text), `"status":"ok"`)) {
		err = fmt.Errorf("it answers %s: %s", answer.Status, text)
	}
	return err
}

// dialInNamespace connects to an address in the network namespace of a process.
func dialInNamespace(pid int, address string) (conn net.Conn, err error) {
	there, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer there.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // The goroutine ends with this thread, so the namespace needs no reset.
		if err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err == nil {
			conn, err = (&net.Dialer{Timeout: 2 * time.Second}).Dial("tcp", address)
		}
	}()
	<-done
	return conn, err
}

// seconds formats durations by profile.
func seconds(of map[string]time.Duration) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%s %.1f", name, of[name].Seconds()))
	}
	return strings.Join(out, " ")
}
