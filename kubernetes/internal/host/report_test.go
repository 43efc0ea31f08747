package host

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
)

// TestAProfileIsToldAsHinitStatusTellsIt checks the profile's status for each state of its gateway.
func TestAProfileIsToldAsHinitStatusTellsIt(t *testing.T) {
	code, signal := 3, 9
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	crash := &hinit.Exit{Code: &code, Cause: "crash", EndedAt: at}
	for _, c := range []struct {
		name    string
		service *hinit.Service
		wanted  bool
		phase   v1alpha1.Phase
		ready   bool
		message string
		cause   string
	}{
		{"none that is wanted", nil, true, v1alpha1.PhaseStarting, false, "", ""},
		{"none", nil, false, v1alpha1.PhaseStopped, false, "", ""},
		{"starting", &hinit.Service{State: hinit.StateStarting, Reason: "needs the network"}, true, v1alpha1.PhaseStarting, false, "needs the network", ""},
		{"up and not ready", &hinit.Service{State: hinit.StateUp}, true, v1alpha1.PhaseStarting, false, "", ""},
		{"ready", &hinit.Service{State: hinit.StateUp, Ready: true, Reason: "ordered"}, true, v1alpha1.PhaseRunning, true, "", ""},
		{"ready with a failing check", &hinit.Service{State: hinit.StateUp, Ready: true, Problem: "the check fails"}, true, v1alpha1.PhaseRunning, true, "the check fails", ""},
		{"ready after a crash", &hinit.Service{State: hinit.StateUp, Ready: true, LastExit: crash}, true, v1alpha1.PhaseRunning, true, "", "crash"},
		{"stopping", &hinit.Service{State: hinit.StateStopping}, false, v1alpha1.PhaseStopping, false, "", ""},
		{"killing", &hinit.Service{State: hinit.StateKilling}, false, v1alpha1.PhaseStopping, false, "", ""},
		{"down", &hinit.Service{State: hinit.StateDown, Want: hinit.WantDown, LastExit: &hinit.Exit{Signal: &signal, Cause: "operator", EndedAt: at}}, false, v1alpha1.PhaseStopped, false, "", "operator"},
		{"down that is wanted", &hinit.Service{State: hinit.StateDown}, true, v1alpha1.PhaseStarting, false, "", ""},
		{"backing off", &hinit.Service{State: hinit.StateBackoff, Reason: "next start in 4 s", LastExit: crash}, true, v1alpha1.PhaseBackoff, false, "next start in 4 s", "crash"},
		{"in a crash loop", &hinit.Service{State: hinit.StateBackoff, Reason: "next start in 5m", Problem: "crash loop: 5 exits", LastExit: crash}, true, v1alpha1.PhaseBackoff, false, "crash loop: 5 exits", "crash"},
		{"parked", &hinit.Service{State: hinit.StateParked, Reason: "config.yaml is wrong", LastExit: &hinit.Exit{Code: &code, Cause: "config", EndedAt: at}}, true, v1alpha1.PhaseParked, false, "config.yaml is wrong", "config"},
		{"shed", &hinit.Service{State: hinit.StateParked, Reason: "shed for memory", LastExit: &hinit.Exit{Signal: &signal, Cause: "shed", EndedAt: at}}, true, v1alpha1.PhaseParked, false, "shed for memory", "shed"},
		{"failed", &hinit.Service{State: hinit.StateFailed, Reason: strings.Repeat("long ", 400)}, true, v1alpha1.PhaseFailed, false, strings.Repeat("long ", 200), ""},
	} {
		st := v1alpha1.AgentProfileStatus{Phase: v1alpha1.PhasePending, Ready: true}
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: v1alpha1.PlacedCondition, Status: metav1.ConditionFalse, Reason: "NoHost"})
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: v1alpha1.ReachableCondition, Status: metav1.ConditionFalse, Reason: placement.HostRestarts})
		if c.service != nil {
			c.service.Restarts, c.service.Since = 7, at
		}
		fillStatus(&st, c.service, c.wanted)
		if st.Phase != c.phase || st.Ready != c.ready || st.Message != c.message || st.Cause != c.cause || len(st.Conditions) > 0 {
			t.Errorf("%s: %+v", c.name, st)
		}
		if c.service == nil {
			continue
		}
		if st.Restarts != 7 || !st.Since.Time.Equal(at) {
			t.Errorf("%s: %d restarts, since %s", c.name, st.Restarts, st.Since)
		}
		x, want := st.LastExit, c.service.LastExit
		if (x == nil) != (want == nil) {
			t.Errorf("%s: last exit %+v", c.name, x)
		} else if x != nil && (x.Cause != want.Cause || !x.At.Time.Equal(at) || (x.Code == nil) != (want.Code == nil) || (x.Signal == nil) != (want.Signal == nil)) {
			t.Errorf("%s: last exit %+v", c.name, x)
		}
	}
}

// TestACauseOfAnAgentFitsIntoTheStatus checks that the host cuts and masks a cause of a megabyte,
// which an agent that imitates hinit can report.
func TestACauseOfAnAgentFitsIntoTheStatus(t *testing.T) {
	st := v1alpha1.AgentProfileStatus{}
	fillStatus(&st, &hinit.Service{LastExit: &hinit.Exit{Cause: strings.Repeat("\x1b", 1<<20)}}, true)
	if len(st.Cause) > 1024 || len(st.LastExit.Cause) > 1024 || strings.Contains(st.Cause, "\x1b") {
		t.Errorf("the cause has %d bytes", len(st.Cause))
	}
}

// TestAFailedMoveIsToldWhileTheNextOneWaits checks that the status names a failed move only while
// another try is due.
func TestAFailedMoveIsToldWhileTheNextOneWaits(t *testing.T) {
	for _, c := range []struct {
		attempts    int32
		age         time.Duration
		told, known bool
	}{
		{1, time.Minute, true, true},
		{1, -time.Minute, true, true},
		{1, 6 * time.Minute, false, true},
		{2, 6 * time.Minute, true, true},
		{9, 5 * time.Hour, false, true},
		{9, 25 * time.Hour, false, false},
	} {
		st := v1alpha1.AgentProfileStatus{MoveFailure: &v1alpha1.MoveFailure{Attempts: c.attempts, At: metav1.NewTime(time.Now().Add(-c.age)), Message: "did not move"}}
		fillStatus(&st, &hinit.Service{State: hinit.StateUp, Ready: true}, true)
		if (st.Message == "did not move") != c.told || (st.MoveFailure != nil) != c.known {
			t.Errorf("%d failures, the last %v ago: the status says %q, with %+v", c.attempts, c.age, st.Message, st.MoveFailure)
		}
	}
}

// TestOnlyTheControllerEndsTheLossOfAHost checks that a lost host's profile stays Lost although the
// host still reports.
func TestOnlyTheControllerEndsTheLossOfAHost(t *testing.T) {
	st := v1alpha1.AgentProfileStatus{Phase: v1alpha1.PhaseLost}
	meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: v1alpha1.ReachableCondition, Status: metav1.ConditionFalse, Reason: placement.HostLost})
	fillStatus(&st, &hinit.Service{State: hinit.StateUp, Ready: true}, true)
	if st.Phase != v1alpha1.PhaseLost || st.Ready || len(st.Conditions) != 1 {
		t.Errorf("%+v", st)
	}
}

func TestMemoryIsToldWhereItHasChanged(t *testing.T) {
	st := &v1alpha1.AgentProfileStatus{}
	for _, c := range []struct{ bytes, want uint64 }{{100<<20 - 5, 100 << 20}, {0, 100 << 20}, {124 << 20, 100 << 20}, {76 << 20, 100 << 20}, {126 << 20, 126 << 20}, {90 << 20, 90 << 20}} {
		if describeMemory(st, c.bytes); uint64(st.Memory.Value()) != c.want {
			t.Errorf("after %d bytes: %s", c.bytes, st.Memory)
		}
	}
	st = &v1alpha1.AgentProfileStatus{}
	fillStatus(st, &hinit.Service{State: hinit.StateUp, MemoryBytes: 1 << 30, Since: time.Now()}, true)
	if st.Memory != nil {
		t.Errorf("the memory of a gateway that has just begun is told: %s", st.Memory)
	}
}
