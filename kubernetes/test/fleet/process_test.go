package fleet

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/internal/pool"
)

var stepClock = flag.Bool("step-clock", false, "step the wall clocks of hosts and controllers too; this builds hinit-fleet with another time.Now")

const (
	// User ID of hosts that run in their own processes.
	agentUser = 10000
	// Environment variable with the file that holds the seconds by which a process's clock is ahead.
	clockVar = "HINIT_TEST_FLEET_CLOCK"
	// Environment variable that makes this process hinit-fleet host. It holds the directory of the
	// credentials.
	hostVar = "HINIT_TEST_FLEET_HOST"
)

// realHosts runs each host as in a pod: as a process of hinit-fleet with the agents' user, its own
// credentials and its own address.
type realHosts struct {
	*cluster.Cluster
	program string
	out     io.Writer
	last    atomic.Int32 // Last assigned address.
}

// withProcesses makes a fleet's hosts and controllers run as separate processes, if this machine
// allows that.
func withProcesses(t *testing.T, s *server, out io.Writer) *realHosts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("hosts run in the process of the test: mounts need root")
		return nil
	}
	dir, err := os.MkdirTemp("/run", "bin") //nolint:usetesting // the agents' user executes the program in this directory
	if err != nil {
		t.Fatal(err)
	}
	r := &realHosts{Cluster: s.Cluster, program: filepath.Join(dir, "hinit-fleet"), out: out}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", r.program)
	if *stepClock {
		overlay, err := cluster.SteppingClock(t.TempDir(), clockVar)
		if err != nil {
			t.Fatal(err)
		}
		build.Args = append(build.Args, "-overlay", overlay)
	}
	build.Args = append(build.Args, "./cmd/hinit-fleet")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the agents' user executes the program in this directory
		t.Fatal(err)
	}
	return r
}

// becomeHost runs hinit-fleet host in this process, without root. It mounts the credentials at the
// same path as in a pod.
func becomeHost(credentials string) error {
	if err := os.MkdirAll(pool.CredentialsDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(credentials, pool.CredentialsDir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	program := os.Getenv("HINIT_TEST_FLEET_PROGRAM")
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(agentUser), syscall.Setuid(agentUser)); err != nil {
		return err
	}
	return unix.Exec(program, []string{program, "host"}, os.Environ())
}

// hostProcess is the container of hinit-fleet in a pod. Like a kubelet, it restarts the program
// when it exits.
type hostProcess struct {
	env   []string
	out   io.Writer
	proxy *cluster.FaultProxy
	clock string
	done  chan struct{}

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended bool
}

// beginProcess starts the host of a pod, with an imitation of hinit.
func (k *kubelet) beginProcess(ctx context.Context, p *corev1.Pod, init *fakeInit) error {
	h, err := k.newHost(ctx, p)
	if err != nil {
		init.end()
		return err
	}
	s := &simulatedPod{uid: p.UID, image: p.Spec.Containers[0].Image, cancel: h.end, done: h.done, init: init, host: h}
	k.mu.Lock()
	defer k.mu.Unlock()
	h.setDisconnected(k.offline[p.Name])
	k.running[p.Name] = s
	return nil
}

func (k *kubelet) newHost(ctx context.Context, p *corev1.Pod) (*hostProcess, error) {
	credentials := filepath.Join(k.dir, p.Name+".credentials")
	if err := os.MkdirAll(credentials, 0o755); err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(k.processes.CAFile())
	if err != nil {
		return nil, err
	}
	token, err := k.token(ctx, p)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{"ca.crt": string(authority), "token": token} {
		if err := os.WriteFile(filepath.Join(credentials, name), []byte(text), 0o644); err != nil { //nolint:gosec // the agents' user reads this file
			return nil, err
		}
	}
	proxy, err := k.processes.NewFaultProxy()
	if err != nil {
		return nil, err
	}
	host, port := splitAddress(proxy.Address)
	n := k.processes.last.Add(1)
	h := &hostProcess{out: k.processes.out, proxy: proxy, clock: filepath.Join(k.dir, p.Name+".clock"), done: make(chan struct{})}
	h.env = []string{
		hostVar + "=" + credentials, "HINIT_TEST_FLEET_PROGRAM=" + k.processes.program, clockVar + "=" + h.clock,
		"HINIT_RUNTIME_DIR=" + filepath.Join(k.dir, p.Name+".run"), "HINIT_FLEET_HOST=" + p.Name, "HINIT_FLEET_UID=" + string(p.UID),
		"HINIT_FLEET_NAMESPACE=" + p.Namespace, "HINIT_FLEET_POOL=" + p.Labels[v1alpha1.PoolLabel],
		fmt.Sprintf("HINIT_FLEET_ADDRESS=127.1.%d.%d", n/250, n%250+1), "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port,
	}
	go h.supervise()
	return h, nil
}

func splitAddress(address string) (host, port string) {
	i := len(address) - 1
	for address[i] != ':' {
		i--
	}
	return address[:i], address[i+1:]
}

// supervise restarts the program until the pod ends.
func (h *hostProcess) supervise() {
	defer close(h.done)
	defer h.proxy.Shutdown()
	for {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = h.env, h.out, h.out, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		h.mu.Lock()
		if h.ended {
			h.mu.Unlock()
			return
		}
		err := cmd.Start()
		h.cmd = cmd
		h.mu.Unlock()
		if err == nil {
			_ = cmd.Wait()
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (h *hostProcess) signal(s syscall.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cmd != nil && h.cmd.Process != nil {
		_ = h.cmd.Process.Signal(s) // The process may have ended.
	}
}

// end kills the program for good.
func (h *hostProcess) end() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.signal(syscall.SIGKILL)
}

// setDisconnected disconnects the host from the API server, or reconnects it. Half of the disconnections drop
// packets instead of closing connections.
func (h *hostProcess) setDisconnected(off bool) {
	switch {
	case !off:
		h.proxy.Restore()
	case time.Now().UnixNano()%2 == 0:
		h.proxy.DropAll()
	default:
		h.proxy.Disconnect()
	}
}

// setClock sets a process's clock ahead, if the program was built for that.
func setClock(file string, ahead time.Duration) {
	_ = os.WriteFile(file+".new", []byte(strconv.Itoa(int(ahead.Seconds()))), 0o644) //nolint:gosec // the agents' user reads this file
	_ = os.Rename(file+".new", file)
}

// hostOf returns the process of a host, or nil.
func (k *kubelet) hostOf(name string) *hostProcess {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.running[name]; s != nil {
		return s.host
	}
	return nil
}

// controllerClock returns the clock file of a controller.
func (k *kubelet) controllerClock(i int) string {
	return filepath.Join(k.dir, fmt.Sprintf("controller%d.clock", i))
}

// startController starts hinit-fleet controller with its Lease in the given namespace.
func (r *realHosts) startController(t *testing.T, clock, namespace string) *controllerProcess {
	t.Helper()
	c := &controllerProcess{cmd: exec.Command(r.program, "controller", "--kubeconfig", r.Config, "--namespace", cmp.Or(namespace, "default"))}
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = append(os.Environ(), clockVar+"="+clock), r.out, r.out
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}
