package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"hinit/kubernetes/api/v1alpha1"
)

// TestAnEventTellsWhatHappensToAProfile checks which status changes create a Kubernetes Event.
func TestAnEventTellsWhatHappensToAProfile(t *testing.T) {
	said := events.NewFakeRecorder(10)
	f := newFleet(nil, nil, said, nil)
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", UID: "u"}}
	exit := func(cause string) *v1alpha1.LastExit {
		return &v1alpha1.LastExit{Cause: cause, At: metav1.NewTime(time.Now())}
	}
	// The status was written before the controller started.
	p.Status = v1alpha1.AgentProfileStatus{Phase: v1alpha1.PhaseParked, Host: "pool-0"}
	failed := func(ago time.Duration, why string) *v1alpha1.MoveFailure {
		return &v1alpha1.MoveFailure{Attempts: 1, At: metav1.NewTime(time.Now().Add(-ago)), Message: why}
	}
	state := &poolState{}
	round := func() string {
		f.recordEvents(&view{state: state, profiles: map[string]*v1alpha1.AgentProfile{"coder": p}})
		var all []string
		for len(said.Events) > 0 {
			all = append(all, <-said.Events)
		}
		return strings.Join(all, "\n")
	}
	if first := round(); first != "" {
		t.Errorf("a controller that begins says %q", first)
	}
	for _, c := range []struct {
		change func(*v1alpha1.AgentProfileStatus)
		want   string
	}{
		{func(st *v1alpha1.AgentProfileStatus) { st.Phase = v1alpha1.PhaseRunning }, ""},
		{func(st *v1alpha1.AgentProfileStatus) {
			st.Phase, st.Message, st.Cause, st.LastExit = v1alpha1.PhaseBackoff, "next start in 4 s", "crash", exit("crash")
		}, "Warning CrashLoop the gateway has ended (crash) and waits for its next start: next start in 4 s"},
		{func(st *v1alpha1.AgentProfileStatus) { st.Message = "next start in 8 s" }, ""},
		{func(st *v1alpha1.AgentProfileStatus) {
			st.Phase, st.Cause, st.Message = v1alpha1.PhaseParked, "config", "config.yaml is wrong"
		}, "Warning Parked the gateway is parked (config): config.yaml is wrong"},
		{func(st *v1alpha1.AgentProfileStatus) { st.Phase, st.Message = v1alpha1.PhaseFailed, "no such program" }, "Warning Failed the gateway can't be started: no such program"},
		{func(st *v1alpha1.AgentProfileStatus) {
			st.Phase, st.Message = v1alpha1.PhaseLost, "host pool-0: node gone"
		}, "Warning Lost host pool-0: node gone"},
		{func(st *v1alpha1.AgentProfileStatus) { st.Phase, st.Host = v1alpha1.PhaseRunning, "pool-1" }, "Normal Moved moved from host pool-0 to pool-1"},
		{func(st *v1alpha1.AgentProfileStatus) { st.LastExit = exit("shed") }, "Warning Shed the gateway was ended for its memory (shed)"},
		{func(st *v1alpha1.AgentProfileStatus) {}, ""},
		{func(st *v1alpha1.AgentProfileStatus) { st.MoveFailure = failed(25*time.Hour, "full") }, "Warning MoveFailed full"},
		{func(st *v1alpha1.AgentProfileStatus) {}, ""},
		// After a day, failures are counted from 1.
		{func(st *v1alpha1.AgentProfileStatus) { st.MoveFailure = failed(0, "full again") }, "Warning MoveFailed full again"},
		{func(st *v1alpha1.AgentProfileStatus) { st.MoveFailure = nil }, ""},
		{func(st *v1alpha1.AgentProfileStatus) { st.LastExit = exit("oom") }, "Warning Shed the gateway was ended for its memory (oom)"},
	} {
		p = p.DeepCopy()
		c.change(&p.Status)
		if got := round(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
