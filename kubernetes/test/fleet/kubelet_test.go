package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/client/dial"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/host"
)

// countingTransport is an HTTP transport that counts the writes of clients.
type countingTransport struct {
	writes       atomic.Int64
	disconnected atomic.Bool // Whether the API server is unreachable.
}

func (c *countingTransport) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if c.disconnected.Load() {
			return nil, errors.New("no route to host")
		}
		if r.Method != http.MethodGet {
			c.writes.Add(1)
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// kubelet imitates the kubelets of several nodes: it runs the pods of pools, with the real host
// code and an imitation of hinit.
type kubelet struct {
	api       client.WithWatch
	kube      *kubernetes.Clientset
	config    *rest.Config
	dir       string // Directory of sockets and volumes.
	ledger    *ledger
	counted   *countingTransport
	log       *slog.Logger
	processes *realHosts // Hosts in their own processes; nil if hosts run in this process.

	containers atomic.Int64 // Number of the last container.

	mu        sync.Mutex
	running   map[string]*simulatedPod // Simulated pods by name.
	addresses map[string]string        // Addresses of the nodes that have one.
	killed    map[types.UID]bool       // Pods whose container must not run.
	offline   map[string]bool          // Hosts that can't reach the API server.
}

// simulatedPod is a running pod.
type simulatedPod struct {
	uid       types.UID
	image     string
	cancel    context.CancelFunc
	done      chan struct{}
	init      *fakeInit
	transport *countingTransport // Connections of a host in this process.
	host      *hostProcess       // Host in its own process.
	stopStart time.Time          // Start of the preStop hook.
}

// setDisconnected disconnects the host from the API server, or reconnects it.
func (s *simulatedPod) setDisconnected(off bool) {
	if s.host != nil {
		s.host.setDisconnected(off)
	} else {
		s.transport.disconnected.Store(off)
	}
}

// drained reports whether the preStop hook of an ending pod has finished: no gateway works on an
// answer any more.
func (s *simulatedPod) drained(p *corev1.Pod) bool {
	hook := p.Spec.Containers[0].Lifecycle
	if hook == nil || hook.PreStop == nil {
		return true
	}
	words := hook.PreStop.Exec.Command
	limit, err := time.ParseDuration(words[len(words)-1])
	if s.stopStart.IsZero() {
		s.stopStart = time.Now()
	}
	return err != nil || !s.init.busy.Load() || time.Since(s.stopStart) > limit
}

func newKubelet(s *server, dir string, out io.Writer) (*kubelet, error) {
	api, err := client.NewWithWatch(s.rest, client.Options{Scheme: v1alpha1.Scheme()})
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(s.rest)
	k := &kubelet{
		api: api, kube: kube, config: s.rest, dir: dir, ledger: newLedger(), counted: &countingTransport{}, running: map[string]*simulatedPod{}, addresses: map[string]string{}, killed: map[types.UID]bool{},
		offline: map[string]bool{}, log: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	return k, err
}

// createNodes creates nodes and volumes. Until ctx ends, it reports the nodes as alive.
func (k *kubelet) createNodes(ctx context.Context, n, volumes int) error {
	bind := storagev1.VolumeBindingImmediate
	objects := []client.Object{&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "simulated"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &bind}}
	for i := range volumes {
		objects = append(objects, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("simulated-%d", i)}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: "simulated", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		}})
	}
	for i := range n {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{"kubernetes.io/hostname": nodeName(i), zoneKey: string('a' + rune(i%2))}}})
	}
	for _, o := range objects {
		if err := client.IgnoreAlreadyExists(k.api.Create(ctx, o)); err != nil {
			return err
		}
	}
	for i := range n {
		if err := k.renewNode(ctx, nodeName(i)); err != nil {
			return err
		}
	}
	go func() {
		for ctx.Err() == nil {
			for i := range n {
				_ = k.renewNode(ctx, nodeName(i)) // After an error, the next report follows soon.
			}
			sleep(ctx, 10*time.Second)
		}
	}()
	return nil
}

const (
	kubeletPort = 10250
	zoneKey     = "topology.kubernetes.io/zone" // Node label with one of two zones.
)

func nodeName(i int) string { return fmt.Sprintf("sim%d", i) }

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// renewNode renews the status and the Lease of a node.
func (k *kubelet) renewNode(ctx context.Context, name string) error {
	n := &corev1.Node{}
	if err := k.api.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return err
	}
	old, now := n.DeepCopy(), metav1.Now()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now}}
	k.mu.Lock()
	if address := k.addresses[name]; address != "" {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	}
	k.mu.Unlock()
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1k"), corev1.ResourceMemory: resource.MustParse("10Ti"), corev1.ResourcePods: resource.MustParse("500")}
	n.Status.Capacity, n.Status.Allocatable = room, room
	if err := k.api.Status().Patch(ctx, n, client.MergeFrom(old)); err != nil {
		return err
	}
	micro, seconds := metav1.NowMicro(), int32(40)
	l := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: "kube-node-lease", Name: name}
	if k.api.Get(ctx, key, l) != nil {
		l.Namespace, l.Name = key.Namespace, key.Name
		l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &micro}
		return k.api.Create(ctx, l)
	}
	l.Spec.RenewTime = &micro
	return k.api.Update(ctx, l)
}

func (k *kubelet) run(ctx context.Context) {
	for ctx.Err() == nil {
		pods := &corev1.PodList{}
		if err := k.api.List(ctx, pods, client.HasLabels{v1alpha1.PoolLabel}); err != nil {
			sleep(ctx, 200*time.Millisecond) // The API server does not answer, so leave the pods unchanged.
			continue
		}
		there := map[string]types.UID{}
		var all sync.WaitGroup
		for i := range pods.Items {
			p := &pods.Items[i]
			there[p.Name] = p.UID
			all.Go(func() {
				if err := k.syncPod(ctx, p); err != nil && ctx.Err() == nil {
					k.log.Warn("pod", "name", p.Name, "error", err)
				}
			})
		}
		all.Wait()
		for name, uid := range k.uids() {
			if there[name] != uid {
				k.killPod(name)
			}
		}
		sleep(ctx, 200*time.Millisecond)
	}
	for name := range k.uids() {
		k.killPod(name)
	}
}

func (k *kubelet) uids() map[string]types.UID {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]types.UID{}
	for name, s := range k.running {
		out[name] = s.uid
	}
	return out
}

// syncPod brings one simulated pod to the state of its object.
func (k *kubelet) syncPod(ctx context.Context, p *corev1.Pod) error {
	k.mu.Lock()
	now, killed := k.running[p.Name], k.killed[p.UID]
	k.mu.Unlock()
	switch {
	case p.Spec.NodeName == "":
		return nil
	case now != nil && now.uid != p.UID:
		k.killPod(p.Name)
		return nil
	case now != nil && (now.image != p.Spec.Containers[0].Image || p.DeletionTimestamp != nil) && !now.drained(p):
		return nil
	case now != nil && now.image != p.Spec.Containers[0].Image && p.DeletionTimestamp == nil:
		k.killPod(p.Name)
		next := p.DeepCopy()
		for i := range next.Status.ContainerStatuses { // The container is the same one, which has ended.
			next.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
		}
		return k.api.Status().Patch(ctx, next, client.MergeFrom(p))
	case p.DeletionTimestamp != nil:
		k.killPod(p.Name)
		none := int64(0)
		return client.IgnoreNotFound(k.api.Delete(ctx, p, &client.DeleteOptions{GracePeriodSeconds: &none, Preconditions: &metav1.Preconditions{UID: &p.UID}}))
	case killed && now != nil:
		k.killPod(p.Name)
		return k.status(ctx, p, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}})
	case !killed && now == nil:
		if err := k.startPod(ctx, p); err != nil {
			return err
		}
		return k.status(ctx, p, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}})
	}
	return nil
}

func (k *kubelet) status(ctx context.Context, p *corev1.Pod, state corev1.ContainerState) error {
	ready := corev1.ConditionFalse
	if state.Running != nil {
		ready = corev1.ConditionTrue
	}
	next := p.DeepCopy()
	next.Status.Phase, next.Status.PodIP = corev1.PodRunning, "127.0.0.1"
	next.Status.Conditions = append(next.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready})
	next.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agents", ContainerID: fmt.Sprintf("sim://%d", k.containers.Add(1)), State: state, Ready: state.Running != nil, Image: p.Spec.Containers[0].Image}}
	return k.api.Status().Patch(ctx, next, client.MergeFrom(p))
}

// startPod starts a pod: the imitation of hinit, and the host with the pod's service account.
func (k *kubelet) startPod(ctx context.Context, p *corev1.Pod) error {
	home := filepath.Join(k.dir, p.Name)
	if err := k.createVolume(home); err != nil {
		return err
	}
	socket := filepath.Join(k.dir, p.Name+".sock")
	user := 0
	if k.processes != nil {
		socket, user = filepath.Join(k.dir, p.Name+".run", "control.sock"), agentUser
	}
	init, err := startFakeInit(p.Name, home, socket, user, k.ledger)
	if err != nil {
		return err
	}
	if k.processes != nil {
		return k.beginProcess(ctx, p, init)
	}
	mine := &countingTransport{}
	config := rest.AnonymousClientConfig(k.config)
	config.QPS, config.Burst = 100, 200
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return mine.wrap(k.counted.wrap(next)) })
	if config.BearerToken, err = k.token(ctx, p); err != nil {
		init.end()
		return err
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: v1alpha1.Scheme()})
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &simulatedPod{uid: p.UID, image: p.Spec.Containers[0].Image, cancel: cancel, done: make(chan struct{}), init: init, transport: mine}
	k.mu.Lock()
	mine.disconnected.Store(k.offline[p.Name])
	k.running[p.Name] = s
	k.mu.Unlock()
	settings := host.Settings{
		Name: p.Name, UID: string(p.UID), Namespace: p.Namespace, Pool: p.Labels[v1alpha1.PoolLabel], Home: home, Address: "127.0.0.1:0", API: api,
		Init: dial.New(socket), Create: init.create, Log: k.log.With("host", p.Name),
	}
	go func() {
		defer close(s.done)
		if err := host.Run(inner, settings); err != nil {
			k.log.Warn("host", "name", p.Name, "error", err)
		}
	}()
	return nil
}

func (k *kubelet) createVolume(home string) error {
	err := os.Mkdir(home, 0o755)
	if err == nil && os.Geteuid() == 0 {
		options := "mode=755,size=64m"
		if k.processes != nil {
			options += fmt.Sprintf(",uid=%d,gid=%[1]d", agentUser)
		}
		err = unix.Mount("tmpfs", home, "tmpfs", 0, options)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// unmount unmounts the volumes of all pods.
func (k *kubelet) unmount() {
	homes, _ := filepath.Glob(filepath.Join(k.dir, "*")) // Ignore the error: the pattern is valid.
	for _, home := range homes {
		_ = unix.Unmount(home, unix.MNT_DETACH) // Unmount fails for a directory that contains only sockets.
	}
}

// fillVolume fills the volume of a host. Call drop to free the space.
func (k *kubelet) fillVolume(host string) {
	f, err := os.Create(filepath.Join(k.dir, host, "filler"))
	if err != nil {
		return // The host has no volume yet, or its volume is full.
	}
	defer f.Close()
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = f.Write(block)
	}
}

func (k *kubelet) freeVolume(host string) { _ = os.Remove(filepath.Join(k.dir, host, "filler")) } // An error means that the file is gone.

// token requests a service account token for a pod, as the kubelet does.
func (k *kubelet) token(ctx context.Context, p *corev1.Pod) (string, error) {
	seconds := int64(6 * 60 * 60) // The token is not renewed, so it must outlive the tests.
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}, ExpirationSeconds: &seconds,
	}}
	answer, err := k.kube.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

// killPod kills all processes of a pod.
func (k *kubelet) killPod(name string) {
	k.mu.Lock()
	s := k.running[name]
	k.mu.Unlock()
	if s == nil {
		return
	}
	s.cancel()
	s.init.end()
	<-s.done
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.running, name)
}

// setKilled ends the container of a pod for good if dead is true, and otherwise lets it run again.
func (k *kubelet) setKilled(uid types.UID, dead bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.killed[uid] = dead
}

// partition disconnects a host and the pod that replaces it from the API server, or reconnects
// them.
func (k *kubelet) partition(name string, off bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.offline[name] = off
	if s := k.running[name]; s != nil {
		s.setDisconnected(off)
	}
}

// clientWithToken returns a client with the given service account token.
func (f *sim) clientWithToken(token string) (client.Client, error) {
	config := rest.AnonymousClientConfig(f.rest)
	config.BearerToken = token
	return client.New(config, client.Options{Scheme: v1alpha1.Scheme()})
}
