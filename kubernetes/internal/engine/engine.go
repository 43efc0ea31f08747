package engine

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hinit/sandbox"
	"hinit/sandbox/policy"
)

// Engine runs containers on a Kubernetes cluster. Several goroutines may use it.
type Engine struct {
	settings    Settings
	core        kubernetes.Interface
	objects     dynamic.Interface
	logf        func(format string, args ...any) // Function that reports messages to the operator.
	programPath string                           // Path of this program in its image.

	probeMutex sync.Mutex // Serialises test pods, see [Engine.haveUserNamespaces].

	mu             sync.Mutex
	ownInfo        *ownPodInfo
	kind           string               // Kind of new containers; "" until the engine knows it.
	userNamespaces *bool                // Whether pods get user namespaces (hostUsers: false); nil until the engine knows it.
	goneReasons    map[string]string    // Reasons why containers disappeared, by container ID.
	lastUsed       map[string]time.Time // Time at which a container last sent or received data, by container ID.
}

var _ sandbox.Cluster = (*Engine)(nil)

// ownPodInfo describes the pod of this process.
type ownPodInfo struct {
	pod    *corev1.Pod
	image  string
	claims map[string]bool // PersistentVolumeClaims of the pod by name. The value is true if pods on other nodes can also mount the claim.
}

// New returns an engine for a cluster. It does not connect yet. The function say tells the operator what the cluster can't
// do, and what the engine does without a request.
func New(s Settings, say func(format string, args ...any)) (*Engine, error) {
	e := &Engine{settings: s, logf: say, goneReasons: map[string]string{}, lastUsed: map[string]time.Time{}}
	if s.HostUsers != "" {
		mapped := s.HostUsers == "false"
		e.userNamespaces = &mapped
	}
	e.kind = s.Kind
	config := rest.CopyConfig(s.API)
	var err error
	if e.programPath, err = os.Executable(); err != nil {
		return nil, err
	}
	if e.core, err = kubernetes.NewForConfig(config); err == nil {
		e.objects, err = dynamic.NewForConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	return e, nil
}

// requestTimeout limits a single request to the API server.
const requestTimeout = 10 * time.Second

func withRequestTimeout(ctx *context.Context) (cancel context.CancelFunc) {
	*ctx, cancel = context.WithTimeout(*ctx, requestTimeout)
	return cancel
}

// Close implements [sandbox.Engine]. It does nothing.
func (e *Engine) Close() error { return nil }

// Info implements [sandbox.Engine].
func (e *Engine) Info(ctx context.Context) (sandbox.Info, error) {
	defer withRequestTimeout(&ctx)()
	text, err := e.core.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return sandbox.Info{}, apiError("ask the cluster what it is", err)
	}
	var version struct{ GitVersion string }
	if err := decode(string(text), &version); err != nil {
		return sandbox.Info{}, apiError("ask the cluster what it is", err)
	}
	return sandbox.Info{Version: version.GitVersion, API: "1.41", OS: "linux", Arch: runtime.GOARCH, Driver: "kubernetes"}, nil
}

// Image implements [sandbox.Engine]. It returns nothing, because only the nodes know which images they have. Nothing is
// missed, because a sandbox does not run its image's entry point.
func (e *Engine) Image(context.Context, string) (sandbox.Image, error) { return sandbox.Image{}, nil }

// Pull implements [sandbox.Engine]. It does nothing: the node pulls the image when the container starts.
func (e *Engine) Pull(context.Context, string) error { return nil }

// gateVolume is the name of the volume with the helper. In each pod, this volume is an emptyDir.
const gateVolume = policy.GatePrefix + "pod"

// GateVolume implements [sandbox.Cluster].
func (e *Engine) GateVolume() string { return gateVolume }

// claimsDir is the prefix of a path that stands for a file on a PersistentVolumeClaim: /claims/CLAIM/PATH.
const claimsDir = "/claims/"

// Self implements [sandbox.Cluster]. The mounts of the result are the PersistentVolumeClaims of this process's container.
func (e *Engine) Self(ctx context.Context) (sandbox.Container, error) {
	if e.settings.Pod == "" {
		return sandbox.Container{}, nil
	}
	o, err := e.ownPod(ctx)
	if err != nil {
		return sandbox.Container{}, err
	}
	c := sandbox.Container{ID: string(o.pod.UID), Name: o.pod.Name, Image: o.image}
	claims := map[string]string{}
	for _, v := range o.pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			claims[v.Name] = v.PersistentVolumeClaim.ClaimName
		}
	}
	for _, m := range containerOf(o.pod, e.settings.Container).VolumeMounts {
		if claim := claims[m.Name]; claim != "" && m.SubPathExpr == "" {
			source := claimsDir + claim
			if m.SubPath != "" {
				source += "/" + m.SubPath
			}
			c.Mounts = append(c.Mounts, sandbox.Mount{Type: "bind", Source: source, Target: m.MountPath, ReadOnly: m.ReadOnly})
		}
	}
	return c, nil
}

func containerOf(pod *corev1.Pod, name string) corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range list {
			if c.Name == name {
				return c
			}
		}
	}
	return corev1.Container{}
}

// mountOf returns the mount of a container that contains the path at. It returns nil if the path is in the image.
func mountOf(c corev1.Container, at string) *corev1.VolumeMount {
	var out *corev1.VolumeMount
	for i, m := range c.VolumeMounts {
		dir := path.Clean(m.MountPath)
		if (dir == at || strings.HasPrefix(at, dir+"/")) && (out == nil || len(dir) > len(path.Clean(out.MountPath))) {
			out = &c.VolumeMounts[i]
		}
	}
	return out
}

// checkSharedConfiguration returns an error unless all containers that can reach the service's socket have the same hinit.yaml as
// this container. That file says which profiles are isolated, and an isolated profile must get no sandbox. If the socket is
// in the abstract namespace, every container of the pod can reach it.
func (s *Settings) checkSharedConfiguration(pod *corev1.Pod) error {
	self := containerOf(pod, s.Container)
	socket := mountOf(self, s.Paths.socket)
	reaches := func(c corev1.Container) bool {
		return strings.HasPrefix(s.Paths.socket, "@") ||
			socket != nil && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == socket.Name })
	}
	named := func(c corev1.Container) []corev1.EnvVar {
		return slices.DeleteFunc(slices.Clone(c.Env), func(v corev1.EnvVar) bool { return v.Name != configVar })
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if c.Name == self.Name || !reaches(c) {
			continue
		}
		own, other := mountOf(self, s.Paths.config), mountOf(c, s.Paths.config)
		same := own == nil && other == nil && self.Image == c.Image
		if own != nil && other != nil {
			same = own.Name == other.Name && own.MountPath == other.MountPath && own.SubPath == other.SubPath && own.SubPathExpr == other.SubPathExpr
		}
		if !same || !equality.Semantic.DeepEqual(named(self), named(c)) {
			return fmt.Errorf("cannot tell whether profiles are isolated: the container %s may have another %s than the container %s; give both the same mount and %s",
				c.Name, s.Paths.config, self.Name, configVar)
		}
	}
	return nil
}

// ownPod returns the pod of this process. It asks the API server once and keeps the answer.
func (e *Engine) ownPod(ctx context.Context) (*ownPodInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ownInfo != nil {
		return e.ownInfo, nil
	}
	if e.settings.Pod == "" {
		e.ownInfo = &ownPodInfo{pod: &corev1.Pod{}, image: e.settings.Image}
		return e.ownInfo, nil
	}
	defer withRequestTimeout(&ctx)()
	pod, err := e.core.CoreV1().Pods(e.settings.Namespace).Get(ctx, e.settings.Pod, metav1.GetOptions{})
	if err != nil {
		return nil, apiError("ask for this pod, "+e.settings.Pod, err)
	}
	self := containerOf(pod, e.settings.Container)
	o := &ownPodInfo{pod: pod, image: cmp.Or(e.settings.Image, self.Image), claims: map[string]bool{}}
	if self.Name == "" {
		return nil, fmt.Errorf("cannot find the container %s in the pod %s; set %sCONTAINER", e.settings.Container, e.settings.Pod, prefix)
	}
	if err := e.settings.checkSharedConfiguration(pod); err != nil {
		return nil, err
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		claim, err := e.core.CoreV1().PersistentVolumeClaims(e.settings.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, apiError("ask for the claim "+name, err)
		}
		o.claims[name] = false
		for _, mode := range claim.Spec.AccessModes {
			o.claims[name] = o.claims[name] || mode == corev1.ReadWriteMany
		}
	}
	e.ownInfo = o
	return o, nil
}

// owner returns the owner reference for all objects that the engine creates. When the owner is deleted, the cluster deletes
// the objects. The reference marks the owner as controller, because kubectl drain would otherwise need --force.
func (e *Engine) owner(ctx context.Context) ([]metav1.OwnerReference, error) {
	if e.settings.Owner == "" {
		return nil, nil
	}
	defer withRequestTimeout(&ctx)()
	m, err := e.core.CoreV1().ConfigMaps(e.settings.Namespace).Get(ctx, e.settings.Owner, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, unsupported("there is no ConfigMap %s, which owns all sandboxes; see %sOWNER", e.settings.Owner, prefix)
	}
	if err != nil {
		return nil, apiError("ask for the owner of sandboxes, "+e.settings.Owner, err)
	}
	controls := true
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: m.Name, UID: m.UID, Controller: &controls}}, nil
}
