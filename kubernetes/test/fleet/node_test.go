package fleet

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/kubernetes/api/v1alpha1"
)

// TestAVanishedNodeIsToldWithinTenSeconds removes the address of a node. The profiles must be
// reported as unreachable soon, and as running when the address is back.
func TestAVanishedNodeIsToldWithinTenSeconds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an address of a network namespace needs root")
	}
	const n, address = 12, "10.77.0.9"
	f := newSim(t, "vanish", 3)
	f.controller(t, f.log)
	f.create(n)
	eventually(t, 2*time.Minute, "all profiles ready", func() string { return f.missing(n) })
	ip := func(verb string) {
		if out, err := exec.Command("ip", "address", verb, address+"/32", "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	ip("add")
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(kubeletPort)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan struct{}, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}()
	host := f.profile("p00000").Status.Host
	f.kubelet.mu.Lock()
	f.kubelet.addresses[f.pod(host).Spec.NodeName] = address
	f.kubelet.mu.Unlock()
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Fatal("the node is not asked")
	}
	time.Sleep(time.Second) // By now, the controller has recorded the answer.
	ip("del")
	began := time.Now()
	told := func(want bool) func() string {
		return func() string {
			for _, p := range f.profiles() {
				if p.Status.Host == host && (p.Status.Phase == v1alpha1.PhaseLost) != want {
					return fmt.Sprintf("%s is %s: %s", p.Name, p.Status.Phase, p.Status.Message)
				}
			}
			return ""
		}
	}
	eventually(t, 30*time.Second, "the node told to be lost", told(true))
	took := time.Since(began)
	t.Logf("a vanished node is told of all its profiles after %.1f s: %s", took.Seconds(), f.profile("p00000").Status.Message)
	if took > 10*time.Second {
		t.Errorf("it is told after %s", took)
	}
	profiles := func() string {
		_, versions, _ := strings.Cut(f.version(), " ")
		return versions
	}
	before := profiles()
	time.Sleep(3 * time.Second)
	if now := profiles(); now != before {
		t.Errorf("the host and the controller write against each other: %s, then %s", before, now)
	}
	ip("add")
	eventually(t, 30*time.Second, "all profiles ready again", func() string {
		if problem := told(false)(); problem != "" {
			return problem
		}
		return f.missing(n)
	})
	ip("del")
	f.checkLedger()
}
