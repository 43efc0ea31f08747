package pool

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"hinit/kubernetes/api/v1alpha1"
)

func newTestProfile(onDelete string) *v1alpha1.AgentProfile {
	return &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "fleet", UID: "c"}, Spec: v1alpha1.AgentProfileSpec{Pool: "agents", OnDelete: onDelete}}
}

func read(t *testing.T, from map[string]any, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from, into, true); err != nil {
		t.Fatal(err)
	}
}

// TestAPodOfItsOwnIsThePodOfAHost compares both kinds of such a pod with a host. They differ in a label and in the claim of the
// volume.
func TestAPodOfItsOwnIsThePodOfAHost(t *testing.T) {
	host, template := setOf(t, newTestPool(), 3)
	want := host.Spec.Template.DeepCopy()
	want.Labels[v1alpha1.ProfileLabel] = "coder"
	name := SinglePodName("agents", "coder")
	want.Spec.Volumes = append(want.Spec.Volumes, corev1.Volume{
		Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + name}},
	})
	for _, sandbox := range []bool{false, true} {
		objects, err := SinglePodObjects(newTestPool(), newTestProfile("Retain"), sandbox)
		if err != nil || len(objects) != 2 {
			t.Fatal(err, objects)
		}
		volume, maker := objects[0], objects[1]
		if volume.GetName() != "data-"+name || len(volume.GetOwnerReferences()) > 0 {
			t.Errorf("%+v", volume)
		}
		got := &corev1.PodTemplateSpec{}
		if sandbox {
			text, _, _ := unstructured.NestedMap(maker.Object, "spec", "podTemplate")
			read(t, text, got)
		} else {
			set := &appsv1.StatefulSet{}
			read(t, maker.Object, set)
			got = &set.Spec.Template
			if set.Name+"-0" != name || *set.Spec.Replicas != 1 || set.Spec.Selector.MatchLabels[v1alpha1.ProfileLabel] != "coder" || len(set.Spec.VolumeClaimTemplates) > 0 {
				t.Errorf("%+v", set)
			}
		}
		if sandbox && maker.GetName() != name {
			t.Errorf("the Sandbox is %s", maker.GetName())
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("sandbox %v:\ngot  %+v\nwant %+v", sandbox, got, want)
		}
		if is, _ := Updated(newTestPool(), template, &got.Spec); !is {
			t.Error("the pod counts as old")
		}
		if owner := metav1.GetControllerOf(maker); owner == nil || owner.Kind != "AgentPool" || maker.GetLabels()[v1alpha1.PoolLabel] != "agents" || maker.GetLabels()[v1alpha1.ProfileLabel] != "coder" {
			t.Errorf("%+v", maker.Object["metadata"])
		}
	}
}

// TestAVolumeGoesWithItsProfileWhereThatIsWanted checks that the claim has an owner only with onDelete: Delete.
func TestAVolumeGoesWithItsProfileWhereThatIsWanted(t *testing.T) {
	objects, err := SinglePodObjects(newTestPool(), newTestProfile("Delete"), true)
	if err != nil {
		t.Fatal(err)
	}
	if owners := objects[0].GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "AgentProfile" || owners[0].UID != "c" {
		t.Errorf("%+v", owners)
	}
}

func TestNamesOfPodsAreTheirProfilesAlone(t *testing.T) {
	long, seen := strings.Repeat("p", 40), []string{"a-b-0", "a-b-c-0"} // Joined names would be equal in the pools a-b and a-b-c.
	for _, c := range [][2]string{{"a", "b"}, {"a", "b-c"}, {"a-b", "c"}, {long, strings.Repeat("x", 63)}, {long, strings.Repeat("x", 62) + "y"}, {"a", "b" + strings.Repeat("-", 60) + "c"}} {
		name := SinglePodName(c[0], c[1])
		if slices.Contains(seen, name) || len(name) > 54 || !strings.HasPrefix(name, c[0]+"-"+c[1][:1]) || !strings.HasSuffix(name, "-0") {
			t.Errorf("%q: %s", c, name)
		}
		seen = append(seen, name)
	}
	if got := SinglePodName("agents", "coder"); got != "agents-coder-"+got[13:21]+"-0" {
		t.Error(got)
	}
}

// TestTheBudgetOfAPoolLeavesPodsOfOneProfileOut checks that the disruption budget selects no pod of
// a Sandbox. Such a pod would block all evictions.
func TestTheBudgetOfAPoolLeavesPodsOfOneProfileOut(t *testing.T) {
	objects, _, err := Objects(newTestPool(), 1)
	if err != nil {
		t.Fatal(err)
	}
	set, _ := setOf(t, newTestPool(), 1)
	for _, o := range objects {
		if o.GetKind() != "PodDisruptionBudget" {
			continue
		}
		d := &policyv1.PodDisruptionBudget{}
		read(t, o.Object, d)
		selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		one := labels.Merge(set.Spec.Template.Labels, labels.Set{v1alpha1.ProfileLabel: "coder"})
		if !selector.Matches(labels.Set(set.Spec.Template.Labels)) || selector.Matches(one) {
			t.Errorf("%s", selector)
		}
		return
	}
	t.Error("there is no budget")
}
