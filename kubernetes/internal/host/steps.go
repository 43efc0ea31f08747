package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
)

// maxSteps limits the steps for one profile in a row, in case of a bug. The longest correct sequence has eight steps.
const maxSteps = 20

// serviceName returns the name of hinit's service for the gateway of a profile.
func serviceName(profile string) string { return "gateway-" + profile }

// reconcileProfile performs the steps of one object on this host, until nothing is left to do or another host or the controller
// must act first. p is the profile from the watch cache, or nil. If p has another UID than uid, the object was deleted.
//
// Before a step that changes anything, reconcileProfile reads the profile again from the API server. Create needs no read:
// nothing runs from an empty profile before a compare-and-swap has confirmed it, and that write fails if p is outdated.
func (h *host) reconcileProfile(ctx context.Context, name, uid string, p *v1alpha1.AgentProfile) error {
	fresh := false
	for range maxSteps {
		local, err := h.localState(name, uid, p)
		if err != nil {
			return h.reportUnreadable(ctx, p, err)
		}
		step := placement.Next(h.settings.Name, object(p, uid), local)
		if step == placement.Wait && local.Aside != 0 {
			h.mu.Lock()
			defer h.mu.Unlock() // Unlock here, because the loop ends.
			h.deletes[uid] = p.Spec.OnDelete == "Delete"
			return errRetry // Try again later, because no watch reports when the new owner has the data.
		}
		if calm, err := h.checkSettled(ctx, step, p); calm || err != nil {
			return err
		}
		if !fresh && step == placement.Create {
			p, fresh = p.DeepCopy(), true
		}
		if !fresh {
			if p, err = h.readFresh(ctx, name); err != nil {
				return err
			}
			fresh = true
			continue
		}
		h.settings.Log.Debug("step", "profile", name, "step", step)
		version := versionOf(p)
		err = h.performStep(ctx, step, name, uid, p, local)
		if errors.Is(err, errDone) {
			return nil
		}
		if err != nil {
			return err
		}
		// p is fresh if this step has written it, because a compare-and-swap returns the object. It also counts as fresh if
		// this step has created the profile, which only this host can give away afterwards.
		fresh = p == nil || version != p.ResourceVersion || step == placement.Create
	}
	return fmt.Errorf("cannot settle profile %q: %d steps were not enough", name, maxSteps)
}

// reportUnreadable writes into the status that the state of a profile on this volume can't be read. For a move to this host,
// that counts as a failure of the move. It returns err.
func (h *host) reportUnreadable(ctx context.Context, p *v1alpha1.AgentProfile, err error) error {
	switch {
	case p == nil:
		return err
	case p.Status.Move != nil && p.Status.Move.To == h.settings.Name:
		return h.reportMoveError(ctx, p, err, true)
	case p.Status.Host != h.settings.Name:
		return err
	}
	return reportedError{errors.Join(err, h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) { st.Message = clipText(err.Error()) }))}
}

func versionOf(p *v1alpha1.AgentProfile) string {
	if p == nil {
		return ""
	}
	return p.ResourceVersion
}

// object converts p to a [placement.Object]. It returns nil if p has another UID than uid.
func object(p *v1alpha1.AgentProfile, uid string) *placement.Object {
	if p == nil || string(p.UID) != uid {
		return nil
	}
	o := &placement.Object{
		UID: string(p.UID), Owner: p.Status.Host, Assignment: p.Status.Assignment, Installed: p.InstalledAssignment(), Wanted: p.WantsGateway(),
		Missing: p.Status.Missing, Deleting: p.DeletionTimestamp != nil,
	}
	if r := p.Status.Receipt; r != nil {
		o.Receipt = r.Nonce
	}
	if m := p.Status.Move; m != nil {
		o.MoveTarget, o.Failed = m.To, moveHasFailed(m)
		if m.Offer != nil {
			o.Offer = m.Offer.Nonce
		}
		if m.Received != nil {
			o.Received = m.Received.Nonce
		}
	}
	return o
}

// localState returns the state of an object on this host: its data on the volume, its gateway, and the offers of this process.
func (h *host) localState(name, uid string, p *v1alpha1.AgentProfile) (placement.LocalState, error) {
	var current *placement.Object // Current object of this name, even if its UID is not uid.
	if p != nil {
		current = object(p, string(p.UID))
	}
	local, err := h.store.Inspect(name, uid, h.settings.Name, current)
	if err != nil {
		return local, err
	}
	sum := ""
	if p != nil && p.Status.Move != nil && p.Status.Move.Received != nil {
		sum = p.Status.Move.Received.SHA256
	}
	s, known := h.service(name)
	run := uint64(0)
	switch {
	case !local.Live:
		run = anyRun // The data is set aside, so the gateway can't have run since the offer.
	case s != nil:
		run = s.RunNumber
	}
	local.Offered, local.Sent = h.offers.nonceSince(uid, sum, run)
	local.Stalled = h.offers.stalled(uid)
	local.GatewayUp = local.Live && (!known || !isStopped(s))
	return local, nil
}

// checkSettled reports whether the profile needs no step now. If it needs none, checkSettled also updates the status of the
// object. p may be from the watch cache.
func (h *host) checkSettled(ctx context.Context, step placement.Step, p *v1alpha1.AgentProfile) (bool, error) {
	if step == placement.Wait {
		return true, nil
	}
	if step != placement.Run && step != placement.Halt || p == nil || p.Status.Move != nil {
		return false, nil
	}
	s, known := h.service(p.Name)
	now := h.currentFiles(p)
	switch {
	case !known:
		return true, nil // hinit's next report queues the profile again.
	case now.uid != p.UID, now.generation != p.Generation, now.sum == "":
		return false, nil
	case step == placement.Run && (s == nil || s.Want != hinit.WantUp), step == placement.Halt && !isStopped(s):
		return false, nil
	}
	files, err := h.sources.wantedFiles(ctx, &p.Spec)
	if err == nil && checksum(files) != now.sum {
		return false, nil
	}
	if h.reportLater(p, s) {
		return true, nil
	}
	return true, h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		st.Installed, st.ObservedGeneration, st.Applied = st.Assignment, now.generation, now.sum
		fillStatus(st, s, p.WantsGateway())
		setCondition(st, v1alpha1.ConfiguredCondition, "SourceMissing", err)
	})
}

// hasReported reports whether this host has written the status of a profile since the profile was placed here.
func hasReported(p *v1alpha1.AgentProfile) bool { return p.Status.Installed == p.Status.Assignment }

// firstReportDelay is how long the first status of a profile waits for the gateway to become ready after its start.
const firstReportDelay = 2 * time.Second

// reportLater reports whether the first status of a profile on this host should wait for the gateway, which has just been
// started. A single write can then also say that the gateway is ready. While it waits, reportLater queues the profile again.
func (h *host) reportLater(p *v1alpha1.AgentProfile, s *hinit.Service) bool {
	if hasReported(p) || s == nil || s.Ready || s.State != hinit.StateStarting && s.State != hinit.StateUp {
		return false
	}
	rest := firstReportDelay - time.Since(s.Since).Abs() // Use the absolute value, because the clock may have been set back.
	if rest > 0 {
		h.queue.AddAfter(p.Name, rest)
	}
	return rest > 0
}

// writeStatus modifies the status of an object with the function change, and writes it by compare-and-swap if it has changed.
// It stores the object that the API server returns in p, unless p belongs to the watch cache.
func (h *host) writeStatus(ctx context.Context, p *v1alpha1.AgentProfile, change func(*v1alpha1.AgentProfileStatus)) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next := p.DeepCopy()
	change(&next.Status)
	if equality.Semantic.DeepEqual(&next.Status, &p.Status) {
		return nil
	}
	if err := h.settings.API.Status().Patch(ctx, next, client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("cannot report on profile %q: %w", p.Name, err)
	}
	if h.cached(p.Name) != p { // Objects in the watch cache must not be modified.
		*p = *next
	}
	return nil
}

// writeMetadata writes the finalizers and annotations of next to the object p, by compare-and-swap. It stores the object that
// the API server returns in p.
func (h *host) writeMetadata(ctx context.Context, p, next *v1alpha1.AgentProfile) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := h.settings.API.Patch(ctx, next, client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("cannot report on profile %q: %w", p.Name, err)
	}
	*p = *next
	return nil
}

// performStep performs one step. p must have been read from the API server just before, except for Create. If the step writes
// the object, it stores the object that the API server returns in p.
func (h *host) performStep(ctx context.Context, step placement.Step, name, uid string, p *v1alpha1.AgentProfile, local placement.LocalState) error {
	if (step == placement.Halt || step == placement.Offer) && p.Status.Move != nil {
		if err := h.assertPolicies(ctx, p); err != nil {
			return err
		}
	}
	switch step {
	case placement.Run:
		return h.runGateway(ctx, p)
	case placement.Halt:
		return h.stopGateway(ctx, name, p)
	case placement.Create:
		return h.create(ctx, p)
	case placement.Report:
		return h.reportData(ctx, p)
	case placement.Missing:
		return errors.Join(errRetry, h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
			clearRestarting(st)
			st.Phase, st.Ready, st.Missing = v1alpha1.PhaseLost, false, true
			st.Message = fmt.Sprintf("its data is not on the volume of host %s; bring the volume back, or set spec.recover", h.settings.Name)
		}))
	case placement.Offer:
		return h.publishOffer(ctx, p)
	case placement.SetAside:
		return h.setAside(ctx, p)
	case placement.TakeBack:
		return h.takeBack(ctx, p)
	case placement.Give:
		return h.transferOwnership(ctx, p)
	case placement.CallOff:
		return h.endFailedMove(ctx, p)
	case placement.Fetch:
		return h.fetch(ctx, p)
	case placement.Received:
		return h.reportReceived(ctx, p, local.Incoming)
	case placement.Install:
		return h.install(ctx, p, local.Incoming)
	case placement.Retire:
		if err := h.stopGateway(ctx, name, nil); err != nil {
			return err
		}
		return h.rescanAfter(ctx, h.store.RetireHome(name, uid))
	case placement.Drop:
		return h.handleAside(name, uid, object(p, uid))
	case placement.DropIncoming:
		return h.store.DropIncoming(name, uid)
	case placement.Finish:
		return h.finishDeleted(ctx, p, local.Live)
	case placement.Wait:
	}
	return nil
}

// rescanAfter tells hinit to search the volume for profiles, after data was moved there. err is the error of the move; if it
// isn't nil, rescanAfter only returns it.
func (h *host) rescanAfter(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	return h.settings.Init.Rescan(ctx)
}

// reportData reports that the data is on this volume. For a new profile it writes only the finalizer and its annotation; the
// status follows after the start of the gateway. Otherwise, if the gateway is down, reportData first writes the files of the
// profile, because a single write of the status then covers both.
func (h *host) reportData(ctx context.Context, p *v1alpha1.AgentProfile) error {
	if !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer) {
		next := p.DeepCopy()
		next.MarkCreated()
		return h.writeMetadata(ctx, p, next)
	}
	applied, err := "", errRetry
	if s, known := h.service(p.Name); known && isStopped(s) {
		applied, _, err = h.writeFiles(ctx, p) // Ignore the error, because the next step tries again.
	}
	return h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		since := metav1.Now()
		st.Installed, st.Missing, st.Phase, st.Message, st.Since = st.Assignment, false, v1alpha1.PhaseStarting, "", &since
		if err == nil {
			st.ObservedGeneration, st.Applied = p.Generation, applied
		}
	})
}

// runGateway starts the gateway with the files for which the spec asks. If the files have changed, it restarts the gateway.
func (h *host) runGateway(ctx context.Context, p *v1alpha1.AgentProfile) error {
	h.offers.forget(string(p.UID))
	s, known := h.service(p.Name)
	if !known {
		return errRetry
	}
	before, name, pid1 := h.currentFiles(p).sum, serviceName(p.Name), h.settings.Init
	applied, changed, configured := h.writeFiles(ctx, p)
	switch {
	case configured != nil && before == "": // The files were never written, so don't start the gateway.
	case s == nil || s.Want != hinit.WantUp:
		if err := h.commandGateway(p.Name, func() (hinit.Service, error) { return pid1.Start(ctx, name, hinit.WaitOptions{}) }); err != nil {
			return errors.Join(err, h.reportRun(ctx, p, applied, configured))
		}
	// Files were written since the gateway's start, so restart it.
	case configured == nil && (changed || before != "" && before != applied):
		if err := h.commandGateway(p.Name, func() (hinit.Service, error) { return pid1.Restart(ctx, name, hinit.WaitOptions{}) }); err != nil {
			return err
		}
	}
	if s, _ = h.service(p.Name); configured == nil && h.reportLater(p, s) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.unreported[p.Name] = appliedFiles{p.UID, p.Generation, applied}
		return errDone
	}
	return h.reportRun(ctx, p, applied, configured)
}

// reportRun updates the status after the gateway was started or stopped. applied is the checksum of the profile's files, and
// configured is the error of writing them.
func (h *host) reportRun(ctx context.Context, p *v1alpha1.AgentProfile, applied string, configured error) error {
	s, _ := h.service(p.Name)
	err := h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
		st.Installed = st.Assignment
		fillStatus(st, s, p.WantsGateway())
		setCondition(st, v1alpha1.ConfiguredCondition, "SourceMissing", configured)
		if configured != nil {
			st.Message = clipText(configured.Error())
			return
		}
		st.ObservedGeneration, st.Applied = p.Generation, applied
	})
	if err == nil && configured != nil {
		return errRetry
	}
	return err
}

// appliedFiles identifies the files with which a gateway runs: by their object, its generation, and their checksum.
type appliedFiles struct {
	uid        types.UID
	generation int64
	sum        string
}

// currentFiles returns the files with which the gateway of p runs. It takes them from the status, or from this process until the
// status contains them.
func (h *host) currentFiles(p *v1alpha1.AgentProfile) appliedFiles {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !hasReported(p) {
		return h.unreported[p.Name]
	}
	delete(h.unreported, p.Name)
	return appliedFiles{p.UID, p.Status.ObservedGeneration, p.Status.Applied}
}

// create creates a profile without data, or restores it from the archive in spec.recover.
func (h *host) create(ctx context.Context, p *v1alpha1.AgentProfile) error {
	if _, known := h.service(p.Name); !known {
		return errRetry
	}
	name, uid := p.Name, string(p.UID)
	err := h.store.Claim(name, uid)
	switch {
	case err != nil:
	case p.Spec.Recover != nil && p.Spec.Recover.Archive != "":
		err = h.restore(name, uid, p.Spec.Recover.Archive)
	default:
		err = h.settings.Create(ctx, name)
	}
	if err != nil {
		return reportedError{errors.Join(err, h.writeStatus(ctx, p, func(st *v1alpha1.AgentProfileStatus) {
			st.Phase, st.Message = v1alpha1.PhaseFailed, clipText(err.Error())
		}))}
	}
	return h.settings.Init.Rescan(ctx)
}

// restore creates a profile from an archive in the backups directory of the volume.
func (h *host) restore(name, uid, archive string) error {
	f, _, err := h.store.openFile(path.Join(backupsDir, archive))
	if err != nil {
		return fmt.Errorf("cannot recover profile %q: %w; put the archive into %s on the volume of host %s", name, err, backupsDir, h.settings.Name)
	}
	defer f.Close()
	const nonce = "backup"
	im, done, err := h.store.importer(name, uid)
	if err != nil {
		return err
	}
	defer done()
	if err := h.store.receive(im, name, uid, nonce, f); err != nil {
		return fmt.Errorf("cannot recover profile %q: %w", name, err)
	}
	return h.store.Install(name, uid, nonce)
}

// finishDeleted stops the profile of a deleted object, deletes or retires its data, and removes the object's finalizer.
func (h *host) finishDeleted(ctx context.Context, p *v1alpha1.AgentProfile, live bool) error {
	err := h.stopGateway(ctx, p.Name, nil)
	if err == nil {
		if p.Spec.OnDelete == "Delete" {
			err = h.store.Delete(p.Name, string(p.UID), live)
		} else {
			err = h.store.Retire(p.Name, string(p.UID), live)
		}
	}
	if err = h.rescanAfter(ctx, err); err != nil {
		return err
	}
	h.forgetFiles(p.Name)
	if next := p.DeepCopy(); controllerutil.RemoveFinalizer(next, v1alpha1.Finalizer) {
		err = h.writeMetadata(ctx, p, next)
	}
	return cmp.Or(client.IgnoreNotFound(err), errDone)
}

// errDone ends the steps of an object: the object was released, or it waits for its gateway.
var errDone = errors.New("done")
