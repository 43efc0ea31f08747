package failover

import (
	"flag"
	"fmt"
	"math/rand/v2"
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

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/internal/cluster"
)

const (
	leaseTime = 3 * time.Second
	// maxTakeover is the promised time of a takeover: the duration of the Lease and two seconds.
	maxTakeover    = leaseTime + 2*time.Second
	sampleInterval = 10 * time.Millisecond
	waitTimeout    = time.Minute
)

var (
	failovers = flag.Int("failovers", 20, "how many failovers")
	pairs     = flag.Int("pairs", 4, "how many pairs of hinit")
	seed      = flag.Uint64("seed", uint64(time.Now().UnixNano()), "which faults come in which order")
)

// fault is one disturbance of the serving pod.
type fault struct {
	name   string
	inject func(p *pod)
	heal   func(t *testing.T, p *pod)
	// Whether the disturbed pod keeps or regains service, so that the other pod never serves.
	keepsServing bool
	// Time by which the fault may delay the last renewal, from which the takeover time counts.
	extraDelay time.Duration
}

func restartPod(t *testing.T, p *pod) { t.Helper(); p.end(); p.start(t) }

func waitOutFault(_ *testing.T, p *pod) { p.proxy.Restore() }

func faults() []fault {
	return []fault{
		{name: "kill -9 of PID 1", inject: func(p *pod) { p.end() }, heal: restartPod},
		{name: "SIGTERM of PID 1", inject: func(p *pod) { _ = p.cmd.Process.Signal(syscall.SIGTERM) }, heal: restartPod},
		{name: "SIGSTOP of the program", inject: func(p *pod) { p.signalProgram(syscall.SIGSTOP) }, heal: func(_ *testing.T, p *pod) { p.signalProgram(syscall.SIGCONT) }},
		{name: "dropped packets", inject: func(p *pod) { p.proxy.DropAll() }, heal: waitOutFault},
		{
			name:   "SIGSTOP of PID 1, and dropped packets",
			inject: func(p *pod) { _ = p.cmd.Process.Signal(syscall.SIGSTOP); p.proxy.DropAll() },
			heal:   func(_ *testing.T, p *pod) { _ = p.cmd.Process.Signal(syscall.SIGCONT); p.proxy.Restore() },
		},
		{name: "closed connections", inject: func(p *pod) { p.proxy.Disconnect() }, heal: waitOutFault},
		{name: "an API that takes longer than the lease", inject: func(p *pod) { p.proxy.Delay(leaseTime) }, heal: waitOutFault, extraDelay: leaseTime},
		{name: "kill -9 of the program", inject: func(p *pod) { p.signalProgram(syscall.SIGKILL) }, keepsServing: true},
		{name: "an API that takes a tenth of the lease", inject: func(p *pod) { p.proxy.Delay(leaseTime / 20) }, heal: waitOutFault, keepsServing: true},
		{
			name: "SIGSTOP of PID 1", keepsServing: true, inject: func(p *pod) { _ = p.cmd.Process.Signal(syscall.SIGSTOP) },
			heal: func(_ *testing.T, p *pod) { _ = p.cmd.Process.Signal(syscall.SIGCONT) },
		},
		{name: "a clock an hour ahead", inject: func(p *pod) { p.setClock(time.Hour) }, keepsServing: true},
		{name: "a clock an hour behind", inject: func(p *pod) { p.setClock(-time.Hour) }, keepsServing: true},
	}
}

// signalProgram sends a signal to hinit-lease-kubernetes in the pod.
func (p *pod) signalProgram(sig syscall.Signal) {
	for pid, command := range commands() {
		if strings.HasPrefix(command, "hinit-lease-kubernetes") && parentOf(pid) == p.cmd.Process.Pid {
			_ = syscall.Kill(pid, sig) // The process may have ended.
		}
	}
}

// runInNamespaces runs a command in the namespaces of the pod, with options of nsenter(1).
func (p *pod) runInNamespaces(words ...string) ([]byte, error) {
	words = append([]string{"--target", strconv.Itoa(p.cmd.Process.Pid), "--pid", "--mount"}, words...)
	return exec.Command("nsenter", words...).CombinedOutput() //nolint:gosec // all words are numbers and files of this test
}

// startPair starts a pair of pods, and returns the pod that serves first. The pair ends with the
// test.
func startPair(t *testing.T, s *testSite, pair int) (w *gatewayWatch, two []*pod, serves *pod) {
	t.Helper()
	w = newWatch()
	t.Cleanup(w.end)
	two = newPair(t, s, pair)
	for _, p := range two {
		p.start(t)
		t.Cleanup(p.end)
	}
	serves, _, err := w.await(two, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w, two, serves
}

// TestAnotherImageOfPID1GoesOnWithTheLease checks that a re-executed hinit keeps its gateway running, and keeps the
// Lease.
func TestAnotherImageOfPID1GoesOnWithTheLease(t *testing.T) {
	cluster.SkipIfShort(t)
	s := newSite(t)
	w, two, serves := startPair(t, s, 92)
	before := w.gateway(serves)
	for range 3 {
		if out, err := serves.runInNamespaces("env", "HINIT_RUNTIME_DIR="+serves.dir+"/run", s.programs+"/hinit", "reexec"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		<-time.After(leaseTime / 2)
	}
	<-time.After(leaseTime) // The deadline that the old program knew has passed.
	if now := w.gateway(serves); now != before || w.isRunning(two[1-serves.number]) {
		t.Errorf("the gateway was process %d and is %d", before, now)
	}
}

// signalAll sends a signal to every process of the pod, first to the gateway.
func (p *pod) signalAll(sig syscall.Signal) {
	var all []int
	for pid := range commands() {
		if parentOf(pid) == p.cmd.Process.Pid {
			all = append(all, pid)
		}
	}
	for _, pid := range append(all, p.cmd.Process.Pid) {
		_ = syscall.Kill(pid, sig) // The process may have ended.
	}
}

// setClock rewrites the times in the Lease, as a pod with another clock would.
func (p *pod) setClock(ahead time.Duration) {
	now := time.Now().Add(ahead).UTC().Format("2006-01-02T15:04:05.000000Z")
	_ = p.s.Kubectl(p.s.ctx, "--namespace", namespace, "patch", "lease", fmt.Sprintf("pair-%d", p.pair), "--type=merge",
		// The command fails if another process has written the Lease since.
		"-p", fmt.Sprintf(`{"spec":{"renewTime":%q,"acquireTime":%q}}`, now, now)).Run()
}

// TestTwoPodsNeverServeAtTheSameTime disturbs the serving pod in every way, in random order, and
// checks every 10 ms that only one pod serves.
func TestTwoPodsNeverServeAtTheSameTime(t *testing.T) {
	s := newSite(t)
	s.ctx = t.Context()
	t.Logf("seed %d", *seed)
	w := newWatch()
	defer w.end()
	var sum summary
	var all sync.WaitGroup
	times := *failovers / *pairs
	if testing.Short() {
		times = min(times, 2)
	}
	for pair := range *pairs {
		two := newPair(t, s, pair)
		random := rand.New(rand.NewPCG(*seed, uint64(pair))) //nolint:gosec // an attacker may guess these random numbers
		all.Go(func() {
			defer two[0].end()
			defer two[1].end()
			if err := injectFaults(t, w, two, random, times, &sum); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	sum.logSummary(t)
	for pair := range *pairs {
		if output, err := os.ReadFile(filepath.Join(s.dir, fmt.Sprint("pair", pair), "two")); err != nil || len(output) > 0 {
			t.Errorf("a gateway of pair %d began beside another: %s%v", pair, output, err)
		}
	}
	t.Logf("%d samples", w.samples.Load())
}

// newPair returns two pods that share a Lease. They are not started.
func newPair(t *testing.T, s *testSite, pair int) []*pod {
	t.Helper()
	shared := filepath.Join(s.dir, fmt.Sprint("pair", pair))
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "two"} {
		if err := os.WriteFile(filepath.Join(shared, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(shared, name), 0o666); err != nil { //nolint:gosec // the agents have another user
			t.Fatal(err)
		}
	}
	return []*pod{newPod(t, s, pair, 0, shared), newPod(t, s, pair, 1, shared)}
}

// TestAPodThatWasFrozenEndsItsGatewaysWhenItGoesOn stops every process of a pod for longer than the
// Lease. After it resumes, the pod must end its gateways.
func TestAPodThatWasFrozenEndsItsGatewaysWhenItGoesOn(t *testing.T) {
	w, two, old := startPair(t, newSite(t), 90)
	old.signalAll(syscall.SIGSTOP)
	if _, _, err := w.await(two, old); err != nil {
		t.Fatal(err)
	}
	old.signalAll(syscall.SIGCONT)
	began := time.Now()
	for w.isRunning(old) {
		if time.Since(began) > waitTimeout {
			t.Fatal("its gateway is still up")
		}
		<-time.After(sampleInterval)
	}
	t.Logf("two gateways ran for %v after the thaw", time.Since(began))
	if took := time.Since(began); took > time.Second {
		t.Errorf("two gateways ran for %v", took)
	}
}

func TestTheAPIServerStopsForLongerThanTheLease(t *testing.T) {
	cluster.SkipIfShort(t)
	w, two, old := startPair(t, newSite(t), 93)
	server := 0
	for pid, command := range commands() {
		if strings.Contains(command, "kube-apiserver\x00") {
			server = pid
		}
	}
	if server == 0 {
		t.Fatal("the API server is not seen")
	}
	began := time.Now()
	if err := syscall.Kill(server, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(server, syscall.SIGCONT) }()
	for w.isRunning(old) && time.Since(began) < 2*leaseTime {
		<-time.After(sampleInterval)
	}
	ended := time.Since(began)
	for time.Since(began) < 2*leaseTime {
		if w.isRunning(two[1-old.number]) {
			t.Fatal("the other pod serves without the API server")
		}
		<-time.After(sampleInterval)
	}
	if ended > leaseTime {
		t.Errorf("the gateway ended %v after the API server stopped", ended)
	}
	if err := syscall.Kill(server, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	again := time.Now()
	if _, _, err := w.await(two, nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("the gateway ended after %v, and one runs %v after the API server continued", ended, time.Since(again))
	if w.countDuplicates(old) > 0 {
		t.Error("two pods served")
	}
}

// TestNobodyElseSpeaksForTheProgram checks that hinit accepts lease messages only from the lease
// program. An agent and another root process in the pod send forged messages.
func TestNobodyElseSpeaksForTheProgram(t *testing.T) {
	s := newSite(t)
	w := newWatch()
	defer w.end()
	two := newPair(t, s, 91)
	for _, p := range two {
		p.start(t)
		defer p.end()
	}
	old, _, err := w.await(two, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []int{0, agentUser} {
		id := strconv.Itoa(user)
		out, err := old.runInNamespaces("--setuid", id, "--setgid", id, s.gateway, speakWord, old.dir+"/run/notify/hinit-lease", fmt.Sprintf("X_HINIT_LEASE=held %d", int64(1)<<52))
		if denied := err != nil && strings.Contains(string(out), "permission denied"); denied != (user != 0) {
			t.Errorf("uid %d: %v: %s", user, err, out)
		}
	}
	old.signalProgram(syscall.SIGSTOP)
	if _, _, err := w.await(two, old); err != nil {
		t.Error(err)
	}
	if w.isRunning(old) || w.countDuplicates(old) > 0 {
		t.Error("the gateway of the old pod is still up")
	}
}

// injectFaults makes a pair fail over many times.
func injectFaults(t *testing.T, w *gatewayWatch, two []*pod, random *rand.Rand, times int, sum *summary) error {
	t.Helper()
	two[0].start(t)
	two[1].start(t)
	var order []fault
	for done := 0; done < times; {
		serves, _, err := w.await(two, nil)
		if err != nil {
			return fmt.Errorf("no pod serves: %w", err)
		}
		if len(order) == 0 {
			order = faults()
			random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		f := order[0]
		order = order[1:]
		began, before, said := time.Now(), w.countDuplicates(serves), serves.countInLog("is held by")
		f.inject(serves)
		if f.keepsServing {
			<-time.After(leaseTime * 3 / 2) // No takeover may happen during this time.
			sum.keep(!w.isRunning(two[1-serves.number]))
		} else {
			_, at, err := w.await(two, serves)
			if err != nil {
				return fmt.Errorf("after %s the other pod does not serve: %w", f.name, err)
			}
			if took := at.Sub(began); sum.add(f.name, took, f.extraDelay) {
				t.Logf("late: %s took %.2f s, and the Lease was taken %.2f s after the fault", f.name, took.Seconds(), two[0].lease().AcquireTime.Sub(began).Seconds())
				for _, p := range two {
					log, _ := os.ReadFile(p.dir + "/log")
					t.Logf("DUMP began %s pod %d serves %v\n%s", began.Format("05.000"), p.number, p == serves, log[max(0, len(log)-5000):])
				}
			}
			done++
		}
		if f.heal != nil {
			f.heal(t, serves)
		}
		// A pod counts the duration of the Lease from its first read, so it can't take over before that
		// read.
		for end := time.Now().Add(waitTimeout); !f.keepsServing && serves.countInLog("is held by") == said && time.Now().Before(end); {
			<-time.After(sampleInterval)
		}
		if n := w.countDuplicates(serves) - before; n > 0 {
			t.Errorf("%d samples with two gateways after %s", n, f.name)
		}
	}
	return nil
}

// summary collects the times without a gateway, by fault.
type summary struct {
	mu          sync.Mutex
	times       map[string][]time.Duration
	late        int // Number of takeovers that took longer than permitted.
	keptServing int // Number of faults after which the same pod kept serving, as it should.
	unexpected  int // Number of faults after which the other pod served although it need not. This happens on a busy machine, because the Lease is short.
}

func (s *summary) keep(as bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if as {
		s.keptServing++
	} else {
		s.unexpected++
	}
}

// add records a takeover, and reports whether it took longer than allowed.
func (s *summary) add(name string, d, later time.Duration) (late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if late = d > maxTakeover+later; late {
		s.late++
	}
	if s.times == nil {
		s.times = map[string][]time.Duration{}
	}
	s.times[name] = append(s.times[name], d)
	return late
}

func (p *pod) countInLog(words string) int {
	log, _ := os.ReadFile(p.dir + "/log") // start has created the file.
	return strings.Count(string(log), words)
}

// lease returns the pair's Lease. Its times are from the holder's clock.
func (p *pod) lease() coordinationv1.LeaseSpec {
	var lease coordinationv1.Lease
	path := fmt.Sprintf("/apis/coordination.k8s.io/v1/namespaces/%s/leases/pair-%d", namespace, p.pair)
	if err := p.s.Get(p.s.ctx, path, &lease); err != nil || lease.Spec.AcquireTime == nil || lease.Spec.RenewTime == nil {
		return coordinationv1.LeaseSpec{AcquireTime: &metav1.MicroTime{}, RenewTime: &metav1.MicroTime{}}
	}
	return lease.Spec
}

func (s *summary) logSummary(t *testing.T) {
	t.Helper()
	var all []time.Duration
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range s.times {
			if !yield(name) {
				return
			}
		}
	}) {
		d := s.times[name]
		slices.Sort(d)
		all = append(all, d...)
		t.Logf("%-42s %4d takeovers, median %5.2f s, longest %5.2f s", name, len(d), d[len(d)/2].Seconds(), d[len(d)-1].Seconds())
	}
	if len(all) == 0 {
		t.Error("nothing was tried")
		return
	}
	slices.Sort(all)
	t.Logf("%-42s %4d takeovers, median %5.2f s, longest %5.2f s, %d above %v", "all", len(all), all[len(all)/2].Seconds(), all[len(all)-1].Seconds(), s.late, maxTakeover)
	t.Logf("%d faults that a pod has to survive, %d of them cost it the lease", s.keptServing+s.unexpected, s.unexpected)
	if s.unexpected > s.keptServing {
		t.Error("most of them did")
	}
	if all[len(all)/2] > maxTakeover {
		t.Errorf("half of the takeovers took longer than %v", maxTakeover)
	}
}

// commands returns the command lines of all processes.
func commands() map[int]string {
	out := map[int]string{}
	entries, _ := os.ReadDir("/proc") // Ignore the error, because /proc exists.
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if text, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && len(text) > 0 {
			out[pid] = string(text)
		}
	}
	return out
}

// parentOf returns the parent of a process (proc_pid_stat(5)).
func parentOf(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // The process may have ended.
	_, rest, _ := strings.Cut(string(text), ") ")
	if words := strings.Fields(rest); len(words) > 1 {
		parent, _ := strconv.Atoi(words[1])
		return parent
	}
	return 0
}
