package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/internal/pause"
	"hinit/sandbox"
)

// CodeUnmapped is the exit code of `hinit-sandbox-kubernetes users` in a pod without a user namespace.
const CodeUnmapped = 3

// Mapped reports whether this process runs in a user namespace in which root is another user outside.
func Mapped() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	words := strings.Fields(string(text))
	return err == nil && len(words) >= 3 && (words[0] != "0" || words[1] != "0")
}

// probeTimeout is how long the test pod may take to start and end.
const probeTimeout = 40 * time.Second

// haveUserNamespaces reports whether pods get user namespaces. The first call runs a test pod to find that out, and blocks
// until the result is known. The test pod mounts the claims of this process, because some file systems can't be mounted in a
// user namespace.
func (e *Engine) haveUserNamespaces(ctx context.Context) (bool, error) {
	e.probeMutex.Lock()
	defer e.probeMutex.Unlock()
	e.mu.Lock()
	known := e.userNamespaces
	e.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	o, err := e.ownPod(ctx)
	if err != nil {
		return false, err
	}
	mapped, why, err := e.probe(ctx, o)
	if err != nil {
		return false, apiError("find out whether pods get users of their own", err)
	}
	if mapped {
		e.logf("sandboxes have users of their own (hostUsers: false): root inside is nobody outside")
	} else {
		e.logf("sandboxes have no users of their own (hostUsers: false is not possible here): %s", why)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.userNamespaces = &mapped
	return mapped, nil
}

// unmappable matches the event of a node that can't give a user namespace to a pod.
var unmappable = regexp.MustCompile(`FailedCreatePodSandBox|user namespace|idmap`)

// probe runs a test pod with hostUsers: false. mapped is true if the pod got a user namespace. Otherwise why tells the
// operator the reason.
func (e *Engine) probe(ctx context.Context, o *ownPodInfo) (mapped bool, why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	r := &record{id: "", name: "hinit-sandbox-users-" + strings.ToLower(rand.Text()[:8]), spec: sandbox.Spec{User: "65532:65532"}}
	s, err := securityOf(&r.spec, true)
	if err != nil {
		return false, "", err
	}
	grace, most := int64(0), int64(probeTimeout/time.Second)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: r.name, Namespace: e.settings.Namespace, Labels: map[string]string{managedBy: "hinit-sandbox", labelNetwork: "none", labelProbe: "true"},
	}}
	pod.Spec = e.podSpec(r, s, hostUsers(true))
	pod.Spec.TerminationGracePeriodSeconds, pod.Spec.ActiveDeadlineSeconds, pod.Spec.Volumes = &grace, &most, nil
	pod.Spec.Containers = []corev1.Container{{
		Name: mainContainerName, Image: o.image, ImagePullPolicy: corev1.PullPolicy(e.settings.PullPolicy), Command: []string{e.programPath, "users"}, SecurityContext: s.helper,
	}}
	main := &pod.Spec.Containers[0]
	for name := range o.claims {
		id := fmt.Sprintf("claim-%d", len(pod.Spec.Volumes))
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: id, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: true},
		}})
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: id, MountPath: claimsDir + name, ReadOnly: true})
		if !o.claims[name] {
			pod.Spec.Affinity = sameNode(o.pod)
		}
	}
	if e.settings.Runtime != "" {
		pod.Spec.RuntimeClassName = &e.settings.Runtime
	}
	if pod.OwnerReferences, err = e.owner(ctx); err != nil {
		return false, "", err
	}
	pods := e.core.CoreV1().Pods(e.settings.Namespace)
	if pod, err = pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return false, "", err
	}
	if pod.Spec.HostUsers == nil {
		why = "the API server does not know hostUsers"
	}
	// Ignore the error: deleteEndedProbes deletes the pod later.
	defer func() { _ = pods.Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{}) }()
	for why == "" && pause.For(ctx, 300*time.Millisecond) {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		if ended := mainStatus(now).State.Terminated; ended != nil {
			return ended.ExitCode == 0, fmt.Sprintf("the pod has the users of its node (exit code %d)", ended.ExitCode), nil
		}
		if text, bad := waitReason(now); bad != nil {
			why = text
		} else if text := e.failureEvent(ctx, now); unmappable.MatchString(text) {
			why = text
		}
	}
	if why == "" {
		why = "the pod that tried it did not run in time " + e.failureEvent(context.WithoutCancel(ctx), pod)
	}
	return false, why, nil
}

// deleteEndedProbes deletes the test pods of services that were killed while they waited for the result. A test pod ends by
// its deadline, probeTimeout after its start. No service waits longer than that.
func (e *Engine) deleteEndedProbes(ctx context.Context, now time.Time) error {
	pods := e.core.CoreV1().Pods(e.settings.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: labelProbe})
	if err != nil {
		return err
	}
	for _, p := range list.Items {
		if ended := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded; ended && now.Sub(p.CreationTimestamp.Time) > probeTimeout {
			if gone := pods.Delete(ctx, p.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(gone) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}
