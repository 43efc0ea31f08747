package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// leftoverInit is a process of a profile that outlives its gateway. It acts after each rescan of the
// host.
type leftoverInit struct {
	*fakeGateways
	onRescan func()
}

func (l leftoverInit) Rescan(context.Context) error {
	l.onRescan()
	return nil
}

// logAgain writes a log into the home of coder, and creates the home if it is missing.
func logAgain(t *testing.T, dir string) {
	t.Helper()
	logs := filepath.Join(dir, "profiles/coder/logs")
	if err := errors.Join(os.MkdirAll(logs, 0o755), os.WriteFile(filepath.Join(logs, "log"), []byte("new"), 0o600)); err != nil {
		t.Error(err)
	}
}

// countCopies counts the copies of coder's file data on the volumes.
func countCopies(t *testing.T, at string, dirs ...string) (n int) {
	t.Helper()
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(dir, at, "data"))
		if err != nil {
			t.Fatal(err)
		}
		n += len(found)
	}
	return n
}

func newCoderProfile(status v1alpha1.AgentProfileStatus) *v1alpha1.AgentProfile {
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
	p.Status = status
	return p
}

// TestASessionThatLogsDuringAMoveLosesNoHome checks that a move ignores a home that a leftover
// session creates again. Otherwise the host would end the move and delete the data on both hosts.
func TestASessionThatLogsDuringAMoveLosesNoHome(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		s, dir := newVolume(t, "u1", "learnt")
		other, at := newVolume(t, "", "")
		status := v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
		status.Move = &v1alpha1.Move{To: "to", Since: metav1.NewTime(time.Now().Add(-2 * minMoveTime))}
		api := newFakeAPI(newCoderProfile(status))
		g := &fakeGateways{services: map[string]hinit.Service{}}
		g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
		from, to := newTestHost(t, "from", api, g, s), newTestHost(t, "to", api, &fakeGateways{services: map[string]hinit.Service{}}, other)
		made := false
		from.settings.Init = leftoverInit{g, func() {
			if made || !s.exists(asidePath("coder", "u1", 1)) {
				return
			}
			made = true
			logAgain(t, dir)
			if p := getProfile(t, api, "coder"); cancel {
				p.Status.Move = nil
				if err := api.Status().Update(t.Context(), p); err != nil {
					t.Error(err)
				}
			}
		}}
		for range 4 * maxMoveFailures {
			reconcileAll(t, api, from, to)
		}
		if err := errors.Join(emptyWholeTrash(t.Context(), s), emptyWholeTrash(t.Context(), other)); err != nil {
			t.Fatal(err)
		}
		owner, home := "to", at
		if cancel {
			owner, home = "from", dir
		}
		if st := getProfile(t, api, "coder").Status; !made || st.Host != owner || st.Phase != v1alpha1.PhaseRunning || countCopies(t, "profiles/coder", home) != 1 {
			t.Errorf("cancelled: %t; the home was made again: %t; %d copies of the data are left, and the status is %+v",
				cancel, made, countCopies(t, "*/*", dir, at)+countCopies(t, ".hinit-fleet/*/*", dir, at), st)
		}
	}
}

// writingInit imitates hinit. After each transfer of the data, a session writes into the home of coder.
type writingInit struct {
	*fakeGateways
	onQuery func()
}

func (w writingInit) Service(ctx context.Context, name string) (hinit.Service, error) {
	w.onQuery()
	return w.fakeGateways.Service(ctx, name)
}

// TestWhatASessionWritesDuringAMoveIsMovedToo checks that a file that a session writes after the
// transfer reaches the new host. A session that writes all the time must not stop the move.
func TestWhatASessionWritesDuringAMoveIsMovedToo(t *testing.T) {
	for _, always := range []bool{false, true} {
		s, dir := newVolume(t, "u1", "learnt")
		other, at := newVolume(t, "", "")
		began := time.Now()
		if always {
			began = began.Add(-2 * minMoveTime)
		}
		status := v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
		status.Move = &v1alpha1.Move{To: "to", Since: metav1.NewTime(began)}
		api := newFakeAPI(newCoderProfile(status))
		g := &fakeGateways{services: map[string]hinit.Service{}}
		g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
		from, to := newTestHost(t, "from", api, g, s), newTestHost(t, "to", api, &fakeGateways{services: map[string]hinit.Service{}}, other)
		wrote := 0
		from.settings.Init = writingInit{g, func() {
			if move := getProfile(t, api, "coder").Status.Move; move != nil && move.Received != nil && (always || wrote == 0) && s.exists("profiles/coder/data") {
				wrote++
				logAgain(t, dir)
			}
		}}
		for range 10 {
			reconcileAll(t, api, from, to)
		}
		log, err := os.ReadFile(filepath.Join(at, "profiles/coder/logs/log"))
		if st := getProfile(t, api, "coder").Status; wrote != 1 || st.Host != "to" || !always && (err != nil || string(log) != "new") {
			t.Errorf("always: %t; it wrote %d times, and the new home has the log %q: %v; the status is %+v", always, wrote, log, err, st)
		}
	}
}

// TestAHomeThatASessionMadeIsNotSent checks that a repeated fetch gets the data that was set aside,
// and not a home that a session created afterwards.
func TestAHomeThatASessionMadeIsNotSent(t *testing.T) {
	s, dir := newVolume(t, "u1", "learnt")
	o := newTestHost(t, "from", newFakeAPI(), &fakeGateways{}, s).offers
	from, err := o.make(profileOffer{name: "coder", uid: "u1", to: "to"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetAside("coder", "u1", 1); err != nil {
		t.Fatal(err)
	}
	logAgain(t, dir)
	to, _ := newVolume(t, "", "")
	if err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost); err == nil || inspectStore(t, to, "u1").Incoming != "" {
		t.Errorf("the new home was sent: %v", err)
	}
}

// TestTheLastCopyOutlivesARecovery checks that the first host keeps the only complete copy if the new host has lost its
// volume and the profile was recovered from an older backup.
func TestTheLastCopyOutlivesARecovery(t *testing.T) {
	for _, host := range []string{"another", "me"} {
		s, dir := newVolume(t, "u1", "learnt")
		if err := s.SetAside("coder", "u1", 1); err != nil {
			t.Fatal(err)
		}
		api := newFakeAPI(newCoderProfile(v1alpha1.AgentProfileStatus{Host: host, Assignment: 4, Installed: 4, Phase: v1alpha1.PhaseRunning}))
		g := &fakeGateways{services: map[string]hinit.Service{}}
		g.set("gateway-coder", hinit.StateDown, hinit.WantDown)
		h := newTestHost(t, "me", api, g, s)
		if host == "me" {
			logAgain(t, dir)
		}
		for range 3 {
			reconcileAll(t, api, h)
		}
		if err := emptyWholeTrash(t.Context(), s); err != nil || countCopies(t, retainedDir+"/coder.u1.*", dir) != 1 || inspectStore(t, s, "u1").Aside != 0 {
			t.Errorf("recovered on %s: the copy is not in %s: %v", host, retainedDir, err)
		}
	}
}
