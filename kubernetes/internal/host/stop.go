package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

const (
	// stopWait is how long a worker waits for the end of a gateway. hinit reports only once a second. Because the worker
	// waits, a move or stop usually need not wait for the next report.
	stopWait = 2 * time.Second
	// stopCheckDelay is how long after the request to stop a gateway the host checks the gateway again, if hinit has reported
	// nothing.
	stopCheckDelay = 30 * time.Second
)

// errStopping means that a gateway is being stopped. The profile is queued again when hinit reports on the gateway, or after
// stopCheckDelay.
var errStopping = errors.New("its gateway is being stopped")

// isStopping reports whether the gateway is being stopped and will stay down. The host then sends no other command to stop,
// because it would only repeat the signal.
func isStopping(s *hinit.Service) bool {
	return s.Want == hinit.WantDown && slices.Contains([]string{hinit.StateStopping, hinit.StateKilling, hinit.StateFinishing}, s.State)
}

// stopGateway stops a gateway. If that takes longer than stopWait, it returns errStopping, because a gateway may ignore its
// signal for minutes and no worker may wait for that. When the gateway is down, stopGateway writes the status of p, unless p
// is nil.
func (h *host) stopGateway(ctx context.Context, name string, p *v1alpha1.AgentProfile) error {
	s, known := h.service(name)
	if !known {
		return errRetry
	}
	if !isStopped(s) && !isStopping(s) {
		err := h.commandGateway(name, func() (hinit.Service, error) {
			s, err := h.settings.Init.Stop(ctx, serviceName(name), hinit.WaitOptions{Wait: true, Timeout: stopWait})
			if e, is := errors.AsType[*hinit.Error](err); is && e.Kind == hinit.KindTimeout {
				return h.settings.Init.Service(ctx, serviceName(name))
			}
			return s, err
		})
		if err != nil && !errors.Is(err, hinit.ErrUnknown) {
			return err
		}
		if s, _ = h.service(name); err != nil {
			s = nil
		}
	}
	stopped := isStopped(s)
	switch {
	case p == nil:
	case p.Status.Move != nil:
		if err := h.reportMoving(ctx, p); err != nil {
			return err
		}
	case stopped:
		applied, _, configured := h.writeFiles(ctx, p)
		return h.reportRun(ctx, p, applied, configured)
	case time.Since(s.Since).Abs() > firstReportDelay: // Most gateways stop within this time, so report only the others.
		if err := h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) { fillStatus(st, s, p.WantsGateway()) }); err != nil {
			return err
		}
	}
	if !stopped {
		h.queue.AddAfter(name, stopCheckDelay)
		return errStopping
	}
	return nil
}

// reportMoving writes into the status that the gateway is stopped because the profile moves.
func (h *host) reportMoving(ctx context.Context, p *v1alpha1.AgentProfile) error {
	return h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		if st.Phase == v1alpha1.PhaseMoving {
			return
		}
		since := metav1.Now()
		st.Since = &since
		st.Phase, st.Ready, st.Message = v1alpha1.PhaseMoving, false, clipText(fmt.Sprintf("moves to host %s: %s", st.Move.To, st.Move.Reason))
	})
}

// forgetFiles removes the record of the files with which the gateway of a deleted profile has run.
func (h *host) forgetFiles(profile string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.unreported, profile)
}
