package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
)

// assertStopped returns errRetry unless a gateway is down and will stay down. It asks hinit, because the last report of the
// watch may be old. It returns the number of the gateway's last run, or 0 if hinit has no such gateway.
func (h *host) assertStopped(ctx context.Context, name string) (run uint64, err error) {
	var s hinit.Service
	err = h.commandGateway(name, func() (hinit.Service, error) {
		var err error
		s, err = h.settings.Init.Service(ctx, serviceName(name))
		return s, err
	})
	switch {
	case errors.Is(err, hinit.ErrUnknown):
		return 0, nil
	case err != nil:
		return 0, err
	case !isStopped(&s):
		return 0, errRetry // For example, a user has started the gateway by hand.
	}
	return s.RunNumber, nil
}

// setAside moves the data of a profile to a place where hinit does not find it, so that this host can give it to another. It
// returns errRetry if the gateway has run since the data was offered.
func (h *host) setAside(ctx context.Context, p *v1alpha1.AgentProfile) error {
	run, err := h.assertStopped(ctx, p.Name)
	if err != nil {
		return err
	}
	if offered, _ := h.offers.nonceSince(string(p.UID), "", run); offered == "" {
		return errRetry
	}
	if err := h.store.SetAside(p.Name, string(p.UID), p.Status.Assignment); err != nil {
		return h.reportMoveError(ctx, p, err, true)
	}
	// Now hinit can't start the gateway any more, because the data is gone. But hinit may have started the gateway just
	// before that. If so, the gateway may have written data that was not sent, so take the data back.
	if now, err := h.assertStopped(ctx, p.Name); err != nil || now != run && now != 0 || h.sendAgain(ctx, p) {
		h.offers.forget(string(p.UID))
		return errors.Join(errRetry, h.rescanAfter(ctx, h.store.TakeBack(p.Name, string(p.UID), p.Status.Assignment)))
	}
	return h.settings.Init.Rescan(ctx)
}

// sendAgain reports whether set-aside data has changed since it was sent, and must be sent again.
// Only a process other than the gateway can have changed it. Such a process may write all the time,
// so sendAgain returns true only in the first minMoveTime of a move.
func (h *host) sendAgain(ctx context.Context, p *v1alpha1.AgentProfile) bool {
	now, err := h.store.snapshot(ctx, p.Name, asidePath(p.Name, string(p.UID), p.Status.Assignment))
	if err == nil && now == h.offers.snapshot(string(p.UID)) {
		return false
	}
	again := time.Since(p.Status.Move.Since.Time).Abs() < minMoveTime
	h.settings.Log.Warn("something has changed a home while it was sent to another host", "profile", p.Name, "is_sent_again", again, "error", err)
	return again
}

// takeBack undoes setAside. If a process has made the profile's home again meanwhile, takeBack stops that home's gateway and
// retains the home.
func (h *host) takeBack(ctx context.Context, p *v1alpha1.AgentProfile) error {
	h.offers.forget(string(p.UID))
	if h.store.exists(h.store.Home(p.Name)) {
		h.settings.Log.Warn("something has made a home again while its data was set aside; the new home is kept", "profile", p.Name, "in", retainedDir)
		if err := h.stopGateway(ctx, p.Name, nil); err != nil {
			return err
		}
	}
	return h.rescanAfter(ctx, h.store.TakeBack(p.Name, string(p.UID), p.Status.Assignment))
}

// handleAside handles set-aside data as [Store.Drop] does. o is the object, or nil if it was
// deleted after the data was given away. In that case, its last known onDelete decides whether to
// retain the data.
func (h *host) handleAside(name, uid string, o *placement.Object) error {
	h.offers.forget(uid)
	h.mu.Lock()
	deletes := h.deletes[uid]
	delete(h.deletes, uid)
	h.mu.Unlock()
	switch {
	case o != nil:
		return h.store.Drop(name, uid, o.Assignment)
	case deletes:
		return h.store.Delete(name, uid, false)
	}
	return h.store.Drop(name, uid, 0)
}

// publishOffer offers the data of a profile to the host to which the profile moves. It writes into the status where that host
// can fetch the data. It returns errRetry unless the gateway is down and will stay down.
func (h *host) publishOffer(ctx context.Context, p *v1alpha1.AgentProfile) error {
	run, err := h.assertStopped(ctx, p.Name)
	if err != nil {
		return err
	}
	h.offers.forget(string(p.UID))
	o, err := h.offers.make(profileOffer{name: p.Name, uid: string(p.UID), to: p.Status.Move.To, run: run})
	if err != nil {
		return h.reportMoveError(ctx, p, err, true)
	}
	return h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) { st.Move.Offer, st.Move.Received = o, nil })
}

// transferOwnership makes the other host the owner of the profile, with a single write of the status.
func (h *host) transferOwnership(ctx context.Context, p *v1alpha1.AgentProfile) error {
	to := p.Status.Move.To
	err := h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		st.Host, st.Receipt, st.Move, st.MoveFailure = to, st.Move.Received, nil, nil
		st.Assignment++
		st.Phase, st.Ready, st.Applied = v1alpha1.PhaseMoving, false, ""
		st.Message = fmt.Sprintf("host %s has its data and starts it", to)
	})
	if err == nil {
		h.offers.forget(string(p.UID))
		h.settings.Log.Info("profile was given away", "profile", p.Name, "to", to)
	}
	return err
}

// fetch downloads the data of a profile that moves to this host. It returns errRetry if too many fetches are running.
func (h *host) fetch(ctx context.Context, p *v1alpha1.AgentProfile) error {
	err := h.store.CheckFree(p.Name, string(p.UID))
	// Refuse, because a host of the other pool has written the offer and must not see a token of this pool.
	if p.Spec.Pool != h.settings.Pool {
		err = fmt.Errorf("cannot fetch profile %q: it is of pool %q, and this host is of pool %q", p.Name, p.Spec.Pool, h.settings.Pool)
	}
	if err != nil {
		return h.reportMoveError(ctx, p, err, true)
	}
	if !h.beginFetch(p.Status.Host) {
		return errRetry
	}
	defer h.endFetch(p.Status.Host)
	snapshot, at := h.store.interruptedAt(p.Name, string(p.UID))
	err = h.store.fetch(ctx, p.Name, string(p.UID), p.Status.Move.Offer, h.offers.identity)
	now, more := h.store.interruptedAt(p.Name, string(p.UID))
	further := more > at && (snapshot == "" || snapshot == now)
	if errors.Is(err, errInterrupted) && further {
		return err
	}
	return h.reportMoveError(ctx, p, err, !further)
}

// beginFetch reports whether a fetch from a host may begin now. If it may, the caller must call endFetch after the fetch.
func (h *host) beginFetch(from string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := 0
	for _, n := range h.fetches {
		all += n
	}
	if all >= maxFetches || h.fetches[from] >= maxFetchesPerHost {
		return false
	}
	h.fetches[from]++
	return true
}

func (h *host) endFetch(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fetches[from]--; h.fetches[from] == 0 {
		delete(h.fetches, from)
	}
}

// reportMoveError writes err, the error of a step of a move, into the status. The gateway is down until that step succeeds,
// so the user must see why. If count is true, the error counts as a failure of the move, see endFailedMove. reportMoveError
// returns err.
func (h *host) reportMoveError(ctx context.Context, p *v1alpha1.AgentProfile, err error, count bool) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return reportedError{errors.Join(err, h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		if count {
			st.Move.Failures++
		}
		st.Message = clipText(fmt.Sprintf("moves to host %s: %s", st.Move.To, err))
	}))}
}

// install makes received data the live profile. Only this host can do it, because it is already the owner. After an error it
// writes the cause into the status, and tries again until the cause is gone. The old host keeps the data until then.
func (h *host) install(ctx context.Context, p *v1alpha1.AgentProfile, nonce string) error {
	err := h.store.Install(p.Name, string(p.UID), nonce)
	if err == nil || ctx.Err() != nil {
		return h.rescanAfter(ctx, err)
	}
	return reportedError{errors.Join(err, h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		if st.Phase != v1alpha1.PhaseFailed {
			since := metav1.Now()
			st.Since = &since
		}
		st.Phase, st.Message = v1alpha1.PhaseFailed, clipText(fmt.Sprintf("has moved to host %s, and does not start there: %s", h.settings.Name, err))
	}))}
}

const (
	// maxMoveFailures is the number of failures after which a host ends a move.
	maxMoveFailures = 5
	// minMoveTime is how long a move runs at least before it is ended, because a host that restarts causes several failures.
	minMoveTime = time.Minute
	// forgetFailures is the age at which a failed move no longer delays the next one and is removed from the status.
	forgetFailures = 24 * time.Hour
)

// moveHasFailed reports whether a move has failed so often that the host with the data must end it.
func moveHasFailed(m *v1alpha1.Move) bool {
	// Use the absolute value, because Since is from another node's clock.
	return m.Failures >= maxMoveFailures && time.Since(m.Since.Time).Abs() > minMoveTime
}

// endFailedMove ends a move that has failed, so that the gateway runs here again. It writes the reason into the status, and
// the time from which the controller may begin the next move.
func (h *host) endFailedMove(ctx context.Context, p *v1alpha1.AgentProfile) error {
	var why []string
	if !moveHasFailed(p.Status.Move) {
		why = append(why, fmt.Sprintf("nothing was sent for %v", stallTimeout))
	}
	if said := strings.TrimPrefix(p.Status.Message, fmt.Sprintf("moves to host %s: ", p.Status.Move.To)); said != p.Status.Move.Reason {
		why = append(why, said)
	}
	if err := h.offers.transferError(string(p.UID)); err != nil && !strings.Contains(p.Status.Message, err.Error()) {
		why = append(why, err.Error())
	}
	err := h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		fail := v1alpha1.MoveFailure{Attempts: 1, To: st.Move.To, At: metav1.Now()}
		if old := st.MoveFailure; old != nil && time.Since(old.At.Time) < forgetFailures {
			fail.Attempts += old.Attempts
		}
		fail.Message = clipText(fmt.Sprintf("did not move to host %s, and tries again after %v: %s", st.Move.To, placement.MoveDelay(fail.Attempts), strings.Join(why, "; ")))
		st.Message, st.Move, st.MoveFailure = fail.Message, nil, &fail
	})
	if err == nil {
		h.offers.forget(string(p.UID))
		h.settings.Log.Warn("move has failed", "profile", p.Name, "reason", p.Status.MoveFailure.Message)
	}
	return err
}

// reportReceived reports that the data of an offer is stored. Before that it makes sure that the data can be installed. After
// the report this host may become the owner, and then the move can't be ended any more.
func (h *host) reportReceived(ctx context.Context, p *v1alpha1.AgentProfile, nonce string) error {
	r, err := h.store.receipt(p.Name, string(p.UID), nonce)
	files, _ := h.sources.wantedFiles(ctx, &p.Spec) // Ignore the error: the record then lists only some of the files.
	if err = errors.Join(err, h.store.Reserve(p.Name, string(p.UID), slices.Sorted(maps.Keys(files)))); err != nil {
		return h.reportMoveError(ctx, p, err, true)
	}
	return h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) { st.Move.Received, st.Move.Failures = r, 0 })
}
