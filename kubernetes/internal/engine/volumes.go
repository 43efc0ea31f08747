package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/sandbox"
)

// ObjectName returns the name of the Kubernetes object for the container or volume with this docker name. It is a hash of the
// docker name, which an agent has chosen. That name itself could be invalid for Kubernetes, or equal to the name of the next
// pod of the agents.
func ObjectName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "hinit-sandbox-" + hex.EncodeToString(sum[:8])
}

// Volumes implements [sandbox.Engine].
func (e *Engine) Volumes(ctx context.Context, prefix string, labels map[string]string) ([]sandbox.Volume, error) {
	defer withRequestTimeout(&ctx)()
	list, err := e.core.CoreV1().PersistentVolumeClaims(e.settings.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labelVolume})
	if err != nil {
		return nil, apiError("list volumes", err)
	}
	var out []sandbox.Volume
	for _, claim := range list.Items {
		var v sandbox.Volume
		if claim.DeletionTimestamp != nil || decode(claim.Annotations[annotationVolume], &v) != nil || !strings.HasPrefix(v.Name, prefix) {
			continue
		}
		v.Created = claim.CreationTimestamp.Time
		if r := (&record{spec: sandbox.Spec{Labels: v.Labels}}); r.hasLabels(labels) {
			out = append(out, v)
		}
	}
	return out, nil
}

// CreateVolume implements [sandbox.FullEngine].
func (e *Engine) CreateVolume(ctx context.Context, name string, labels map[string]string) error {
	what := "make the volume " + name
	owner, err := e.owner(ctx)
	if err != nil {
		return apiError(what, err)
	}
	note, err := json.Marshal(sandbox.Volume{Name: name, Labels: labels})
	if err != nil {
		return apiError(what, err)
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: ObjectName(name), OwnerReferences: owner, Annotations: map[string]string{annotationVolume: string(note)},
			Labels: map[string]string{labelVolume: "true", managedBy: "hinit-sandbox"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: e.settings.VolumeSize}},
		},
	}
	if e.settings.StorageClass != "" {
		claim.Spec.StorageClassName = &e.settings.StorageClass
	}
	defer withRequestTimeout(&ctx)()
	_, err = e.core.CoreV1().PersistentVolumeClaims(e.settings.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return apiError(what, err)
}

// RemoveVolume implements [sandbox.FullEngine]. It fails while a container mounts the volume.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	defer withRequestTimeout(&ctx)()
	what := "remove the volume " + name
	records, err := e.records(ctx, labelID)
	if err != nil {
		return apiError(what, err)
	}
	for _, r := range records {
		for _, m := range r.spec.Mounts {
			if m.Type == "volume" && m.Source == name {
				return apiError(what, unsupported("the sandbox %s has it", r.name))
			}
		}
	}
	return apiError(what, e.core.CoreV1().PersistentVolumeClaims(e.settings.Namespace).Delete(ctx, ObjectName(name), metav1.DeleteOptions{}))
}
