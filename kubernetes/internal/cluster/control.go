package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	maxNodes       = 2
	bridge         = "hinit0"
	serviceRange   = "10.97.0.0/24"
	serviceAddress = "10.97.0.1"
)

func nodeName(n int) string    { return fmt.Sprintf("node%d", n) }
func nodeAddress(n int) string { return fmt.Sprintf("10.98.255.%d", n) }

// Cluster is a running cluster. Only one goroutine may use it.
type Cluster struct {
	Bin        string // directory of the cluster's programs, including kubectl
	Config     string // path of the administrator's kubeconfig
	WhyNoNodes string // reason why the cluster has no nodes; "" if it has some

	dir, logs string // State directory of the programs, and directory of their logs.
	port      string
	admin     func() (*http.Client, error)

	store, server *process
	serverArgs    []string // Command line of the API server.
}

// Start starts etcd, the API server, the controllers and the scheduler. If no cluster can run on this machine, c is nil and
// left says why. The cluster stops when the test process ends, see [Main].
func Start(ctx context.Context) (c *Cluster, left string, err error) {
	c, left, err = StartServer(ctx)
	if c == nil || err != nil {
		return c, left, err
	}
	return c, "", c.startControllers(ctx, filepath.Dir(c.Config))
}

// StartServer starts a cluster of etcd and the API server only: it has no nodes, so pods never run.
func StartServer(ctx context.Context) (c *Cluster, left string, err error) {
	c = &Cluster{Bin: os.Getenv(binVar), WhyNoNodes: os.Getenv(leftVar), logs: os.Getenv(logVar), dir: "/run/cluster", port: "443"}
	if c.Bin == "" {
		return nil, c.WhyNoNodes, nil
	}
	c.admin = sync.OnceValues(c.newClient)
	if os.Geteuid() != 0 {
		c.port = "16443"
		if c.dir, err = os.MkdirTemp("", "hinit-cluster-"); err != nil {
			return nil, "", err
		}
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil { // let the root user of a pod with a user namespace read the directory
		return nil, "", err
	}
	pki := filepath.Join(c.dir, "pki")
	c.Config = filepath.Join(pki, "admin.kubeconfig")
	if err := createCertificates(pki, "https://127.0.0.1:"+c.port, maxNodes); err != nil {
		return nil, "", err
	}
	return c, "", c.startStore(ctx, pki)
}

func (c *Cluster) startStore(ctx context.Context, pki string) error {
	store, peers := "http://127.0.0.1:16379", "http://127.0.0.1:16380"
	var err error
	if c.store, err = c.spawn("etcd", "etcd", "--name=c", "--data-dir="+filepath.Join(c.dir, "etcd"), "--listen-client-urls="+store, "--advertise-client-urls="+store,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=c="+peers, "--unsafe-no-fsync", "--log-level=warn"); err != nil {
		return err
	}
	c.serverArgs = []string{
		"--etcd-servers=" + store, "--bind-address=0.0.0.0", "--advertise-address=" + nodeAddress(1),
		"--endpoint-reconciler-type=none", "--secure-port=" + c.port,
		"--tls-cert-file=" + pki + "/apiserver.crt", "--tls-private-key-file=" + pki + "/apiserver.key", "--client-ca-file=" + pki + "/ca.crt",
		"--kubelet-certificate-authority=" + pki + "/ca.crt", "--kubelet-client-certificate=" + pki + "/kubelet-client.crt",
		"--kubelet-client-key=" + pki + "/kubelet-client.key", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file=" + pki + "/accounts.pub", "--service-account-signing-key-file=" + pki + "/accounts.key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=" + serviceRange,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
	}
	return c.StartAPIServer(ctx)
}

// StartAPIServer starts the API server and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	var err error
	if c.server, err = c.spawn("kube-apiserver", "kube-apiserver", c.serverArgs...); err != nil {
		return err
	}
	return c.waitFor(ctx, "the API server is ready", c.server, func() bool { return c.Get(ctx, "/readyz", nil) == nil })
}

// KillServer kills the API server with SIGKILL. The other programs keep running.
func (c *Cluster) KillServer() { c.server.kill() }

// PauseStore stops etcd with SIGSTOP for the duration d and blocks for that time. Until it returns,
// the API server gets no answers from etcd.
func (c *Cluster) PauseStore(d time.Duration) error {
	if err := c.store.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	<-time.After(d)
	return c.store.cmd.Process.Signal(syscall.SIGCONT)
}

func (c *Cluster) startControllers(ctx context.Context, pki string) error {
	for name, more := range map[string][]string{
		"controllers": {
			"--service-account-private-key-file=" + pki + "/accounts.key", "--root-ca-file=" + pki + "/ca.crt", "--use-service-account-credentials=true",
			// Half of the default, so that tests see the loss of a node sooner.
			"--secure-port=16257", "--node-monitor-grace-period=25s",
		},
		"scheduler": {"--secure-port=16259"},
	} {
		program := map[string]string{"controllers": "kube-controller-manager", "scheduler": "kube-scheduler"}[name]
		config := filepath.Join(pki, name+".kubeconfig")
		words := append([]string{
			"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config, "--bind-address=127.0.0.1",
			// Raise the limits, because deleting a namespace takes seconds with the defaults.
			"--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000",
			"--tls-cert-file=" + pki + "/" + name + ".crt", "--tls-private-key-file=" + pki + "/" + name + ".key",
		}, more...)
		p, err := c.spawn(program, program, words...)
		if err != nil {
			return err
		}
		go c.restartForever(p, words)
	}
	// Wait for the default ServiceAccount, which the controllers create. Pods can't be created without it.
	return c.waitFor(ctx, "the controllers work", nil, func() bool {
		return c.Get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil) == nil
	})
}

// restartForever starts p again with the same arguments each time it exits, as a node would restart its pod. For instance,
// the scheduler exits when the API server comes back with an older state.
func (c *Cluster) restartForever(p *process, words []string) {
	for err := error(nil); err == nil; p, err = c.spawn(p.name+"-again", p.name, words...) {
		<-p.done
		<-time.After(time.Second)
	}
}

// process is a program of the cluster.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // Closed when the program has exited.
}

// spawn starts a program. Its output goes to a file in the log directory, whose name is log and the suffix ".log".
func (c *Cluster) spawn(log, program string, words ...string) (*process, error) {
	out, err := os.Create(filepath.Join(c.logs, log+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(c.Bin, program), words...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, c.dir
	cmd.Env = append(os.Environ(), "PATH="+c.Bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", program, err)
	}
	p := &process{program, cmd, make(chan struct{})}
	go func() { _, _ = cmd.Process.Wait(); close(p.done) }()
	return p, nil
}

// kill kills a program with SIGKILL, and waits until it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // ignore the error: Kill fails only if the program has ended
	<-p.done
}

// waitFor polls cond until it returns true. It returns an error after three minutes, or when the program p ends before. p may
// be nil. The text what describes the condition in errors.
func (c *Cluster) waitFor(ctx context.Context, what string, p *process, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	ended := make(chan struct{})
	if p != nil {
		ended = p.done
	}
	for !cond() {
		select {
		case <-ended:
			return fmt.Errorf("%s has ended before %s; see %s", p.name, what, c.logs)
		case <-ctx.Done():
			return fmt.Errorf("cannot wait until %s: %w; see %s", what, ctx.Err(), c.logs)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// statusError is the HTTP status with which the API server answered a request that failed.
type statusError int

func (e statusError) Error() string { return "the API server answers " + http.StatusText(int(e)) }

// NotFound reports whether err means that the API server has no such object.
func NotFound(err error) bool { return errors.Is(err, statusError(http.StatusNotFound)) }
