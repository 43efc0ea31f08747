package pool

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/deploy"
)

func newTestPool(change ...func(*v1alpha1.AgentPool)) *v1alpha1.AgentPool {
	p := &v1alpha1.AgentPool{ObjectMeta: metav1.ObjectMeta{Name: "agents", Namespace: "fleet", UID: "u"}, Spec: v1alpha1.AgentPoolSpec{
		Image: "agent:1", MemoryBound: 80, TopologyKey: "kubernetes.io/hostname", Rollout: v1alpha1.Rollout{IdleSeconds: 90},
		Resources: v1alpha1.HostResources{Memory: resource.MustParse("1Gi"), CPU: resource.MustParse("1")}, ProfileMemory: resource.MustParse("64Mi"),
	}}
	for _, c := range change {
		c(p)
	}
	return p
}

func setOf(t *testing.T, p *v1alpha1.AgentPool, hosts int) (*appsv1.StatefulSet, string) {
	t.Helper()
	objects, template, err := Objects(p, hosts)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() == "StatefulSet" {
			set := &appsv1.StatefulSet{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, set, true); err != nil {
				t.Fatal(err)
			}
			return set, template
		}
	}
	t.Fatal("no StatefulSet")
	return nil, ""
}

// TestAHostIsThePodOfTheManifests compares the limits and the health checks of a host with those in the manifests.
func TestAHostIsThePodOfTheManifests(t *testing.T) {
	manifests, err := deploy.Render(deploy.WithDefaults(nil))
	if err != nil {
		t.Fatal(err)
	}
	one := &appsv1.StatefulSet{}
	for _, m := range manifests {
		if m.File == "pod.yaml" {
			err = yaml.UnmarshalStrict(m.Text, one)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	host, _ := setOf(t, newTestPool(), 3)
	a, b := one.Spec.Template.Spec, host.Spec.Template.Spec
	for what, same := range map[string]bool{
		"the security of the pod":       reflect.DeepEqual(a.SecurityContext, b.SecurityContext),
		"the security of the container": reflect.DeepEqual(a.Containers[0].SecurityContext, b.Containers[0].SecurityContext),
		"the probes": reflect.DeepEqual(a.Containers[0].LivenessProbe, b.Containers[0].LivenessProbe) &&
			reflect.DeepEqual(a.Containers[0].ReadinessProbe, b.Containers[0].ReadinessProbe) && reflect.DeepEqual(a.Containers[0].StartupProbe, b.Containers[0].StartupProbe),
	} {
		if !same {
			t.Errorf("a host differs from the pod of the manifests in %s", what)
		}
	}
	if *host.Spec.Replicas != 3 || host.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
		t.Errorf("%+v", host.Spec)
	}
}

// TestAnAgentHasNoTokenOfItsHost checks the mounts of the agents' container, and everything that it shares with the host's
// container.
func TestAnAgentHasNoTokenOfItsHost(t *testing.T) {
	set, _ := setOf(t, newTestPool(), 1)
	pod := set.Spec.Template.Spec
	if pod.ShareProcessNamespace != nil || *pod.AutomountServiceAccountToken || len(pod.Containers) != 1 || len(pod.InitContainers) != 1 {
		t.Fatalf("%+v", pod)
	}
	tokens := map[string]bool{}
	for _, v := range pod.Volumes {
		tokens[v.Name] = v.Projected != nil
	}
	mounts := func(c *corev1.Container) (out []string) {
		for _, m := range c.VolumeMounts {
			if tokens[m.Name] {
				out = append(out, m.MountPath)
			}
		}
		return out
	}
	if has := mounts(&pod.Containers[0]); len(has) > 0 {
		t.Errorf("the agents have the tokens in %q", has)
	}
	if has := mounts(&pod.InitContainers[0]); !slices.Equal(has, []string{CredentialsDir}) || *pod.InitContainers[0].RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("the host has the tokens in %q", has)
	}
}

// TestOnlyHostsOfItsPoolReachAHost checks the rules of a pool's NetworkPolicy.
func TestOnlyHostsOfItsPoolReachAHost(t *testing.T) {
	policy := func(p *v1alpha1.AgentPool) *networkingv1.NetworkPolicy {
		objects, _, err := Objects(p, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.GetKind() == "NetworkPolicy" {
				n := &networkingv1.NetworkPolicy{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, n, true); err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		return nil
	}
	n := policy(newTestPool(func(p *v1alpha1.AgentPool) { p.Spec.Network.APIServer = "10.0.0.1/32" }))
	set, _ := setOf(t, newTestPool(), 1)
	for key, value := range n.Spec.PodSelector.MatchLabels {
		if set.Spec.Template.Labels[key] != value {
			t.Errorf("a host has no label %s=%s", key, value)
		}
	}
	in := n.Spec.Ingress
	if len(in) != 1 || len(in[0].From) != 1 || !reflect.DeepEqual(in[0].From[0].PodSelector, &n.Spec.PodSelector) || len(in[0].Ports) != 1 || in[0].Ports[0].Port.IntValue() != MovePort {
		t.Errorf("from outside: %+v", in)
	}
	if last := n.Spec.Egress[len(n.Spec.Egress)-1]; last.To[0].IPBlock.CIDR != "10.0.0.1/32" {
		t.Errorf("the API server: %+v", last)
	}
	no := false
	if policy(newTestPool(func(p *v1alpha1.AgentPool) { p.Spec.Network.Policy = &no })) != nil {
		t.Error("a NetworkPolicy is made that is not wanted")
	}
}

// TestOnlyAChangeOfTheTemplateIsARollout checks that a change of the number of hosts replaces no pod.
func TestOnlyAChangeOfTheTemplateIsARollout(t *testing.T) {
	_, one := setOf(t, newTestPool(), 1)
	if _, nine := setOf(t, newTestPool(), 9); nine != one {
		t.Error("another number of hosts is a rollout")
	}
	if _, next := setOf(t, newTestPool(func(p *v1alpha1.AgentPool) { p.Spec.Isolation = "files" }), 1); next == one {
		t.Error("another isolation is no rollout")
	}
	idle, _ := setOf(t, newTestPool(func(p *v1alpha1.AgentPool) { p.Spec.Rollout.WhenIdle = true }), 1)
	hook := idle.Spec.Template.Spec.Containers[0].Lifecycle
	if hook == nil || !reflect.DeepEqual(hook.PreStop.Exec.Command, []string{"hinit", "drain", "--timeout", "90s"}) || *idle.Spec.Template.Spec.TerminationGracePeriodSeconds != 120 {
		t.Errorf("whenIdle gives %+v", hook)
	}
}

// TestHostsAreSpreadAndEvictedOneByOne checks the other objects of a pool: a Service that gives each pod a name, and a disruption
// budget.
func TestHostsAreSpreadAndEvictedOneByOne(t *testing.T) {
	p := newTestPool(func(p *v1alpha1.AgentPool) {
		p.Spec.TopologyKey, p.Spec.Rollout.WhenIdle, p.Spec.Rollout.IdleSeconds = "topology.kubernetes.io/zone", true, 86400
	})
	set, _ := setOf(t, p, 3)
	spread := set.Spec.Template.Spec.TopologySpreadConstraints
	if len(spread) != 1 || spread[0].TopologyKey != "topology.kubernetes.io/zone" || spread[0].MaxSkew != 1 || spread[0].LabelSelector.MatchLabels[v1alpha1.PoolLabel] != "agents" {
		t.Errorf("%+v", spread)
	}
	objects, _, err := Objects(p, 3)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]any{}
	for _, o := range objects {
		for kind, field := range map[string]string{"Service": "clusterIP", "PodDisruptionBudget": "maxUnavailable"} {
			if o.GetKind() == kind {
				found[kind], _, _ = unstructured.NestedFieldNoCopy(o.Object, "spec", field)
			}
		}
	}
	if found["Service"] != "None" || fmt.Sprint(found["PodDisruptionBudget"]) != "1" || set.Spec.ServiceName != "agents" {
		t.Errorf("%v, %q", found, set.Spec.ServiceName)
	}
}

// TestOnlyAnImageIsExchangedInItsPod checks that only a change of the image keeps the pod. All other changes need
// another pod.
func TestOnlyAnImageIsExchangedInItsPod(t *testing.T) {
	set, _ := setOf(t, newTestPool(), 1)
	pod := set.Spec.Template.Spec
	next := func(p *v1alpha1.AgentPool) { p.Spec.Image = "agent:2" }
	variable := func(p *v1alpha1.AgentPool) { p.Spec.Env = map[string]string{"A": "b"} }
	for name, c := range map[string]struct {
		pool          *v1alpha1.AgentPool
		is, imageOnly bool
	}{
		"nothing": {newTestPool(), true, false}, "an image": {newTestPool(next), false, true}, "a variable": {newTestPool(variable), false, false}, "both": {newTestPool(next, variable), false, false},
	} {
		_, template := setOf(t, c.pool, 1)
		if is, imageOnly := Updated(c.pool, template, &pod); is != c.is || imageOnly != c.imageOnly {
			t.Errorf("another pool by %s: updated %v, but for the image %v", name, is, imageOnly)
		}
	}
	SetImage(&pod, "agent:2")
	if is, _ := Updated(newTestPool(next), templateOf(t, newTestPool(next)), &pod); !is {
		t.Error("a pod with its image exchanged is not the pool's")
	}
}

func templateOf(t *testing.T, p *v1alpha1.AgentPool) string {
	t.Helper()
	_, template := setOf(t, p, 1)
	return template
}

// TestAProfileCountsForTheMostThatIsKnown checks the memory that placement uses for a profile.
func TestAProfileCountsForTheMostThatIsKnown(t *testing.T) {
	q := func(text string) *resource.Quantity { v := resource.MustParse(text); return &v }
	for _, c := range []struct {
		expected, measured *resource.Quantity
		want               string
	}{{nil, nil, "64Mi"}, {q("10Mi"), nil, "10Mi"}, {nil, q("7Mi"), "7Mi"}, {q("10Mi"), q("70Mi"), "70Mi"}, {q("90Mi"), q("70Mi"), "90Mi"}} {
		p := &v1alpha1.AgentProfile{Spec: v1alpha1.AgentProfileSpec{Memory: c.expected}, Status: v1alpha1.AgentProfileStatus{Memory: c.measured}}
		if got := ReservedMemory(newTestPool(), p); got != q(c.want).Value() {
			t.Errorf("%v %v: %d", c.expected, c.measured, got)
		}
	}
	if got := HostMemory(newTestPool()); got != 1<<30/100*80 {
		t.Error(got)
	}
}

// TestLongListsOfNamesTakeNoRightOfOtherProfiles checks that the Role of a pool stays small enough for etcd, whatever
// profiles name. Otherwise the API server refused it, and the hosts could read nothing for any new profile.
func TestLongListsOfNamesTakeNoRightOfOtherProfiles(t *testing.T) {
	var all []*v1alpha1.AgentProfile
	for i := range 60 {
		p := &v1alpha1.AgentProfile{}
		for j := range 64 {
			name := fmt.Sprintf("%0253d", 100*i+j)
			p.Spec.Skills = append(p.Spec.Skills, v1alpha1.Skill{ConfigMap: name})
			p.Spec.Files = append(p.Spec.Files, v1alpha1.ProfileFile{Secret: name})
		}
		all = append(all, p)
	}
	coder := &v1alpha1.AgentProfile{}
	coder.Spec.Soul, coder.Spec.Env = &v1alpha1.ConfigMapKey{ConfigMap: "souls"}, []v1alpha1.SecretName{{Secret: "coder-keys"}}
	all = append(all, coder)
	configMaps, secrets, leftOut := Sources(slices.Values(all))
	if n := len(strings.Join(slices.Concat(configMaps, secrets), "")); n > maxNameBytes || n < maxNameBytes/2 || leftOut == 0 || leftOut > 40 {
		t.Errorf("%d bytes of names, and %d profiles are left out", n, leftOut)
	}
	if !slices.Contains(configMaps, "souls") || !slices.Contains(secrets, "coder-keys") || !slices.IsSorted(secrets) {
		t.Error("a profile with few names is left out")
	}
}
