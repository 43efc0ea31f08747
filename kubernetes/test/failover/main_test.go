package failover

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/kubernetes/internal/cluster"
)

// podVar makes this test binary the first process of a pod: it mounts /proc and executes hinit.
const podVar = "HINIT_FAILOVER_POD"

func TestMain(m *testing.M) {
	if hinit := os.Getenv(podVar); hinit != "" {
		fmt.Fprintln(os.Stderr, becomeInit(hinit))
		os.Exit(1)
	}
	if len(os.Args) == 5 && os.Args[1] == gatewayWord {
		fmt.Fprintln(os.Stderr, becomeGateway(os.Args[2], os.Args[3], os.Args[4]))
		os.Exit(1)
	}
	if len(os.Args) == 4 && os.Args[1] == speakWord {
		if err := sendMessage(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(cluster.MainServer(m))
}

// speakWord makes this test binary a program that sends messages to a socket.
const speakWord = "speak-to-a-socket"

func sendMessage(socket, words string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	return unix.Sendto(fd, []byte(words), 0, &unix.SockaddrUnix{Name: socket})
}

// gatewayWord makes this test binary a gateway.
const gatewayWord = "gateway-of-a-pair"

// becomeGateway makes this process a gateway with the mark of a pod. Each gateway holds a lock as long as it lives, so a second
// one of the pair notices the first, and reports it.
func becomeGateway(shared, busybox, mark string) error {
	fd, err := unix.Open(filepath.Join(shared, "lock"), unix.O_RDWR, 0) // Without O_CLOEXEC, the lock outlives execve.
	if err != nil {
		return err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f, err2 := os.OpenFile(filepath.Join(shared, "two"), os.O_WRONLY|os.O_APPEND, 0)
		if err2 != nil {
			return err2
		}
		fmt.Fprintln(f, mark, err)
	}
	return unix.Exec(busybox, []string{busybox, "sleep", mark}, os.Environ())
}

func becomeInit(hinit string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := os.Unsetenv(podVar); err != nil {
		return err
	}
	return unix.Exec(hinit, []string{hinit, "init", "gateway", "run"}, os.Environ())
}

// testSite holds what all pairs share: the API server and the programs.
type testSite struct {
	*cluster.Cluster
	dir         string // Directory that every user may read.
	credentials string // Directory with the credentials of a pod.
	programs    string
	gateway     string // Copy of this program that the agents' user may execute.
	ctx         context.Context
}

const namespace = "default"

// role grants exactly the rights that hinit-lease-kubernetes needs.
const role = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: agents}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: agents}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: agents}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: agents}
subjects: [{kind: ServiceAccount, name: agents}]
`

// started is the API server for all tests of the package.
type started struct {
	*cluster.Cluster
	left string // Reason why no API server runs; "" if one runs.
}

var startServerOnce = sync.OnceValues(func() (s started, err error) {
	s.Cluster, s.left, err = cluster.StartServer(context.Background())
	return s, err
})

func newSite(t *testing.T) *testSite {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	server, err := startServerOnce()
	if err != nil {
		t.Fatal(err)
	}
	c := server.Cluster
	if c == nil {
		t.Skip(server.left)
	}
	s := &testSite{Cluster: c, dir: t.TempDir(), programs: filepath.Join(repository(t), "dist/linux-"+runtime.GOARCH)}
	s.credentials = filepath.Join(s.dir, "credentials")
	for dir := s.dir; dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the agents have another user
			t.Fatal(err)
		}
		if filepath.Dir(dir) == os.TempDir() {
			break
		}
	}
	for _, name := range []string{"hinit", "hinit-lease-kubernetes", "busybox"} {
		if _, err := os.Stat(filepath.Join(s.programs, name)); err != nil {
			t.Fatalf("%v; make build build-kubernetes %s", err, filepath.Join("dist/linux-"+runtime.GOARCH, "busybox"))
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	s.gateway = filepath.Join(s.dir, "gateway")
	if err := os.WriteFile(s.gateway, self, 0o755); err != nil { //nolint:gosec // the agents execute this program
		t.Fatal(err)
	}
	s.kubectl(t, role, "apply", "-f", "-")
	token := s.kubectl(t, "", "create", "token", "agents", "--duration=24h")
	ca, err := os.ReadFile(c.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.credentials, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"token": strings.TrimSpace(token), "ca.crt": string(ca), "namespace": namespace} {
		if err := os.WriteFile(filepath.Join(s.credentials, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// kubectl runs kubectl and returns its output.
func (s *testSite) kubectl(t *testing.T, input string, words ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := s.Kubectl(ctx, append([]string{"--namespace", namespace}, words...)...)
	cmd.Stdin = strings.NewReader(input)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(words, " "), err, errors.String())
	}
	return string(out)
}

func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// pod is one of the two hinits of a pair.
type pod struct {
	s      *testSite
	pair   int
	number int // Number of the pod in its pair: 0 or 1.
	dir    string
	proxy  *cluster.FaultProxy
	cmd    *exec.Cmd
	log    *os.File
}

// mark returns a word that only the command line of this pod's gateway contains.
func (p *pod) mark() string { return fmt.Sprintf("%d", 1000000+p.pair*10+p.number) }

// agentUser is the user ID of the gateways.
const agentUser = 10000

// config is a hinit.yaml whose gateway reports if the other pod of the pair also runs one.
const config = `agent:
  user: "10000:10000"
  binary: %[1]s
  gateway_default: [%[4]s, ` + gatewayWord + `, %[2]s, %[1]s, "%[3]s"]
  ready: up
  settle: 10ms
logs: {console: raw}
services: {dashboard: {enabled: false}}
`

func newPod(t *testing.T, s *testSite, pair, number int, shared string) *pod {
	t.Helper()
	p := &pod{s: s, pair: pair, number: number, dir: filepath.Join(shared, fmt.Sprint("pod", number))}
	var err error
	if p.proxy, err = s.NewFaultProxy(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.proxy.Shutdown)
	for _, dir := range []string{p.dir, p.dir + "/home", p.dir + "/run", p.dir + "/run/tmp"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(p.dir+"/home", agentUser, agentUser); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(config, s.programs+"/busybox", shared, p.mark(), s.gateway)
	if err := os.WriteFile(p.dir+"/hinit.yaml", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(p.dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	p.log = log
	t.Cleanup(func() { _ = log.Close() })
	return p
}

// start starts the pod's container.
func (p *pod) start(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(p.proxy.Address, ":")
	p.cmd = exec.Command(self)
	p.cmd.Env = []string{
		podVar + "=" + p.s.programs + "/hinit", "PATH=" + p.s.programs + ":/bin", "HERMES_HOME=" + p.dir + "/home", "HINIT_CONFIG=" + p.dir + "/hinit.yaml",
		"HINIT_RUNTIME_DIR=" + p.dir + "/run", "HINIT_LEASE=kubernetes", fmt.Sprintf("HINIT_LEASE_NAME=pair-%d", p.pair),
		fmt.Sprintf("HINIT_LEASE_IDENTITY=pod-%d", p.number), "HINIT_LEASE_DURATION=" + leaseTime.String(), "HINIT_LEASE_CREDENTIALS=" + p.s.credentials,
		clockVar + "=" + p.dir + "/clock", "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port, "HINIT_S6=0", "HINIT_STOP_TIMEOUT=2s", "HERMES_GATEWAY_BOOTSTRAP_STATE=running",
	}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = p.log, p.log, "/"
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (p *pod) end() {
	_ = p.cmd.Process.Kill() // The process may have ended.
	_ = p.cmd.Wait()
}
