package fleet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

var chaosDuration = flag.Duration("span", time.Minute, "how long the chaos lasts")

const (
	chaosHosts    = 4
	chaosProfiles = 40
)

// chaos injects faults into a fleet, one after the other.
type chaos struct {
	*sim
	rnd         *rand.Rand
	controllers []*controllerProcess
	faultCounts map[string]int
	cleanups    []func() // Functions that end the lasting faults.
}

// TestChaosNeverRunsAProfileTwiceAndLosesNone checks that no profile runs twice or is lost in spite
// of many faults. Two controllers lead at the same time. The test kills, suspends and isolates
// controllers, hosts, the API server and etcd. It also fills volumes, steps clocks and changes the pool.
func TestChaosNeverRunsAProfileTwiceAndLosesNone(t *testing.T) {
	f := newSim(t, "chaos", chaosHosts)
	seed := uint64(time.Now().UnixNano())
	c := &chaos{sim: f, rnd: rand.New(rand.NewPCG(seed, 2)), faultCounts: map[string]int{}}
	t.Log("seed", seed)
	for i := range 2 {
		c.controllers = append(c.controllers, c.newController(t, i))
	}
	f.create(chaosProfiles)
	eventually(t, 3*time.Minute, "all profiles ready", func() string { return f.missing(chaosProfiles) })
	for end := time.Now().Add(*chaosDuration); time.Now().Before(end); {
		c.injectFault(t)
		time.Sleep(time.Duration(c.rnd.IntN(1500)) * time.Millisecond)
		f.checkLedger()
	}
	for _, end := range c.cleanups {
		end()
	}
	c.retry("drain nothing", func() error {
		p := &v1alpha1.AgentPool{}
		if err := f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: f.pool}, p); err != nil {
			return err
		}
		p.Spec.Drain, p.Spec.Hosts = nil, v1alpha1.HostRange{Min: chaosHosts, Max: chaosHosts}
		return f.api.Update(f.ctx, p)
	})
	for i := range chaosProfiles {
		c.retry("want it up", func() error {
			return f.editProfile(fmt.Sprintf("p%05d", i), func(p *v1alpha1.AgentProfile) { p.Spec.Running, p.Spec.Pin = nil, "" })
		})
	}
	began := time.Now()
	eventually(t, 5*time.Minute, "everything settled", func() string { return f.missing(chaosProfiles) })
	f.checkLedger()
	moves := int64(0)
	for _, p := range f.profiles() {
		moves += p.Status.Assignment - 1
	}
	t.Logf("%v; %d starts, %d moves, never two, none lost; settled %.1f s after the end", c.faultCounts, f.kubelet.ledger.starts, moves, time.Since(began).Seconds())
	if moves == 0 {
		t.Error("nothing has moved")
	}
}

// retry calls do until the API server accepts the request.
func (c *chaos) retry(what string, do func() error) {
	c.Helper()
	eventually(c.T, 2*time.Minute, what, func() string {
		if err := do(); err != nil {
			return err.Error()
		}
		return ""
	})
}

// injectFault injects one random fault. Lasting faults end later.
func (c *chaos) injectFault(t *testing.T) {
	t.Helper()
	host := fmt.Sprintf("%s-%d", c.pool, c.rnd.IntN(chaosHosts))
	name := fmt.Sprintf("p%05d", c.rnd.IntN(chaosProfiles))
	if c.rnd.IntN(4) == 0 {
		host = pool.SinglePodName(c.pool, name) // Ignore the error: most profiles have no such field.
	}
	later := func(do func()) {
		time.AfterFunc(time.Duration(500+c.rnd.IntN(4000))*time.Millisecond, do)
		c.cleanups = append(c.cleanups, do)
	}
	if one := c.kubelet.hostOf(host); one != nil && c.rnd.IntN(4) == 0 {
		c.injectProcessFault(one, later)
		return
	}
	switch k := c.rnd.IntN(100); {
	case k < 4:
		c.faultCounts["images"]++
		p := &v1alpha1.AgentPool{}
		if c.api.Get(c.ctx, client.ObjectKey{Namespace: "default", Name: c.pool}, p) == nil {
			p.Spec.Image = fmt.Sprintf("agent:%d", c.faultCounts["images"])
			_ = c.api.Update(c.ctx, p)
		}
	case k < 8 && os.Geteuid() == 0:
		c.faultCounts["full volumes"]++
		c.kubelet.fillVolume(host)
		later(func() { c.kubelet.freeVolume(host) })
	case k < 16:
		c.faultCounts["placements"]++
		_ = c.editProfile(name, func(p *v1alpha1.AgentProfile) {
			p.Spec.Pin = ""
			if p.Spec.Placement = v1alpha1.PlacementPod; c.rnd.IntN(2) == 0 {
				p.Spec.Placement = "packed"
			}
		})
	case k < 20:
		c.faultCounts["numbers of hosts"]++
		p := &v1alpha1.AgentPool{}
		if c.api.Get(c.ctx, client.ObjectKey{Namespace: "default", Name: c.pool}, p) == nil {
			n := int32(2 + c.rnd.IntN(chaosHosts-1))
			p.Spec.Hosts = v1alpha1.HostRange{Min: n, Max: n}
			_ = c.api.Update(c.ctx, p)
		}
	case k < 40:
		c.faultCounts["pins"]++
		_ = c.editProfile(name, func(p *v1alpha1.AgentProfile) { p.Spec.Pin = host }) // Ignore the error: the API server may be stopped.
	case k < 50:
		c.faultCounts["orders"]++
		_ = c.editProfile(name, func(p *v1alpha1.AgentProfile) { up := !p.WantsGateway(); p.Spec.Running = &up })
	case k < 60:
		c.faultCounts["drains"]++
		p := &v1alpha1.AgentPool{}
		if c.api.Get(c.ctx, client.ObjectKey{Namespace: "default", Name: c.pool}, p) == nil {
			p.Spec.Drain = nil
			if c.rnd.IntN(2) == 0 {
				p.Spec.Drain = []string{host}
			}
			_ = c.api.Update(c.ctx, p)
		}
	case k < 70:
		c.faultCounts["killed containers"]++
		if uid := c.pod(host).UID; uid != "" {
			c.kubelet.setKilled(uid, true)
			later(func() { c.kubelet.setKilled(uid, false) })
		}
	case k < 75:
		c.faultCounts["deleted pods"]++
		_ = c.api.Delete(c.ctx, c.pod(host))
	case k < 83:
		c.faultCounts["partitions"]++
		c.kubelet.partition(host, true)
		later(func() { c.kubelet.partition(host, false) })
	case k < 90:
		c.faultCounts["killed controllers"]++
		i := c.rnd.IntN(2)
		c.controllers[i].kill()
		c.controllers[i] = c.newController(t, i)
	case k < 93:
		c.faultCounts["suspended controllers"]++
		one := c.controllers[c.rnd.IntN(2)].cmd.Process
		_ = one.Signal(syscall.SIGSTOP)
		later(func() { _ = one.Signal(syscall.SIGCONT) }) // The process may have been killed.
	case k < 96:
		c.faultCounts["killed API servers"]++
		c.KillServer()
		time.Sleep(time.Duration(c.rnd.IntN(3000)) * time.Millisecond)
		if err := c.StartAPIServer(c.ctx); err != nil {
			t.Fatal(err)
		}
	default:
		c.faultCounts["pauses of etcd"]++
		if err := c.PauseStore(time.Duration(500+c.rnd.IntN(3000)) * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// injectProcessFault kills or suspends a host's program, or steps its clock. The gateways of the pod
// keep running.
func (c *chaos) injectProcessFault(one *hostProcess, later func(func())) {
	clock := one.clock
	switch k := c.rnd.IntN(3); {
	case k == 0:
		c.faultCounts["killed hosts"]++
		one.signal(syscall.SIGKILL)
	case k == 1 || !*stepClock:
		c.faultCounts["suspended hosts"]++
		one.signal(syscall.SIGSTOP)
		later(func() { one.signal(syscall.SIGCONT) })
	default:
		c.faultCounts["clock steps"]++
		if c.rnd.IntN(3) == 0 {
			clock = c.kubelet.controllerClock(c.rnd.IntN(2))
		}
		setClock(clock, time.Duration(c.rnd.IntN(7201)-3600)*time.Second)
	}
}

// newController starts one of two controllers. Both lead, because their Leases are in different
// namespaces.
func (c *chaos) newController(t *testing.T, i int) *controllerProcess {
	t.Helper()
	namespace := []string{"default", "kube-public"}[i]
	if c.kubelet.processes != nil {
		return c.kubelet.processes.startController(t, c.kubelet.controllerClock(i), namespace)
	}
	return c.controllerIn(t, c.log, namespace)
}

// controllerIn starts a controller with its Lease in a namespace. Controllers with different namespaces lead at the same time.
func (s *server) controllerIn(t *testing.T, out *os.File, namespace string) *controllerProcess {
	t.Helper()
	return s.start(t, out, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, leaseVar+"="+namespace) })
}
