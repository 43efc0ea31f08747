package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hinit/kubernetes/internal/cluster"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }

// sharedCluster is the shared cluster of all tests in the package.
type sharedCluster struct {
	*cluster.Cluster
	nodes     map[int]*cluster.Node
	readyTime time.Duration // Time from the start of the cluster until the first node was Ready.
}

var startSharedCluster = sync.OnceValues(func() (*sharedCluster, error) {
	began := time.Now()
	c, left, err := cluster.Start(context.Background())
	if err != nil {
		return nil, err
	}
	w := &sharedCluster{Cluster: c, nodes: map[int]*cluster.Node{}}
	if c == nil {
		return &sharedCluster{Cluster: &cluster.Cluster{WhyNoNodes: left}}, nil
	}
	if c.WhyNoNodes != "" {
		return w, nil
	}
	if w.nodes[1], err = c.StartNode(context.Background(), 1); err != nil {
		return nil, err
	}
	w.readyTime = time.Since(began)
	return w, nil
})

// withServer returns the cluster, or skips the test if not even an API server runs.
func withServer(t *testing.T) *testBed {
	t.Helper()
	w, err := startSharedCluster()
	if err != nil {
		t.Fatal(err)
	}
	if w.Bin == "" {
		t.Skip(w.WhyNoNodes)
	}
	return &testBed{TB: t, sharedCluster: w, ns: "default"}
}

// manifestNamespace is the namespace that the manifests use.
const manifestNamespace = "agents"

// withNode returns the cluster with a node and a namespace for restricted pods. The namespace is
// removed or emptied after the test.
func withNode(t *testing.T, namespace string) *testBed {
	t.Helper()
	b := withServer(t)
	if b.WhyNoNodes != "" {
		t.Skip(b.WhyNoNodes)
	}
	b.ns = namespace
	if namespace != manifestNamespace {
		b.apply(&corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}},
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			fmt.Fprintln(os.Stderr, b.run("get", "all,events,pvc").output)
			fmt.Fprintln(os.Stderr, b.run("describe", "pods").output)
			fmt.Fprintln(os.Stderr, b.run("logs", "--all-pods", "--prefix", "-l", "app.kubernetes.io/part-of=hinit").output)
		}
		b.mustRun("delete", "statefulsets,pods", "--all", "--grace-period=1", "--timeout=3m")
		if namespace == manifestNamespace {
			b.deleteObjects()
			return
		}
		b.mustRun("delete", "namespace", namespace, "--wait=false") // No other test uses this namespace, so don't wait.
	})
	return b
}

// deleteObjects deletes the objects in the namespace.
func (b *testBed) deleteObjects() {
	b.mustRun("delete", "services,configmaps,secrets,serviceaccounts,persistentvolumeclaims,roles,rolebindings,networkpolicies,poddisruptionbudgets,leases",
		// Skip two objects that the controller creates itself.
		"--field-selector=metadata.name!=default,metadata.name!=kube-root-ca.crt", "--timeout=3m")
}

// testBed gives one test access to the cluster, in a namespace.
type testBed struct {
	testing.TB
	*sharedCluster
	ns string
}

// result is the output and the exit code of a command.
type result struct {
	args     []string
	output   string // Text of both output streams.
	exitCode int
}

func (r result) String() string {
	return fmt.Sprintf("kubectl %s: code %d\n%s", strings.Join(r.args, " "), r.exitCode, r.output)
}

func (b *testBed) run(words ...string) result { return b.runWithInput("", words...) }

// runWithInput runs kubectl like try, with the given standard input.
func (b *testBed) runWithInput(input string, words ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := b.Kubectl(ctx, append([]string{"--namespace", b.ns}, words...)...)
	cmd.Stdin = strings.NewReader(input)
	out, _ := cmd.CombinedOutput() // An error means only that the exit code is not 0.
	return result{words, string(out), cmd.ProcessState.ExitCode()}
}

// mustRun runs kubectl and returns its output. It ends the test if the exit code is not 0.
func (b *testBed) mustRun(words ...string) string {
	b.Helper()
	r := b.run(words...)
	if r.exitCode != 0 {
		b.Fatal(r)
	}
	return r.output
}

func (b *testBed) apply(objects ...any) {
	b.Helper()
	var all bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(&all, "---\n%s", text)
	}
	if r := b.runWithInput(all.String(), "apply", "-f", "-"); r.exitCode != 0 {
		b.Fatal(r, all.String())
	}
}

// eventually polls cond until it returns "", for at most three minutes. cond returns what is missing.
func (b *testBed) eventually(what string, cond func() string) {
	b.Helper()
	missing := ""
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); {
		began := time.Now()
		if missing = cond(); missing == "" {
			return
		}
		// Each call of kubectl takes 0.1 s of processor time, so the pause grows with it.
		<-time.After(max(50*time.Millisecond, time.Since(began)))
	}
	b.Fatalf("not %s: %s", what, missing)
}

// consistently checks for the duration span that cond keeps returning "". cond returns what is wrong.
func (b *testBed) consistently(span time.Duration, cond func() string) {
	b.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if problem := cond(); problem != "" {
			b.Fatal(problem)
		}
	}
}

func (b *testBed) pod(name string) *corev1.Pod {
	b.Helper()
	p := &corev1.Pod{}
	if err := b.Get(context.Background(), "/api/v1/namespaces/"+b.ns+"/pods/"+name, p); err != nil && !cluster.NotFound(err) {
		b.Logf("the pod %s: %v", name, err)
	}
	return p
}

func isPodReady(p *corev1.Pod) bool { return condition(p, corev1.PodReady) }

func condition(p *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// awaitReady waits until a pod is Ready, and returns it. Pods in old, which have the same name,
// don't count.
func (b *testBed) awaitReady(name string, old ...*corev1.Pod) *corev1.Pod {
	b.Helper()
	var p *corev1.Pod
	b.eventually(name+" Ready", func() string {
		p = b.pod(name)
		if !isPodReady(p) || len(old) > 0 && old[0].UID == p.UID {
			return fmt.Sprintf("%s %+v", p.Status.Phase, p.Status.Conditions)
		}
		return ""
	})
	return p
}

// restarts returns how often the container of a pod was restarted.
func restarts(p *corev1.Pod) int32 {
	if len(p.Status.ContainerStatuses) == 0 {
		return 0
	}
	return p.Status.ContainerStatuses[0].RestartCount
}

// volumes creates the default StorageClass and n volumes. Each volume is a directory on both nodes, owned by root.
func (b *testBed) volumes(n int, mode corev1.PersistentVolumeAccessMode) []string {
	b.Helper()
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	objects := []any{&storagev1.StorageClass{
		TypeMeta:    metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "StorageClass"},
		ObjectMeta:  metav1.ObjectMeta{Name: "local", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait,
	}}
	if err := os.MkdirAll("/run/volumes", 0o755); err != nil {
		b.Fatal(err)
	}
	var dirs []string
	for range n {
		dir, err := os.MkdirTemp("/run/volumes", b.ns+"-") // The directory's name is also the volume's name.
		if err != nil {
			b.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		dirs = append(dirs, dir)
		name := filepath.Base(dir)
		objects = append(objects, &corev1.PersistentVolume{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
				StorageClassName: "local", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{"node1", "node2"}}},
				}}}},
			},
		})
	}
	b.apply(objects...)
	b.Cleanup(func() {
		for _, dir := range dirs {
			b.mustRun("delete", "persistentvolume", filepath.Base(dir), "--wait=false")
		}
	})
	return dirs
}

func (b *testBed) execInPod(pod string, words ...string) result {
	return b.run(append([]string{"exec", pod, "--"}, words...)...)
}

// startSecondNode starts the second node, which all tests share.
func (b *testBed) startSecondNode() {
	b.Helper()
	if b.nodes[2] != nil {
		return
	}
	node, err := b.StartNode(context.Background(), 2)
	if err != nil {
		b.Fatal(err)
	}
	b.nodes[2] = node
}
