package controller

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
)

// roundSimulation simulates a controller that observes one pod and its Lease, round after round.
type roundSimulation struct {
	seen observations
	now  time.Time
	pod  corev1.Pod
}

func newRoundSimulation() *roundSimulation {
	r := &roundSimulation{now: time.Now()}
	r.pod.UID, r.pod.Status.Phase = "one", corev1.PodRunning
	return r
}

// simulate simulates a round after the duration after. The pod's clock shows renewed at its last
// renewal of the Lease.
func (r *roundSimulation) simulate(after time.Duration, renewed time.Time) (trouble string, replacing, heard bool) {
	r.now = r.now.Add(after)
	v := &view{observations: &r.seen, now: r.now}
	r.seen.begin()
	defer r.seen.end()
	seconds, uid, at := int32(270), string(r.pod.UID), metav1.NewMicroTime(renewed)
	last := v.evaluateLease("pool-0", &coordinationv1.LeaseSpec{HolderIdentity: &uid, LeaseDurationSeconds: &seconds, RenewTime: &at})
	trouble, replacing = v.unusableReason(&r.pod, last)
	return trouble, replacing, last.renewed
}

// TestAHostWhoseClockIsOffIsNotLost checks hosts whose clocks differ from the controller's by an hour. A host that
// reports must not be lost, and a host that has ended must be.
func TestAHostWhoseClockIsOffIsNotLost(t *testing.T) {
	for name, off := range map[string]time.Duration{"behind": -time.Hour, "ahead": time.Hour, "right": 0} {
		r := newRoundSimulation()
		clock := r.now.Add(off)
		for range 10 {
			clock = clock.Add(90 * time.Second)
			if trouble, _, _ := r.simulate(90*time.Second, clock); trouble != "" {
				t.Fatalf("%s: it reports and has trouble: %s", name, trouble)
			}
		}
		if trouble, _, heard := r.simulate(4*time.Minute, clock); trouble != "" || !heard {
			t.Errorf("%s: trouble %q too early, heard %v", name, trouble, heard)
		}
		if trouble, replacing, _ := r.simulate(time.Minute, clock); trouble != "its hinit-fleet does not report" || replacing {
			t.Errorf("%s: after five minutes: %q, replacing %v", name, trouble, replacing)
		}
		if trouble, _, _ := r.simulate(time.Second, clock.Add(-time.Hour)); trouble != "" { // The host's clock was set back by an hour.
			t.Errorf("%s: it reports again and has trouble: %s", name, trouble)
		}
	}
}

// TestANewControllerTakesNoOldLeaseForASignOfLife checks that a new controller does not report a
// host as back because it finds an old Lease, which is not renewed.
func TestANewControllerTakesNoOldLeaseForASignOfLife(t *testing.T) {
	r := newRoundSimulation()
	old := r.now.Add(-time.Hour)
	for range 4 {
		if trouble, _, heard := r.simulate(time.Minute, old); trouble != "" || heard {
			t.Fatalf("trouble %q, heard %v", trouble, heard)
		}
	}
	if trouble, _, heard := r.simulate(2*time.Minute, old); trouble == "" || heard {
		t.Errorf("trouble %q, heard %v", trouble, heard)
	}
	if trouble, _, heard := r.simulate(time.Second, old.Add(time.Second)); trouble != "" || !heard {
		t.Errorf("after a renewal: trouble %q, heard %v", trouble, heard)
	}
}

// TestTheEndOfAPodIsMeasuredHere checks that the grace period of a deleted pod counts by the controller's clock. The
// time of deletion is from the clock of an API server, which is an hour late.
func TestTheEndOfAPodIsMeasuredHere(t *testing.T) {
	r := newRoundSimulation()
	at, grace := metav1.NewTime(r.now.Add(-time.Hour)), int64(60)
	r.pod.DeletionTimestamp, r.pod.DeletionGracePeriodSeconds = &at, &grace
	for _, after := range []time.Duration{time.Second, 80 * time.Second} {
		if trouble, replacing, _ := r.simulate(after, r.now); trouble != "its pod is being replaced" || !replacing {
			t.Errorf("%q, replacing %v", trouble, replacing)
		}
	}
	if trouble, replacing, _ := r.simulate(11*time.Second, r.now); trouble != "its pod does not end" || replacing {
		t.Errorf("%q, replacing %v", trouble, replacing)
	}
}

// TestAHostThatRestartsForTooLongIsLost checks that a host counts as lost if its pod was recreated
// and waits too long for its volume.
func TestAHostThatRestartsForTooLongIsLost(t *testing.T) {
	seen, now := &observations{}, time.Now()
	overdue := func(after time.Duration, hosts ...placement.Host) bool {
		now = now.Add(after)
		v := &view{observations: seen, now: now, hosts: hosts}
		seen.begin()
		defer seen.end()
		return v.overdue("pool-0")
	}
	starts := placement.Host{Name: "pool-0", WhyUnusable: "its pod starts", Replacing: true}
	if overdue(0) || overdue(restartLimit, starts) || !overdue(time.Second, starts) || !overdue(time.Second) {
		t.Error("a host that is away is not lost after the limit, or before")
	}
	ends := starts
	ends.Serving = true // The host waits for the end of an answer, because rollout.whenIdle is set.
	if overdue(time.Second, ends) || overdue(0, starts) || overdue(restartLimit, starts) {
		t.Error("a host that has answered meanwhile is lost")
	}
}

// TestAPoolIsSpareByTheClockOfThisController checks that this controller measures by its own clock for how long a host has been
// spare.
func TestAPoolIsSpareByTheClockOfThisController(t *testing.T) {
	v := &view{pool: &v1alpha1.AgentPool{}, state: &poolState{}, observations: &observations{}, now: time.Now()}
	if in, _ := decisionInput(v); !in.SpareSince.IsZero() {
		t.Errorf("spare since %s, and this controller has seen nothing yet", in.SpareSince)
	}
	v.observations.begin()
	v.observations.observe(spareKey, "", v.now)
	v.observations.end()
	if in, _ := decisionInput(v); !in.SpareSince.Equal(v.now) {
		t.Errorf("spare since %s", in.SpareSince)
	}
}
