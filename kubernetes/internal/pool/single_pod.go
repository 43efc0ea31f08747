package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/deploy"
)

// Sandbox is a kind of the project agent-sandbox. If the cluster has it, Sandboxes create the pods of single profiles; otherwise
// StatefulSets do.
var Sandbox = schema.GroupVersionKind{Group: "agents.x-k8s.io", Version: "v1beta1", Kind: "Sandbox"}

const (
	firstPodSuffix = "-0" // Suffix of the name of a StatefulSet's first pod.
	maxNameLength  = 43   // Longest name; the hash and Kubernetes' suffixes extend it to 63 characters.
)

// SinglePodName returns the name of the pod for a single profile. A StatefulSet or a Sandbox creates this pod. The name contains a
// hash, because the names of another pool and another profile may join to the same text.
func SinglePodName(pool, profile string) string {
	name := pool + "-" + profile
	sum := sha256.Sum256([]byte(pool + "/" + profile))
	return strings.TrimRight(name[:min(len(name), maxNameLength)], "-") + "-" + hex.EncodeToString(sum[:4]) + firstPodSuffix
}

// SinglePodObjects returns the objects for the pod of a single profile: the PersistentVolumeClaim, then a Sandbox or a
// StatefulSet. The volume outlives the pod. With onDelete: Delete, the claim is deleted together with the profile.
func SinglePodObjects(p *v1alpha1.AgentPool, profile *v1alpha1.AgentProfile, sandbox bool) ([]*unstructured.Unstructured, error) {
	manifests, err := deploy.Render(deploy.WithDefaults(valuesOf(p)))
	if err != nil {
		return nil, fmt.Errorf("cannot make the pod of profile %q: %w", profile.Name, err)
	}
	for _, m := range manifests {
		if m.File == "pod.yaml" {
			return singlePodObjects(p, profile, sandbox, m.Text)
		}
	}
	return nil, fmt.Errorf("cannot make the pod of profile %q: there is no manifest of a pod", profile.Name)
}

func singlePodObjects(p *v1alpha1.AgentPool, profile *v1alpha1.AgentProfile, sandbox bool, text []byte) ([]*unstructured.Unstructured, error) {
	set, _, err := hostTemplate(p, text)
	if err != nil {
		return nil, err
	}
	name := SinglePodName(p.Name, profile.Name)
	data := dataClaim(p)
	data.Name = dataVolume + "-" + name
	pod := &set.Spec.Template
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: dataVolume, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: data.Name}},
	})
	one := int32(1)
	set.Name, set.Spec.Replicas = strings.TrimSuffix(name, firstPodSuffix), &one
	for _, labels := range []map[string]string{set.Labels, pod.Labels, set.Spec.Selector.MatchLabels, data.Labels} {
		labels[v1alpha1.ProfileLabel] = profile.Name
	}
	volume, err := toUnstructured(&data)
	if err != nil {
		return nil, err
	}
	volume.SetNamespace(p.Namespace)
	if profile.Spec.OnDelete == "Delete" {
		volume.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "AgentProfile", Name: profile.Name, UID: profile.UID,
		}})
	}
	maker, err := toUnstructured(set)
	if err == nil && sandbox {
		maker, err = sandboxOf(name, set.Labels, pod)
	}
	if err != nil {
		return nil, err
	}
	return []*unstructured.Unstructured{volume, ownedBy(p, maker)}, nil
}

// sandboxOf returns a Sandbox with the given pod template.
func sandboxOf(name string, labels map[string]string, pod *corev1.PodTemplateSpec) (*unstructured.Unstructured, error) {
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(template, "metadata", "creationTimestamp")
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"podTemplate": template}}}
	u.SetGroupVersionKind(Sandbox)
	u.SetName(name)
	u.SetLabels(labels)
	return u, nil
}
