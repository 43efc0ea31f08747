package engine

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"hinit/kubernetes/internal/cluster"
	"hinit/sandbox"
)

func TestMain(m *testing.M) { os.Exit(cluster.MainServer(m)) }

// newServerEngine returns an engine on a real API server, without nodes.
func newServerEngine(t *testing.T) *Engine {
	t.Helper()
	c, left, err := cluster.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c == nil {
		t.Skip(left)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Config)
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Settings{
		Namespace: "sandboxes", Image: "hinit", Owner: "owner", HostUsers: "true", API: config, VolumeSize: resource.MustParse("1Gi"), Disk: resource.MustParse("2Gi"), CPU: resource.MustParse("10m"), Memory: resource.MustParse("64Mi"),
	}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sandboxes", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err = e.core.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Without a controller manager, the test creates the service account itself.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err = e.core.CoreV1().ServiceAccounts("sandboxes").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestOnAnAPIServer checks all engine calls that need no node against a real API server.
func TestOnAnAPIServer(t *testing.T) {
	e := newServerEngine(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	spec := sandbox.Spec{
		Name: "hermes-1", Image: "debian:12", Cmd: []string{"sleep", "infinity"}, User: "10000:10000", Init: true, Memory: 64 << 20, CPUs: 0.5,
		Labels: map[string]string{"hermes-agent": "1", "hermes-task-id": "_of any kind!", sandbox.LabelVolume: "0123456789abcdef"},
		Mounts: []sandbox.Mount{{Type: "tmpfs", Target: "/tmp", Options: "size=64m"}},
	}
	if _, err := e.Create(ctx, spec); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "ConfigMap owner") {
		t.Error("without an owner:", err)
	}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}
	if _, err := e.core.CoreV1().ConfigMaps("sandboxes").Create(ctx, owner, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.checkEndedProbesRemoved(t)
	id, err := e.Create(ctx, spec)
	if err != nil {
		t.Fatal("a restricted namespace takes it not:", err)
	}
	if _, err := e.Create(ctx, spec); !errors.Is(err, sandbox.ErrNameTaken) {
		t.Error("a second of the name:", err)
	}
	for _, ref := range []string{id, id[:12], "hermes-1"} {
		if c, err := e.Inspect(ctx, ref); err != nil || c.ID != id || c.State != sandbox.Created || c.Labels["hermes-task-id"] != "_of any kind!" || len(c.Mounts) != 2 {
			t.Errorf("%s: %+v, %v", ref, c, err)
		}
	}
	for label, want := range map[string]int{"1": 1, "": 1, "2": 0} {
		if list, err := e.List(ctx, map[string]string{"hermes-agent": label}); err != nil || len(list) != want {
			t.Errorf("label %q: %v, %v", label, list, err)
		}
	}
	if list, err := e.List(ctx, map[string]string{sandbox.LabelVolume: "another"}); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	short, done := context.WithTimeout(ctx, 2*time.Second)
	defer done()
	if err := e.Start(short, id); !errors.Is(err, sandbox.ErrNoEngine) || !strings.Contains(err.Error(), "does not run in time: the pod waits for a node") {
		t.Error("a start without a node:", err)
	}
	if _, err := e.Exec(ctx, id, sandbox.ExecSpec{Argv: []string{"true"}}); err == nil {
		t.Error("a command runs in what does not run")
	}
	root := spec
	root.Name, root.User = "hermes-2", ""
	if _, err := e.Create(ctx, root); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "user namespaces") {
		t.Error("root inside:", err)
	}
	host := spec
	host.Name, host.Mounts = "hermes-3", []sandbox.Mount{{Type: "bind", Source: "/etc", Target: "/x"}}
	if _, err := e.Create(ctx, host); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "no path of a node is mounted") {
		t.Error("a path of the node:", err)
	}
	capable := spec
	capable.Name, capable.CapAdd = "hermes-4", []string{"SYS_ADMIN"}
	if _, err := e.Create(ctx, capable); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Error("a capability in a restricted namespace:", err)
	}

	if err := e.CreateVolume(ctx, "hinit-private-A_b-1", map[string]string{"a": "b"}); err != nil {
		t.Fatal(err)
	}
	if err := e.CreateVolume(ctx, "hinit-private-A_b-1", nil); err != nil {
		t.Error("it is there already:", err)
	}
	if list, err := e.Volumes(ctx, "hinit-private-", map[string]string{"a": "b"}); err != nil || len(list) != 1 || list[0].Name != "hinit-private-A_b-1" {
		t.Error(list, err)
	}
	private := spec
	private.Name, private.Mounts = "hermes-5", []sandbox.Mount{{Type: "volume", Source: "hinit-private-A_b-1", Target: "/root"}}
	if _, err := e.Create(ctx, private); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveVolume(ctx, "hinit-private-A_b-1"); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "hermes-5 has it") {
		t.Error("a volume that a sandbox has:", err)
	}
	pods, err := e.core.CoreV1().Pods("sandboxes").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if len(p.OwnerReferences) != 1 || p.OwnerReferences[0].Name != "owner" || *p.Spec.AutomountServiceAccountToken || p.Spec.Containers[0].SecurityContext.RunAsUser == nil {
			t.Errorf("%+v", p)
		}
		if err := e.core.CoreV1().Pods("sandboxes").Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Error(err)
		}
	}
	if err := e.Remove(ctx, id); err != nil {
		t.Error("one that is gone:", err)
	}
	if _, err := e.Inspect(ctx, id); !errors.Is(err, sandbox.ErrGone) {
		t.Error(err)
	}
}

// TestAnAPIServerThatDoesNotAnswer checks that containers don't seem to be gone while the API
// server does not answer.
func TestAnAPIServerThatDoesNotAnswer(t *testing.T) {
	s, err := ReadSettings(func(name string) string {
		return map[string]string{hostVar: "127.0.0.1", portVar: "1", prefix + "IMAGE": "x", prefix + "NAMESPACE": "n", prefix + "KIND": "Pod"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	s.API.BearerTokenFile, s.API.CAFile = "", ""
	e, err := New(s, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"list": func() error { _, err := e.List(t.Context(), nil); return err }(), "inspect": func() error { _, err := e.Inspect(t.Context(), "x"); return err }(),
		"info": func() error { _, err := e.Info(t.Context()); return err }(), "remove": e.Remove(t.Context(), "x"), "start": e.Start(t.Context(), "x"),
	} {
		if !errors.Is(err, sandbox.ErrNoEngine) || errors.Is(err, sandbox.ErrGone) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// checkEndedProbesRemoved checks that the engine removes test pods of a killed service.
func (e *Engine) checkEndedProbesRemoved(t *testing.T) {
	t.Helper()
	ctx, pods, no := t.Context(), e.core.CoreV1().Pods("sandboxes"), false
	yes, profile := true, &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	for name, phase := range map[string]corev1.PodPhase{"failed": corev1.PodFailed, "succeeded": corev1.PodSucceeded, "running": corev1.PodRunning} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{labelProbe: "true"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "x", Image: "x", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes, SeccompProfile: profile, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}}}}
		pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase = phase
		if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		now  time.Time
		left int
	}{{time.Now(), 3}, {time.Now().Add(probeTimeout + time.Minute), 1}} {
		err := e.deleteEndedProbes(ctx, c.now)
		list, err2 := pods.List(ctx, metav1.ListOptions{LabelSelector: labelProbe})
		if err != nil || err2 != nil || len(list.Items) != c.left {
			t.Errorf("%d test pods are left, not %d: %v", len(list.Items), c.left, errors.Join(err, err2))
		}
	}
	if err := pods.Delete(ctx, "running", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
