package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
	"hinit/kubernetes/test/agentsandbox"
)

// installSandboxes defines the kind of agent-sandbox, and runs the imitated controller until the test ends.
func (f *sim) installSandboxes() {
	f.Helper()
	objects, err := dynamic.NewForConfig(f.rest)
	if err != nil {
		f.Fatal(err)
	}
	core, err := kubernetes.NewForConfig(f.rest)
	if err != nil {
		f.Fatal(err)
	}
	apply := f.Kubectl(f.ctx, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(agentsandbox.Definition)
	if out, err := apply.CombinedOutput(); err != nil {
		f.Fatalf("%v: %s", err, out)
	}
	const crd = "crd/sandboxes.agents.x-k8s.io"
	if out, err := f.Kubectl(f.ctx, "wait", "--for=condition=Established", "--timeout=1m", crd).CombinedOutput(); err != nil {
		f.Fatalf("%v: %s", err, out)
	}
	c, done := agentsandbox.New(objects, core), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	f.Cleanup(func() {
		cancel()
		<-done
		_ = f.Kubectl(context.Background(), "delete", "--timeout=1m", crd).Run() // Ignore the error: the server ends with the tests.
	})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			c.ReconcileAll(ctx)
			sleep(ctx, 100*time.Millisecond)
		}
	}()
}

func (f *sim) is(o client.Object, name string) bool {
	return f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: name}, o) == nil
}

// placementProblem describes what is missing until a profile is ready on a host.
func (f *sim) placementProblem(profile, host string) string {
	if p := f.profile(profile); p.Status.Host != host || !p.Status.Ready || p.Status.Move != nil {
		return fmt.Sprintf("%+v", p.Status)
	}
	return ""
}

// TestAProfileGetsAPodOfItsOwnAndGoesBack checks that a profile moves with its data into its own
// pod, and moves back. Meanwhile the pod gets a new image and fails.
func TestAProfileGetsAPodOfItsOwnAndGoesBack(t *testing.T) {
	for name, maker := range map[string]client.Object{"sets": &appsv1.StatefulSet{}, "boxes": &metav1.PartialObjectMetadata{}} {
		t.Run(name, func(t *testing.T) {
			const n = 4
			f := newSim(t, name, 2)
			own := pool.SinglePodName(name, "p00000")
			made := strings.TrimSuffix(own, "-0")
			if sandbox, is := maker.(*metav1.PartialObjectMetadata); is {
				f.installSandboxes()
				sandbox.SetGroupVersionKind(pool.Sandbox)
				made = own
			}
			f.controller(t, f.log)
			f.create(n)
			eventually(t, 2*time.Minute, "all profiles ready", func() string { return f.missing(n) })
			home := func(host string) string { return filepath.Join(f.kubelet.dir, host, "profiles", "p00000") }
			if err := os.WriteFile(filepath.Join(home(f.profile("p00000").Status.Host), "memories.db"), []byte("learnt"), 0o640); err != nil {
				t.Fatal(err)
			}
			place := func(where string) {
				t.Helper()
				if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Placement = where }); err != nil {
					t.Fatal(err)
				}
			}
			place("pod")
			eventually(t, time.Minute, "the profile in its pod", func() string { return f.placementProblem("p00000", own) })
			if text, err := os.ReadFile(filepath.Join(home(own), "memories.db")); string(text) != "learnt" || !f.is(maker, made) {
				t.Errorf("the data is %q (%v), and %s exists: %v", text, err, made, f.is(maker, made))
			}
			eventually(t, 10*time.Second, "the pool counting it", func() string {
				p, set := &v1alpha1.AgentPool{}, &appsv1.StatefulSet{}
				if !f.is(p, name) || !f.is(set, name) || p.Status.Wanted != 3 || p.Status.Hosts != 3 || p.Status.Updated != 3 || *set.Spec.Replicas != 2 {
					return fmt.Sprintf("%+v, %+v", p.Status, set.Spec.Replicas)
				}
				return ""
			})
			f.create(1, func(_ int, p *v1alpha1.AgentProfile) { p.Name, p.Spec.Memory = "another", nil })
			eventually(t, time.Minute, "another profile on a host", func() string { return f.missing(n + 1) })
			if host := f.profile("another").Status.Host; host == own {
				t.Error("another profile is in the pod")
			}

			before := f.pod(own).UID
			f.edit(func(p *v1alpha1.AgentPool) { p.Spec.Image = "agent:2" })
			eventually(t, time.Minute, "all pods new", func() string {
				for _, pod := range []string{own, name + "-0", name + "-1"} {
					if p := f.pod(pod); len(p.Spec.Containers) == 0 || p.Spec.Containers[0].Image != "agent:2" {
						return pod + " has the old image"
					}
				}
				return f.missing(n + 1)
			})
			if now := f.pod(own).UID; now != before {
				t.Error("the image has made another pod")
			}
			f.edit(func(p *v1alpha1.AgentPool) { p.Spec.Env = map[string]string{"A": "b"} })
			eventually(t, time.Minute, "another pod for another template", func() string {
				if p := f.pod(own); p.UID == before || len(p.Spec.Containers) == 0 || p.Spec.Containers[0].Env[len(p.Spec.Containers[0].Env)-1].Name != "A" {
					return "not yet"
				}
				return f.missing(n + 1)
			})
			before = f.pod(own).UID
			failed := f.pod(own)
			failed.Status.Phase, failed.Status.Reason = corev1.PodFailed, "Evicted"
			if err := f.api.Status().Update(f.ctx, failed); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "another pod after an evicted one", func() string {
				if f.pod(own).UID == before {
					return "not yet"
				}
				return f.missing(n + 1)
			})
			f.checkLedger()

			place("packed")
			eventually(t, time.Minute, "the profile on a host", func() string {
				if host := f.profile("p00000").Status.Host; host == own {
					return host
				}
				return f.missing(n + 1)
			})
			if text, err := os.ReadFile(filepath.Join(home(f.profile("p00000").Status.Host), "memories.db")); string(text) != "learnt" {
				t.Errorf("the data is %q: %v", text, err)
			}
			eventually(t, 2*time.Minute, "the pod gone", func() string {
				if p := f.pod(own); p.UID != "" || f.is(maker, made) {
					return fmt.Sprint(p.Status.Phase, f.is(maker, made))
				}
				return ""
			})
			for _, dir := range []string{home(own), filepath.Join(f.kubelet.dir, own, ".hinit-fleet", "aside")} {
				if left, _ := os.ReadDir(dir); len(left) > 0 {
					t.Errorf("%s still has %v", dir, left)
				}
			}
			if !f.is(&corev1.PersistentVolumeClaim{}, "data-"+own) {
				t.Error("the volume is gone with the pod")
			}
			f.checkLedger()
		})
	}
}

// TestAPodOfItsOwnGoesWithItsProfile checks that the pod of a deleted profile is deleted. Its volume may be deleted only with
// onDelete: Delete.
func TestAPodOfItsOwnGoesWithItsProfile(t *testing.T) {
	f := newSim(t, "own", 0, func(p *v1alpha1.AgentPool) { p.Spec.Hosts = v1alpha1.HostRange{Min: 0, Max: 1} })
	f.controller(t, f.log)
	policies := []string{"Retain", "Delete"}
	f.create(2, func(i int, p *v1alpha1.AgentProfile) { p.Spec.Placement, p.Spec.OnDelete = "pod", policies[i] })
	eventually(t, 2*time.Minute, "both ready without a host", func() string { return f.missing(2) })
	set := &appsv1.StatefulSet{}
	if !f.is(set, "own") || *set.Spec.Replicas != 0 {
		t.Errorf("the pool has hosts: %+v", set.Spec.Replicas)
	}
	f.kubelet.setKilled(f.pod(pool.SinglePodName("own", "p00000")).UID, true)
	eventually(t, time.Minute, "the loss told", func() string {
		if p := f.profile("p00000"); p.Status.Phase != v1alpha1.PhaseLost || !strings.Contains(p.Status.Message, "OOMKilled") {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	f.kubelet.setKilled(f.pod(pool.SinglePodName("own", "p00000")).UID, false)
	eventually(t, time.Minute, "both ready", func() string { return f.missing(2) })
	for i, policy := range policies {
		name := fmt.Sprintf("p%05d", i)
		own := pool.SinglePodName("own", name)
		if err := f.api.Delete(f.ctx, f.profile(name)); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "profile, pod and claim as "+policy+" says", func() string {
			profile, pod, set := f.is(&v1alpha1.AgentProfile{}, name), f.pod(own).UID != "", f.is(&appsv1.StatefulSet{}, strings.TrimSuffix(own, "-0"))
			if claim := f.is(&corev1.PersistentVolumeClaim{}, "data-"+own); profile || pod || set || claim != (policy == "Retain") {
				return fmt.Sprint(profile, pod, set, claim)
			}
			return ""
		})
		kept, _ := filepath.Glob(filepath.Join(f.kubelet.dir, own, ".hinit-fleet/retained/"+name+".*/SOUL.md"))
		if len(kept) == 1 != (policy == "Retain") {
			t.Errorf("%s keeps %q", policy, kept)
		}
	}
	f.checkLedger()
}

// TestAPodThatIsRefusedIsToldAndHoldsNobodyUp checks that the status reports a pod that a quota
// refuses, and that other profiles are not delayed.
func TestAPodThatIsRefusedIsToldAndHoldsNobodyUp(t *testing.T) {
	f := newSim(t, "quota", 1)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "claims", Namespace: "default"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePersistentVolumeClaims: resource.MustParse("1")}}}
	if err := f.api.Create(f.ctx, quota); err != nil {
		t.Fatal(err)
	}
	lift := func() { _ = f.api.Delete(f.ctx, quota) }
	defer lift()
	eventually(t, time.Minute, "the quota counted", func() string {
		if !f.is(quota, "claims") || quota.Status.Used.Name(corev1.ResourcePersistentVolumeClaims, "").IsZero() {
			return fmt.Sprintf("%+v", quota.Status)
		}
		return ""
	})
	f.create(1, func(_ int, p *v1alpha1.AgentProfile) { p.Name, p.Spec.Placement = "alone", "pod" })
	eventually(t, time.Minute, "the reason told", func() string {
		if p := f.profile("alone"); p.Status.Phase != v1alpha1.PhasePending || !strings.Contains(p.Status.Message, "exceeded quota") {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	f.create(1, func(_ int, p *v1alpha1.AgentProfile) { p.Name = "other" })
	eventually(t, time.Minute, "another profile ready meanwhile", func() string { return f.placementProblem("other", "quota-0") })
	lift()
	eventually(t, time.Minute, "its pod made", func() string { return f.missing(3) })
}
