package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/profiles/archive"
)

// TestALostProfileIsRecoveredFromABackupOnce recovers a profile whose host and volume were lost, as
// the fleet page describes. A spec.recover that stays in the manifest must not discard the data
// when a host of that name fails again.
func TestALostProfileIsRecoveredFromABackupOnce(t *testing.T) {
	f := newSim(t, "gone", 2)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	lost, other := f.profile("p00000").Status.Host, f.pool+"-0"
	if lost == other {
		other = f.pool + "-1"
	}
	home := func(host string) string { return filepath.Join(f.kubelet.dir, host, "profiles", "p00000") }
	backups := filepath.Join(f.kubelet.dir, other, ".hinit-fleet/backups")
	tar, err := os.Create(filepath.Join(backups, "p00000.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home(lost), "notes.txt"), []byte("learnt"), 0o640); err != nil {
		t.Fatal(err)
	}
	x := archive.Export{Home: home(lost), Name: "p00000", IncludeSecrets: true, HomeIdle: true}
	if _, _, _, err := x.Run(t.Context(), tar); err != nil || tar.Close() != nil {
		t.Fatal(err)
	}
	phase := func(want v1alpha1.Phase) func() string {
		return func() string {
			if p := f.profile("p00000"); p.Status.Phase != want {
				return fmt.Sprintf("%+v", p.Status)
			}
			return ""
		}
	}
	edit := func(change func(*v1alpha1.AgentProfile)) {
		t.Helper()
		if err := f.editProfile("p00000", change); err != nil {
			t.Fatal(err)
		}
	}
	pod := f.pod(lost)
	f.kubelet.setKilled(pod.UID, true)
	eventually(t, time.Minute, "the loss told", phase(v1alpha1.PhaseLost))
	if err := errors.Join(os.RemoveAll(home(lost)), os.RemoveAll(filepath.Join(f.kubelet.dir, lost, ".hinit-fleet"))); err != nil {
		t.Fatal(err)
	}
	edit(func(p *v1alpha1.AgentProfile) {
		p.Spec.Pin, p.Spec.Recover = other, &v1alpha1.Recovery{LostHost: lost, Archive: "p00000.tar"}
	})
	eventually(t, time.Minute, "the profile on "+other, func() string { return f.placementProblem("p00000", other) })
	has := func(host string) {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(home(host), "notes.txt")); string(text) != "learnt" {
			t.Errorf("the data on %s is %q: %v", host, text, err)
		}
		f.checkLedger()
	}
	has(other)

	f.kubelet.setKilled(pod.UID, false)
	edit(func(p *v1alpha1.AgentProfile) { p.Spec.Pin = lost })
	eventually(t, time.Minute, "the profile on "+lost, func() string { return f.placementProblem("p00000", lost) })
	assignment := f.profile("p00000").Status.Assignment
	f.edit(func(p *v1alpha1.AgentPool) { p.Spec.Image = "agent:2" })
	eventually(t, time.Minute, "the rollout over", func() string {
		if s := f.poolStatus(); s.Updated != 2 || s.Reachable != 2 {
			return fmt.Sprintf("%+v", s)
		}
		return f.missing(1)
	})
	f.kubelet.setKilled(f.pod(lost).UID, true)
	eventually(t, time.Minute, "the second loss told", phase(v1alpha1.PhaseLost))
	time.Sleep(3 * time.Second)
	if p := f.profile("p00000"); p.Status.Host != lost || p.Status.Assignment != assignment {
		t.Fatalf("a spec.recover that was carried out gives up again: %+v", p.Status)
	}
	f.kubelet.setKilled(f.pod(lost).UID, false)
	eventually(t, time.Minute, "the profile ready again", func() string { return f.missing(1) })
	has(lost)

	edit(func(p *v1alpha1.AgentProfile) { p.Spec.Recover = &v1alpha1.Recovery{LostHost: lost, Empty: true} })
	eventually(t, time.Minute, "the recover of a healthy host ignored", func() string {
		if r := f.profile("p00000").Status.Recovered; r == nil || !r.Empty {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	})
	if err := f.api.Delete(f.ctx, f.pod(lost)); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the profile ready in a new pod", func() string {
		if f.pod(lost).UID == pod.UID {
			return "it is the old pod"
		}
		return f.missing(1)
	})
	has(lost)
	if p := f.profile("p00000"); p.Status.Assignment != assignment {
		t.Errorf("%+v", p.Status)
	}
}
