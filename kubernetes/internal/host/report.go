package host

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/internal/control/show"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
)

// startTimeout is how long after a gateway's start its memory is not reported, because it still changes a lot.
const startTimeout = 30 * time.Second

// isStopped reports whether the gateway is down without any process left, and will not be started by hinit. s is nil if hinit
// has no such gateway.
func isStopped(s *hinit.Service) bool {
	return s == nil || s.State == hinit.StateDown && s.Want == hinit.WantDown
}

// fillStatus fills a status from s, the report of hinit about the gateway. s is nil if hinit has no such gateway. While this
// host is reported as lost, fillStatus changes nothing.
func fillStatus(st *v1alpha1.AgentProfileStatus, s *hinit.Service, wanted bool) {
	if !clearRestarting(st) {
		return
	}
	phase, message := v1alpha1.PhaseStarting, ""
	since := metav1.Now()
	st.Ready = false
	switch {
	case s == nil && !wanted:
		phase = v1alpha1.PhaseStopped
	case s == nil:
	default:
		phase, message = phaseOf(s, wanted), cmp.Or(s.Problem, s.Reason)
		st.Ready = s.State == hinit.StateUp && s.Ready
		st.Restarts = int32(min(s.Restarts, 1<<30))
		since = metav1.NewTime(s.Since.Truncate(time.Second))
		describeExit(st, s.LastExit)
		if phase != v1alpha1.PhaseStarting || time.Since(s.Since).Abs() > startTimeout {
			describeMemory(st, s.MemoryBytes)
		}
	}
	if phase == v1alpha1.PhaseRunning || phase == v1alpha1.PhaseStopped {
		message = ""
		if s != nil {
			message = s.Problem
		}
		message = cmp.Or(message, moveFailed(st))
	}
	steady := phase == v1alpha1.PhaseStopped || phase == v1alpha1.PhaseStarting // In these phases, a new run of the gateway does not change Since.
	if st.Phase != phase || st.Since == nil || s != nil && !steady {
		st.Since = &since
	}
	st.Phase, st.Message = phase, clipText(message)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.PlacedCondition)
}

// moveFailed returns why the last move has failed, but only while the next one must wait. Later it returns "", because there
// may be no other move. After forgetFailures it removes the failure from the status.
func moveFailed(st *v1alpha1.AgentProfileStatus) string {
	if st.MoveFailure == nil {
		return ""
	}
	switch age := time.Since(st.MoveFailure.At.Time).Abs(); { // The other node's clock may be ahead.
	case age < placement.MoveDelay(st.MoveFailure.Attempts):
		return st.MoveFailure.Message
	case age > forgetFailures:
		st.MoveFailure = nil
	}
	return ""
}

// clearRestarting removes the condition which says that this host is restarting. If the condition says that the host is lost,
// it keeps the condition and returns false, because only the controller may remove it.
func clearRestarting(st *v1alpha1.AgentProfileStatus) bool {
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ReachableCondition); c != nil && c.Reason == placement.HostLost {
		return false
	}
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ReachableCondition)
	return true
}

func phaseOf(s *hinit.Service, wanted bool) v1alpha1.Phase {
	switch s.State {
	case hinit.StateUp:
		if s.Ready {
			return v1alpha1.PhaseRunning
		}
		return v1alpha1.PhaseStarting
	case hinit.StateStopping, hinit.StateKilling, hinit.StateFinishing:
		return v1alpha1.PhaseStopping
	case hinit.StateBackoff:
		return v1alpha1.PhaseBackoff
	case hinit.StateParked:
		return v1alpha1.PhaseParked
	case hinit.StateFailed:
		return v1alpha1.PhaseFailed
	case hinit.StateDown:
		if !wanted {
			return v1alpha1.PhaseStopped
		}
	}
	return v1alpha1.PhaseStarting
}

func describeExit(st *v1alpha1.AgentProfileStatus, x *hinit.Exit) {
	if x == nil {
		st.Cause, st.LastExit = "", nil
		return
	}
	st.Cause = clipText(x.Cause)
	st.LastExit = &v1alpha1.LastExit{Cause: st.Cause, At: metav1.NewTime(x.EndedAt.Truncate(time.Second))}
	if x.Code != nil {
		n := int32(*x.Code)
		st.LastExit.Code = &n
	}
	if x.Signal != nil {
		n := int32(*x.Signal)
		st.LastExit.Signal = &n
	}
}

// describeMemory sets the memory in the status, in MiB. It changes the value only if the memory differs by more than a
// quarter, so that memory alone causes few writes.
func describeMemory(st *v1alpha1.AgentProfileStatus, bytes uint64) {
	if bytes == 0 {
		return
	}
	now := int64((bytes + 1<<20 - 1) >> 20 << 20)
	if st.Memory != nil {
		if old := st.Memory.Value(); now*4 > old*3 && now*4 < old*5 {
			return
		}
	}
	st.Memory = resource.NewQuantity(now, resource.BinarySI)
}

// setCondition sets a condition of a status to False, with the text of trouble as its message. If trouble is nil, it removes
// the condition.
func setCondition(st *v1alpha1.AgentProfileStatus, kind, reason string, trouble error) {
	if trouble == nil {
		meta.RemoveStatusCondition(&st.Conditions, kind)
		return
	}
	meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: clipText(trouble.Error())})
}

// clipText shortens a text for a field of a status, to one line of at most 1000 bytes. It also makes escape sequences
// visible, because an agent may have chosen a part of the text.
func clipText(text string) string {
	if text = show.EscapeLine(text); len(text) > 1000 {
		return strings.ToValidUTF8(text[:1000], "")
	}
	return text
}

// CheckNotRoot returns an error if this process runs as root. Agents could make a root process write
// outside of the volume.
func CheckNotRoot() error {
	if os.Geteuid() == 0 {
		return fmt.Errorf("cannot be a host as root: agents could have it write elsewhere; run the pod as the user of the agents")
	}
	return nil
}
