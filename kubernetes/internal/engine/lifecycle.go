package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"hinit/internal/pause"
	"hinit/sandbox"
)

func shortID(id string) string { return id[:min(12, len(id))] }

// List implements [sandbox.Engine].
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]sandbox.Container, error) {
	defer withRequestTimeout(&ctx)()
	selector := labelID
	if home := labels[sandbox.LabelVolume]; home != "" {
		selector += "," + labelHome + "=" + home
	}
	records, err := e.records(ctx, selector)
	if err != nil {
		return nil, apiError("list sandboxes", err)
	}
	var out []sandbox.Container
	for _, r := range records {
		if r.hasLabels(labels) {
			out = append(out, r.container())
		}
	}
	return out, nil
}

// records returns all containers whose labels match selector.
func (e *Engine) records(ctx context.Context, selector string) ([]*record, error) {
	pods, err := e.core.CoreV1().Pods(e.settings.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	out, err := e.sandboxes(ctx, selector)
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		r, ok := recordOfPod(&pods.Items[i])
		if !ok {
			continue
		}
		at := slices.IndexFunc(out, func(other *record) bool { return other.id == r.id })
		switch {
		case at < 0:
			out = append(out, r)
		// During a replacement both pods may exist, so use the new one.
		case out[at].pod == nil, out[at].pod.DeletionTimestamp != nil:
			out[at].pod = r.pod
		}
	}
	return out, nil
}

// findRecord returns a container by its id, by the first digits of its id (at least 12), or by its name.
func (e *Engine) findRecord(ctx context.Context, ref string) (*record, error) {
	defer withRequestTimeout(&ctx)()
	what := "inspect the sandbox " + shortID(ref)
	selector := labelID
	// Look for the id first, because a name may look like an id.
	if _, err := hex.DecodeString(ref); err == nil && len(ref) == idLength {
		selector += "=" + ref
	}
	records, err := e.records(ctx, selector)
	if err != nil {
		return nil, apiError(what, err)
	}
	for _, r := range records {
		if r.id == ref || r.name == ref || len(ref) >= 12 && len(r.id) >= len(ref) && r.id[:len(ref)] == ref {
			return r, nil
		}
	}
	e.mu.Lock()
	why := e.goneReasons[ref]
	e.mu.Unlock()
	if why != "" {
		return nil, &sandbox.GoneError{What: what, Why: why}
	}
	return nil, fmt.Errorf("cannot %s: %w", what, sandbox.ErrGone)
}

// Inspect implements [sandbox.Engine].
func (e *Engine) Inspect(ctx context.Context, id string) (sandbox.Container, error) {
	r, err := e.findRecord(ctx, id)
	if err != nil {
		return sandbox.Container{}, err
	}
	e.rememberReason(r)
	return r.container(), nil
}

// maxGoneReasons limits the number of containers for which the engine remembers why they have disappeared.
const maxGoneReasons = 4096

// rememberReason remembers why a container disappears, so that [Engine.Inspect] can report it when the pod no longer exists.
func (e *Engine) rememberReason(r *record) {
	if r.pod == nil || r.pod.DeletionTimestamp == nil && r.pod.Status.Phase != corev1.PodFailed {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.goneReasons) >= maxGoneReasons {
		clear(e.goneReasons)
	}
	if c := r.container(); c.Reason != "" {
		e.goneReasons[r.id] = c.Reason
	}
}

// idLength is the length of a container's id in hexadecimal digits.
const idLength = 32

// Create implements [sandbox.Engine].
func (e *Engine) Create(ctx context.Context, spec sandbox.Spec) (string, error) {
	what := "create the sandbox " + spec.Name
	if err := checkSpec(&spec); err != nil {
		return "", apiError(what, err)
	}
	id := make([]byte, idLength/2)
	_, _ = rand.Read(id) // ignore the result: rand.Read never fails
	r := &record{id: hex.EncodeToString(id), name: spec.Name, spec: spec, created: time.Now()}
	spec.Entrypoint = slices.Clone(spec.Entrypoint)
	pod, err := e.buildPod(ctx, r)
	if err != nil {
		return "", apiError(what, err)
	}
	defer withRequestTimeout(&ctx)()
	kind, err := e.objectKind(ctx)
	switch {
	case err != nil:
	case kind == "Sandbox":
		claimed := false
		if claimed, err = e.createClaim(ctx, r, pod); !claimed && err == nil {
			err = e.createSandbox(ctx, pod)
		}
	default:
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: startGate}}
		_, err = e.core.CoreV1().Pods(e.settings.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	}
	return r.id, apiError(what, err)
}

// Start implements [sandbox.Engine]. It returns when the container is running.
func (e *Engine) Start(ctx context.Context, id string) error {
	r, err := e.findRecord(ctx, id)
	if err != nil {
		return err
	}
	what := "start the sandbox " + r.name
	switch c := r.container(); {
	case c.State == sandbox.Running:
		return nil
	case c.State == sandbox.Removing && r.object == nil, c.State == sandbox.Dead:
		return fmt.Errorf("cannot %s: %w: %s", what, sandbox.ErrGone, c.Reason)
	case r.claim != nil:
		err = e.bind(ctx, r)
	case r.object != nil:
		err = e.resume(ctx, r, c)
	case c.State == sandbox.Exited:
		err = e.replace(ctx, r)
	default:
		err = e.ungate(ctx, r)
	}
	if err == nil {
		err = e.awaitRunning(ctx, r.id, r.object == nil && r.claim == nil)
	}
	return apiError(what, err)
}

// ungate removes the scheduling gate of a pod, so that the cluster starts it.
func (e *Engine) ungate(ctx context.Context, r *record) error {
	if len(r.pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	defer withRequestTimeout(&ctx)()
	patch := []byte(`{"spec":{"schedulingGates":null}}`)
	_, err := e.core.CoreV1().Pods(e.settings.Namespace).Patch(ctx, r.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// replace creates the pod of an ended container again, because a pod can't be started twice.
func (e *Engine) replace(ctx context.Context, r *record) error {
	if err := e.deletePod(ctx, r.pod); err != nil {
		return err
	}
	renewHelperPath(r)
	pod, err := e.buildPod(ctx, r)
	if err != nil {
		return err
	}
	defer withRequestTimeout(&ctx)()
	_, err = e.core.CoreV1().Pods(e.settings.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // Another caller has already created the pod.
	}
	return err
}

func (e *Engine) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil {
		return nil
	}
	pods := e.core.CoreV1().Pods(e.settings.Namespace)
	grace := int64(1)
	options := metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	ask, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := pods.Delete(ask, pod.Name, options); apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // The pod is already gone; another pod may have its name.
	} else if err != nil {
		return err
	}
	return e.await(ctx, fields.OneTermEqualSelector("metadata.name", pod.Name).String(), "", func(now *corev1.Pod) (bool, error) {
		return now == nil || now.UID != pod.UID, nil
	})
}

// awaitRunning waits until a container runs. It returns an error as soon as it is certain that the container can't start. If
// final is true, no controller replaces a deleted pod, so awaitRunning does not wait for another one.
func (e *Engine) awaitRunning(ctx context.Context, id string, final bool) error {
	why := "the cluster has not made the pod"
	err := e.await(ctx, "", labelID+"="+id, func(pod *corev1.Pod) (bool, error) {
		switch {
		case final && pod == nil:
			return false, fmt.Errorf("%w: its pod was deleted", sandbox.ErrGone)
		case final && pod.DeletionTimestamp != nil:
			return false, fmt.Errorf("%w: %s", sandbox.ErrGone, deletionReason(pod))
		case pod == nil || pod.DeletionTimestamp != nil:
			return false, nil
		}
		var c sandbox.Container
		fillState(&c, pod)
		switch c.State {
		case sandbox.Running:
			return true, nil
		case sandbox.Exited:
			if text, err := waitReason(pod); err != nil {
				return false, fmt.Errorf("%w (%s)", err, text)
			}
			return false, fmt.Errorf("it ended at once with exit code %d: %s", c.ExitCode, c.Reason)
		default:
		}
		var bad error
		if why, bad = waitReason(pod); bad != nil {
			return false, bad
		}
		return false, nil
	})
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: it does not run in time: %s%s", sandbox.ErrNoEngine, why, e.lastEvent(context.WithoutCancel(ctx), id))
	}
	return err
}

// lastEvent returns the last warning event about a container's pod. Only an event says what a node could not mount or create.
func (e *Engine) lastEvent(ctx context.Context, id string) string {
	defer withRequestTimeout(&ctx)()
	pods, err := e.core.CoreV1().Pods(e.settings.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labelID + "=" + id})
	if err != nil || len(pods.Items) == 0 {
		return ""
	}
	if text := e.failureEvent(ctx, &pods.Items[0]); text != "" {
		return "; " + text
	}
	return ""
}

func (e *Engine) failureEvent(ctx context.Context, pod *corev1.Pod) string {
	defer withRequestTimeout(&ctx)()
	options := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.uid": string(pod.UID), "type": corev1.EventTypeWarning}.String()}
	events, err := e.core.CoreV1().Events(e.settings.Namespace).List(ctx, options)
	if err != nil {
		return ""
	}
	list := slices.DeleteFunc(events.Items, func(event corev1.Event) bool { return !strings.HasPrefix(event.Reason, "Failed") })
	if len(list) == 0 {
		return ""
	}
	last := slices.MaxFunc(list, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return last.Reason + ": " + last.Message
}

// await calls done with the pod that matches the selectors, or with nil if no pod matches. It
// repeats the call after each change, until done returns true or an error.
func (e *Engine) await(ctx context.Context, field, label string, done func(*corev1.Pod) (bool, error)) error {
	pods := e.core.CoreV1().Pods(e.settings.Namespace)
	options := metav1.ListOptions{FieldSelector: field, LabelSelector: label}
	for {
		list, err := pods.List(ctx, options)
		var events watch.Interface
		if err == nil {
			var first *corev1.Pod
			for i := range list.Items {
				if first == nil || first.DeletionTimestamp != nil {
					first = &list.Items[i]
				}
			}
			if ok, err := done(first); ok || err != nil {
				return err
			}
			from := options
			from.ResourceVersion = list.ResourceVersion
			events, err = pods.Watch(ctx, from)
		}
		if err == nil {
			ok, err := followEvents(ctx, events, done)
			events.Stop()
			if ok || err != nil {
				return err
			}
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// followEvents calls done for each event until done returns true or an error. It returns false when the stream of events
// ends.
func followEvents(ctx context.Context, events watch.Interface, done func(*corev1.Pod) (bool, error)) (bool, error) {
	for {
		select {
		case event, open := <-events.ResultChan():
			pod, is := event.Object.(*corev1.Pod)
			if !open || !is {
				return false, nil
			}
			if event.Type == watch.Deleted {
				pod = nil
			}
			if ok, err := done(pod); ok || err != nil {
				return ok, err
			}
		case <-ctx.Done():
			return false, nil
		}
	}
}

// Unpause implements [sandbox.Engine]. It does nothing, because a pod is never paused.
func (e *Engine) Unpause(context.Context, string) error { return nil }

// Stop implements [sandbox.Engine]. A pod always has two seconds to end, so grace only limits how long Stop waits. The
// container's files outside of mounts are lost.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	r, err := e.findRecord(ctx, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, grace+2*requestTimeout)
	defer cancel()
	what := "stop the sandbox " + r.name
	if c := r.container(); c.State == sandbox.Exited || r.claim != nil ||
		c.State == sandbox.Created && r.object == nil && len(r.pod.Spec.SchedulingGates) > 0 {
		return nil
	}
	if r.object != nil {
		return apiError(what, e.suspend(ctx, r))
	}
	// The node ends a pod with a short deadline, while the pod's object stays.
	patch := []byte(`{"spec":{"activeDeadlineSeconds":1}}`)
	_, err = e.core.CoreV1().Pods(e.settings.Namespace).Patch(ctx, r.pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		err = e.await(ctx, fields.OneTermEqualSelector("metadata.name", r.pod.Name).String(), "", func(pod *corev1.Pod) (bool, error) {
			return pod == nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded, nil
		})
	}
	return apiError(what, err)
}

// Remove implements [sandbox.Engine].
func (e *Engine) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*requestTimeout)
	defer cancel()
	r, err := e.findRecord(ctx, id)
	switch {
	case errors.Is(err, sandbox.ErrGone):
		return nil
	case err != nil:
		return err
	case r.object != nil, r.claim != nil:
		err = e.removeSandbox(ctx, r)
	default:
		err = e.deletePod(ctx, r.pod)
	}
	e.mu.Lock()
	delete(e.lastUsed, r.id)
	delete(e.goneReasons, r.id)
	e.mu.Unlock()
	return apiError("remove the sandbox "+r.name, err)
}

// Rename implements [sandbox.FullEngine]. It always returns an error, because an object of a cluster can't be renamed.
func (e *Engine) Rename(_ context.Context, id, _ string) error {
	return apiError("rename the sandbox "+shortID(id), unsupported("objects of a cluster keep their names"))
}
