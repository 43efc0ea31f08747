package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hinit/sandbox"
)

// Labels and annotations of the objects that the engine creates.
const (
	labelID           = "hinit.dev/sandbox"      // ID of a container.
	labelName         = "hinit.dev/name"         // Name of the container in docker commands.
	labelVolume       = "hinit.dev/volume"       // "true" on the PersistentVolumeClaim of a docker volume.
	labelHome         = "hinit.dev/installation" // Installation to which the container belongs, the value of sandbox.LabelVolume.
	labelNetwork      = "hinit.dev/network"      // Network of the pod (none, default or a name), which NetworkPolicies select.
	labelProbe        = "hinit.dev/probe"        // "true" on a test pod, see [Engine.probe]
	labelPool         = "hinit.dev/pool"         // "true" on a warm pool and its template
	managedBy         = "app.kubernetes.io/managed-by"
	annotationSpec    = "hinit.dev/spec" // sandbox.Spec of the container, as JSON
	annotationCreated = "hinit.dev/created"
	annotationVolume  = "hinit.dev/volume"
	startGate         = "hinit.dev/start" // Scheduling gate that keeps a pod from starting before [Engine.Start].

	mainContainerName = "sandbox" // name of the main container in each pod
)

// record is one container, with the objects that the cluster has for it.
type record struct {
	id, name string
	spec     sandbox.Spec
	created  time.Time
	pod      *corev1.Pod                // Pod of the container; nil if it has none.
	object   *unstructured.Unstructured // Sandbox of the container; nil for a plain pod.
	claim    *unstructured.Unstructured // Claim of the container; nil once the claim has a Sandbox.
}

func decode(text string, into any) error { return json.Unmarshal([]byte(text), into) }

// recordOf makes a record from the labels and annotations of an object. ok is false if the engine did not create the object.
func recordOf(o metav1.Object) (r *record, ok bool) {
	r = &record{id: o.GetLabels()[labelID]}
	if r.id == "" || decode(o.GetAnnotations()[annotationSpec], &r.spec) != nil {
		return r, false
	}
	r.name = cmp.Or(r.spec.Name, o.GetName())
	r.created = parseTime(o.GetAnnotations()[annotationCreated], o.GetCreationTimestamp().Time)
	return r, true
}

func recordOfPod(pod *corev1.Pod) (r *record, ok bool) {
	r, ok = recordOf(pod)
	r.pod = pod
	return r, ok
}

func parseTime(text string, otherwise time.Time) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return otherwise
	}
	return t
}

// hasLabels reports whether the container has all these labels. The value "" matches any value.
func (r *record) hasLabels(labels map[string]string) bool {
	for name, value := range labels {
		if got, set := r.spec.Labels[name]; !set || value != "" && got != value {
			return false
		}
	}
	return true
}

// mainStatus returns the status of the main container in a pod. It returns the zero value if the pod does not report one.
func mainStatus(pod *corev1.Pod) corev1.ContainerStatus {
	at := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == mainContainerName })
	if at < 0 {
		return corev1.ContainerStatus{}
	}
	return pod.Status.ContainerStatuses[at]
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if at < 0 {
		return corev1.PodCondition{}
	}
	return pod.Status.Conditions[at]
}

func (r *record) container() sandbox.Container {
	c := sandbox.Container{
		ID: r.id, Name: r.name, Image: r.spec.Image, Labels: maps.Clone(r.spec.Labels), Created: r.created, User: r.spec.User,
		Mounts: slices.Clone(r.spec.Mounts), Dir: r.spec.Labels[sandbox.LabelDir],
	}
	switch {
	case r.pod != nil:
		fillState(&c, r.pod)
	case r.claim != nil && r.claim.GetDeletionTimestamp() != nil, r.object != nil && r.object.GetDeletionTimestamp() != nil:
		c.State = sandbox.Removing
	case r.claim == nil && isSuspended(r.object) && r.object.GetAnnotations()[annotationStopped] != "":
		c.State, c.Finished = sandbox.Exited, parseTime(r.object.GetAnnotations()[annotationStopped], r.created)
		c.Reason = "the sandbox is suspended"
	case r.claim != nil, isSuspended(r.object):
		c.State = sandbox.Created
	default:
		c.State, c.Reason = sandbox.Restarting, "the pod is gone, and the cluster makes another: "+objectReason(r.object)
	}
	return c
}

// fillState sets the fields of c that describe the state of a pod.
func fillState(c *sandbox.Container, pod *corev1.Pod) {
	s := mainStatus(pod)
	ended := s.State.Terminated
	switch {
	case pod.DeletionTimestamp != nil:
		c.State, c.Reason = sandbox.Removing, deletionReason(pod)
	case len(pod.Spec.SchedulingGates) > 0:
		c.State = sandbox.Created
	case ended != nil, pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		c.State, c.Finished = sandbox.Exited, pod.CreationTimestamp.Time
		if ended != nil {
			c.ExitCode, c.OOMKilled, c.Finished = int(ended.ExitCode), ended.Reason == "OOMKilled", cmp.Or(ended.FinishedAt.Time, c.Finished)
		}
		c.Reason = endReason(pod, ended)
	case s.State.Running != nil && nodeLost(pod):
		c.State = sandbox.Dead
		c.Reason = fmt.Sprintf("the node %s, on which the pod %s ran, does not answer the cluster any more", pod.Spec.NodeName, pod.Name)
		c.Finished = condition(pod, corev1.PodReady).LastTransitionTime.Time
	case s.State.Running != nil:
		c.State, c.Started = sandbox.Running, startTime(pod, s.State.Running.StartedAt.Time)
	default:
		c.State = sandbox.Created
		c.Reason, _ = waitReason(pod)
	}
}

// startTime returns the start time of the container. The cluster reports whole seconds, so
// startTime adds a fraction of a second derived from the pod's UID. Callers need different start
// times to distinguish two runs of a container.
func startTime(pod *corev1.Pod, at time.Time) time.Time {
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.UID)) // ignore the error: writing to a hash never fails
	return at.Add(time.Duration(h.Sum32() % 1e9))
}

// nodeLost reports whether the cluster has lost contact with the pod's node. The control plane then
// sets Ready to false, while ContainersReady keeps the last value from the node.
func nodeLost(pod *corev1.Pod) bool {
	return condition(pod, corev1.PodReady).Status == corev1.ConditionFalse && condition(pod, corev1.ContainersReady).Status == corev1.ConditionTrue
}

func deletionReason(pod *corev1.Pod) string {
	if c := condition(pod, corev1.DisruptionTarget); c.Status == corev1.ConditionTrue {
		return isDisrupted(pod, c)
	}
	return "the pod " + pod.Name + " was deleted"
}

func isDisrupted(pod *corev1.Pod, c corev1.PodCondition) string {
	switch c.Reason {
	case "EvictionByEvictionAPI":
		return fmt.Sprintf("the pod %s was evicted from the node %s, which is being drained", pod.Name, pod.Spec.NodeName)
	case "DeletionByTaintManager":
		return fmt.Sprintf("the pod %s was taken off the node %s: %s", pod.Name, pod.Spec.NodeName, c.Message)
	case "PreemptionByScheduler":
		return fmt.Sprintf("the pod %s made room on the node %s for a pod of a higher priority", pod.Name, pod.Spec.NodeName)
	}
	return fmt.Sprintf("the pod %s was taken off the node %s (%s): %s", pod.Name, pod.Spec.NodeName, c.Reason, c.Message)
}

// endReason returns the reason why a pod has ended, or "" if the exit code explains it.
func endReason(pod *corev1.Pod, ended *corev1.ContainerStateTerminated) string {
	disruption := condition(pod, corev1.DisruptionTarget)
	switch {
	case pod.Status.Reason == "DeadlineExceeded":
		return "the sandbox was stopped"
	case pod.Status.Reason == "Evicted":
		return fmt.Sprintf("the node %s evicted the pod %s: %s", pod.Spec.NodeName, pod.Name, strings.TrimSpace(pod.Status.Message))
	case disruption.Status == corev1.ConditionTrue:
		return isDisrupted(pod, disruption)
	case ended != nil && ended.Reason == "OOMKilled":
		return fmt.Sprintf("the container was killed because it ran out of memory (its limit is %s)", limitOf(pod))
	case ended != nil && ended.Reason != "Error" && ended.Reason != "Completed":
		return strings.TrimSpace(fmt.Sprintf("the container has ended with exit code %d (%s): %s", ended.ExitCode, ended.Reason, ended.Message))
	case ended == nil:
		return strings.TrimSpace(fmt.Sprintf("the pod %s has failed (%s): %s", pod.Name, pod.Status.Reason, pod.Status.Message))
	}
	return ""
}

func limitOf(pod *corev1.Pod) string {
	q := containerOf(pod, mainContainerName).Resources.Limits[corev1.ResourceMemory]
	if q.IsZero() {
		return "the node's memory"
	}
	return q.String()
}

// waitReason returns the reason why a pod waits. The error is not nil if the pod can't start, so that waiting is pointless.
func waitReason(pod *corev1.Pod) (why string, err error) {
	if c := condition(pod, corev1.PodScheduled); c.Status == corev1.ConditionFalse && c.Reason != "SchedulingGated" {
		return "no node takes the pod: " + c.Message, nil
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if ended := s.State.Terminated; ended != nil && ended.ExitCode != 0 {
			text := fmt.Sprintf("the container %s of the pod %s has failed with exit code %d: %s", s.Name, pod.Name, ended.ExitCode, ended.Message)
			return text, unsupported("%s", text)
		}
		w := s.State.Waiting
		if w == nil {
			continue
		}
		text := strings.TrimSpace(w.Reason + ": " + w.Message)
		switch w.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
			text = fmt.Sprintf("the image %s can't be pulled: %s", s.Image, text)
			return text, fmt.Errorf("%w: %s", sandbox.ErrNoImage, text)
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff":
			text = "the node can't start the container: " + text
			return text, unsupported("%s", text)
		case "PodInitializing", "ContainerCreating":
			why = cmp.Or(why, "the node makes the container")
		default:
			why = cmp.Or(why, text)
		}
	}
	return cmp.Or(why, "the pod waits for a node"), nil
}
