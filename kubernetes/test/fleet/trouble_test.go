package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// setReported changes the state of a gateway that a host's hinit reports.
func (f *sim) setReported(host, profile string, change func(*hinit.Service)) {
	f.kubelet.mu.Lock()
	init := f.kubelet.running[host].init
	f.kubelet.mu.Unlock()
	init.mu.Lock()
	defer init.mu.Unlock()
	if s := init.services[profile]; s.State == hinit.StateUp {
		init.ledger.recordEnd(profile, host)
	}
	change(init.services[profile])
	init.touch(profile)
}

// TestATroubleOfAGatewayIsInTheStatusAndTheEvents checks status and events of a gateway that crashes, is stopped for
// lack of memory, is parked, and recovers.
func TestATroubleOfAGatewayIsInTheStatusAndTheEvents(t *testing.T) {
	f := newSim(t, "ill", 1)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	host := f.pool + "-0"
	code, signal := 3, 9
	for _, c := range []struct {
		state, reason string
		exit          hinit.Exit
		phase         v1alpha1.Phase
		event         string
	}{
		{hinit.StateBackoff, "next start in 4 s", hinit.Exit{Code: &code, Cause: "crash"}, v1alpha1.PhaseBackoff, "CrashLoop: the gateway has ended (crash) and waits for its next start: next start in 4 s"},
		{hinit.StateParked, "waits for memory", hinit.Exit{Signal: &signal, Cause: "shed"}, v1alpha1.PhaseParked, "Shed: the gateway was ended for its memory (shed)"},
		{hinit.StateFailed, "no such program", hinit.Exit{Cause: "spawn"}, v1alpha1.PhaseFailed, "Failed: the gateway can't be started: no such program"},
	} {
		c.exit.EndedAt = time.Now().Truncate(time.Second)
		f.setReported(host, "p00000", func(s *hinit.Service) {
			s.State, s.Reason, s.Ready, s.Restarts, s.LastExit, s.Since = c.state, c.reason, false, s.Restarts+1, &c.exit, c.exit.EndedAt
		})
		eventually(t, time.Minute, c.state+" told", func() string {
			st := f.profile("p00000").Status
			x := st.LastExit
			if st.Phase != c.phase || st.Ready || st.Message != c.reason || st.Cause != c.exit.Cause || x == nil || !x.At.Time.Equal(c.exit.EndedAt) || (x.Code != nil) != (c.exit.Code != nil) || (x.Signal != nil) != (c.exit.Signal != nil) || st.Restarts == 0 {
				return fmt.Sprintf("%+v", st)
			}
			return ""
		})
		eventually(t, time.Minute, c.state+" in the events", func() string {
			list := &eventsv1.EventList{}
			if err := f.api.List(f.ctx, list, client.InNamespace("default")); err != nil {
				return err.Error()
			}
			var all []string
			for _, e := range list.Items {
				if e.Regarding.Kind == "AgentProfile" && e.Regarding.UID == f.profile("p00000").UID {
					all = append(all, e.Reason+": "+e.Note)
				}
			}
			if told := strings.Join(all, "\n"); !strings.Contains(told, c.event) {
				return told
			}
			return ""
		})
	}
	out, err := f.Kubectl(f.ctx, "get", "agentprofiles").CombinedOutput()
	if line := strings.Join(strings.Fields(strings.ReplaceAll(string(out), "\n", " | ")), " "); err != nil || !strings.Contains(line, "NAME POOL HOST PHASE READY SINCE RESTARTS MEMORY MESSAGE | p00000 ill ill-0 Failed false ") || !strings.Contains(line, " 3 40Mi no such program") {
		t.Errorf("kubectl get says %v\n%s", err, out)
	}
	f.setReported(host, "p00000", func(s *hinit.Service) { s.State = hinit.StateDown })
	f.kubelet.mu.Lock()
	init := f.kubelet.running[host].init
	f.kubelet.mu.Unlock()
	init.mu.Lock()
	init.start("p00000", init.services["p00000"])
	init.mu.Unlock()
	eventually(t, time.Minute, "the profile ready again", func() string { return f.missing(1) })
	f.checkLedger()
}
