package fleet

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/internal/controller"
)

var (
	simHosts    = flag.Int("hosts", 6, "how many hosts are simulated")
	simProfiles = flag.Int("profiles", 120, "how many profiles they have")
)

// controllerVar is the environment variable that makes this process a controller. It holds the path
// of the kubeconfig.
const controllerVar = "HINIT_TEST_FLEET_CONTROLLER"

// leaseVar is the environment variable with the namespace of that controller's Lease.
const leaseVar = "HINIT_TEST_FLEET_LEASE"

// runControllerIfSet runs a controller in this process if controllerVar is set.
func runControllerIfSet() {
	file := os.Getenv(controllerVar)
	if file == "" {
		return
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err == nil {
		config.QPS, config.Burst = 400, 800
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		err = controller.Run(context.Background(), controller.Settings{API: config, Namespace: cmp.Or(os.Getenv(leaseVar), "default"), Log: log})
	}
	fmt.Fprintln(os.Stderr, "controller:", err)
	os.Exit(1)
}

type controllerProcess struct {
	cmd *exec.Cmd
}

func (s *server) controller(t *testing.T, out io.Writer) *controllerProcess {
	t.Helper()
	return s.start(t, out, func(*exec.Cmd) {})
}

// start starts a controller whose output goes to a file.
func (s *server) start(t *testing.T, out io.Writer, change func(*exec.Cmd)) *controllerProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &controllerProcess{cmd: exec.Command(self)}
	c.cmd.Env = append(os.Environ(), controllerVar+"="+s.Config, "GOGC=100") // Go's default, because the test measures the memory.
	c.cmd.Stdout, c.cmd.Stderr = out, out
	change(c.cmd)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func (c *controllerProcess) kill() {
	_ = c.cmd.Process.Kill() // The process may have ended.
	_ = c.cmd.Wait()
}

// peakMemory returns the controller's peak memory, in MB.
func (c *controllerProcess) peakMemory() int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.Atoi(strings.Fields(rest)[0])
			return kb / 1024
		}
	}
	return 0
}

// sim is a simulated fleet.
type sim struct {
	*testing.T
	*server
	kubelet *kubelet
	ctx     context.Context
	pool    string
	log     *os.File
}

// newSim creates nodes and a pool, and starts the simulated kubelet.
func newSim(t *testing.T, name string, hosts int, change ...func(*v1alpha1.AgentPool)) *sim {
	t.Helper()
	if name != "mover" {
		cluster.SkipIfShort(t)
	}
	s := withServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("/run", "f") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(os.TempDir(), "hinit-fleet-"+name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	k, err := newKubelet(s, dir, log)
	if err != nil {
		t.Fatal(err)
	}
	if name == "chaos" {
		k.processes = withProcesses(t, s, log)
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the hosts run as another user, who must enter this directory
			t.Fatal(err)
		}
	}
	for _, file := range []string{"namespace.yaml", "roles.yaml", "policy.yaml", "controller.yaml"} {
		if out, err := s.Kubectl(ctx, "apply", "-f", "../../deploy/fleet/"+file).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := k.createNodes(ctx, 5, 80); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() { k.run(ctx) })
	f := &sim{T: t, server: s, kubelet: k, ctx: ctx, pool: name, log: log}
	t.Cleanup(func() {
		f.clean()
		cancel()
		all.Wait()
		k.unmount()
		_ = os.RemoveAll(dir)
		_ = log.Close()
		if t.Failed() {
			t.Log(lastLines(log.Name(), 40))
		}
	})
	p := &v1alpha1.AgentPool{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: v1alpha1.AgentPoolSpec{
		Image: "agent:1", Hosts: v1alpha1.HostRange{Min: int32(hosts), Max: int32(hosts)},
		Resources: v1alpha1.HostResources{Memory: resource.MustParse("16Gi")}, ProfileMemory: resource.MustParse("50Mi"),
		Volume: v1alpha1.HostVolume{Size: resource.MustParse("1Gi"), StorageClassName: "simulated"},
	}}
	for _, c := range change {
		c(p)
	}
	if err := s.api.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *sim) clean() {
	_ = f.api.DeleteAllOf(f.ctx, &v1alpha1.AgentProfile{}, client.InNamespace("default"))
	end := time.Now().Add(time.Minute)
	for time.Now().Before(end) && len(f.profiles()) > 0 {
		time.Sleep(500 * time.Millisecond)
	}
	_ = f.api.DeleteAllOf(f.ctx, &v1alpha1.AgentPool{}, client.InNamespace("default"))
	for time.Now().Before(end) {
		pods := &corev1.PodList{}
		if f.api.List(f.ctx, pods, client.HasLabels{v1alpha1.PoolLabel}) == nil && len(pods.Items) == 0 {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	_ = f.api.DeleteAllOf(f.ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace("default"))
	_ = f.api.DeleteAllOf(f.ctx, &corev1.PersistentVolume{})
}

func (f *sim) profiles() []v1alpha1.AgentProfile {
	list := &v1alpha1.AgentProfileList{}
	if err := f.api.List(f.ctx, list, client.InNamespace("default")); err != nil {
		return make([]v1alpha1.AgentProfile, 1) // The API server does not answer, so the state is unknown.
	}
	return list.Items
}

// create creates n profiles, several at a time.
func (f *sim) create(n int, change ...func(int, *v1alpha1.AgentProfile)) {
	f.Helper()
	todo := make(chan int)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range todo {
				p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%05d", i), Namespace: "default"}, Spec: v1alpha1.AgentProfileSpec{Pool: f.pool}}
				for _, c := range change {
					c(i, p)
				}
				if err := f.api.Create(f.ctx, p); err != nil {
					f.Error(err)
				}
			}
		})
	}
	for i := range n {
		todo <- i
	}
	close(todo)
	all.Wait()
}

// missing describes what is missing until n profiles run, each on the host that its object names.
func (f *sim) missing(n int) string {
	where := f.kubelet.ledger.runningOn()
	if n > 1000 && len(where) < n { // Listing all profiles each time would load the API server.
		return fmt.Sprintf("%d of %d run", len(where), n)
	}
	list := f.profiles()
	ready, count := 0, map[v1alpha1.Phase]int{}
	problem := ""
	for _, p := range list {
		count[p.Status.Phase]++
		if p.Status.Ready && p.Status.Move == nil && where[p.Name] == p.Status.Host {
			ready++
		} else {
			problem = fmt.Sprintf("%s runs on %q, and its status is %+v", p.Name, where[p.Name], p.Status)
		}
	}
	if ready == n && len(list) == n {
		return ""
	}
	return fmt.Sprintf("%d of %d are ready, phases %v; %s", ready, n, count, problem)
}

// seriousPrefix begins a message after which test/summary does not repeat a test.
const seriousPrefix = "serious: "

// checkLedger fails the test if a profile ran twice or without its data.
func (f *sim) checkLedger() {
	f.Helper()
	if wrong := f.kubelet.ledger.violations(); len(wrong) > 0 {
		f.Fatalf("%s%d faults, the first: %s", seriousPrefix, len(wrong), wrong[0])
	}
}

func (f *sim) pod(name string) *corev1.Pod {
	p := &corev1.Pod{}
	_ = f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: name}, p)
	return p
}

// edit changes the spec of the pool.
func (f *sim) edit(change func(*v1alpha1.AgentPool)) {
	f.Helper()
	p := &v1alpha1.AgentPool{}
	if err := f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: f.pool}, p); err != nil {
		f.Fatal(err)
	}
	old := p.DeepCopy()
	change(p)
	if err := f.api.Patch(f.ctx, p, client.MergeFrom(old)); err != nil { // The write may conflict with a write of the controller.
		f.Fatal(err)
	}
}

// TestAFleetRunsAndTellsAndRollsOut checks the whole life of a fleet. Use -hosts 50 -profiles 10000
// for the full size.
func TestAFleetRunsAndTellsAndRollsOut(t *testing.T) {
	n := *simProfiles
	f := newSim(t, "pool", *simHosts)
	c := f.controller(t, f.log)
	eventually(t, 3*time.Minute, "all hosts reachable", func() string {
		p := &v1alpha1.AgentPool{}
		if err := f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: "pool"}, p); err != nil || int(p.Status.Reachable) != *simHosts {
			return fmt.Sprintf("%+v %v", p.Status, err)
		}
		return ""
	})
	began, before, writes := time.Now(), processorTime(), f.kubelet.counted.writes.Load()
	f.create(n)
	made := time.Since(began)
	eventually(t, 10*time.Minute, "all profiles ready", func() string { return f.missing(n) })
	t.Logf("%d profiles on %d hosts: all objects made after %.1f s, all ready after %.1f s", n, *simHosts, made.Seconds(), time.Since(began).Seconds())
	each := float64(f.kubelet.counted.writes.Load()-writes) / float64(n)
	t.Logf("hosts have made %.1f writes a profile; processor time: %s", each, processorTime().since(before))
	if each > 2.5 { // Two writes: the data exists, and the gateway is ready.
		t.Errorf("hosts have made %.1f writes a profile", each)
	}
	f.checkLedger()

	f.measureIdle(t)
	t.Logf("the controller has had at most %d MB", c.peakMemory())
	if c.peakMemory() > 200 {
		t.Errorf("the controller has had %d MB", c.peakMemory())
	}
	f.testHostLoss(t, n)
	f.testRollout(t, n)
	t.Logf("the controller has had at most %d MB; %d starts in all", c.peakMemory(), f.kubelet.ledger.starts)
}

// measureIdle counts the writes of an idle fleet.
func (f *sim) measureIdle(t *testing.T) {
	t.Helper()
	time.Sleep(5 * time.Second)
	before, leader, began := f.kubelet.counted.writes.Load(), f.version(), time.Now()
	time.Sleep(45 * time.Second)
	hosts := f.kubelet.counted.writes.Load() - before
	// Object versions change by the controller's writes of the pool, of profiles, and of its Lease
	// every ten seconds.
	rate := (float64(hosts) + 4.5) / time.Since(began).Seconds()
	t.Logf("steady: %d writes of hosts in %.0f s, and the controller's Lease: %.2f writes a second", hosts, time.Since(began).Seconds(), rate)
	if rate > 1 {
		t.Errorf("%.2f writes a second", rate)
	}
	if now := f.version(); now != leader {
		t.Errorf("an object was written while nothing happened: %s, then %s", leader, now)
	}
}

// version returns a checksum of the versions of all profiles and of the pool.
func (f *sim) version() string {
	p := &v1alpha1.AgentPool{}
	_ = f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: f.pool}, p)
	var all []string
	for _, one := range f.profiles() {
		all = append(all, one.Name+one.ResourceVersion)
	}
	slices.Sort(all)
	h := 0
	for _, c := range strings.Join(all, " ") {
		h = h*31 + int(c)
	}
	return fmt.Sprint(p.ResourceVersion, " ", h)
}

// testHostLoss kills the container of a host and lets it run again.
func (f *sim) testHostLoss(t *testing.T, n int) {
	t.Helper()
	victim := f.pool + "-0"
	pod := f.pod(victim)
	began := time.Now()
	f.kubelet.setKilled(pod.UID, true)
	told := func() string {
		list := &v1alpha1.AgentProfileList{}
		if err := f.api.List(f.ctx, list, client.InNamespace("default"), client.MatchingFields{"status.host": victim}); err != nil {
			return err.Error()
		}
		for _, p := range list.Items {
			if p.Status.Phase != v1alpha1.PhaseLost {
				return p.Name + " is " + string(p.Status.Phase)
			}
		}
		return ""
	}
	eventually(t, time.Minute, "the loss told", told)
	took := time.Since(began)
	t.Logf("the loss of a host is told of all its profiles after %.1f s", took.Seconds())
	if took > 10*time.Second {
		t.Errorf("the loss is told after %s", took)
	}
	time.Sleep(3 * time.Second)
	for name, host := range f.kubelet.ledger.runningOn() {
		if host == victim {
			t.Errorf("%s runs on a dead host", name)
		}
	}
	f.kubelet.setKilled(pod.UID, false)
	eventually(t, 2*time.Minute, "all profiles ready again", func() string { return f.missing(n) })
	f.checkLedger()
}

// testRollout changes the pool's image and waits for all hosts.
func (f *sim) testRollout(t *testing.T, n int) {
	t.Helper()
	f.kubelet.ledger.mu.Lock()
	clear(f.kubelet.ledger.longest)
	f.kubelet.ledger.mu.Unlock()
	began := time.Now()
	f.edit(func(p *v1alpha1.AgentPool) { p.Spec.Image = "agent:2" })
	eventually(t, 10*time.Minute, "all hosts new", func() string {
		for i := range *simHosts {
			if p := f.pod(fmt.Sprintf("%s-%d", f.pool, i)); len(p.Spec.Containers) == 0 || p.Spec.Containers[0].Image != "agent:2" {
				return p.Name + " has the old image"
			}
		}
		return f.missing(n)
	})
	longest := time.Duration(0)
	f.kubelet.ledger.mu.Lock()
	for _, d := range f.kubelet.ledger.longest {
		longest = max(longest, d)
	}
	f.kubelet.ledger.mu.Unlock()
	t.Logf("%d hosts have a new image after %.1f s; no profile was down for longer than %.1f s", *simHosts, time.Since(began).Seconds(), longest.Seconds())
	f.checkLedger()
}

func lastLines(name string, n int) string {
	f, err := os.Open(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
		lines = lines[max(0, len(lines)-n):]
	}
	return strings.Join(lines, "\n")
}
