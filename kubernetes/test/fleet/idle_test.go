package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hinit/kubernetes/api/v1alpha1"
)

// setBusy makes a gateway of a host begin or end work on an answer.
func (f *sim) setBusy(host string, is bool) {
	f.kubelet.mu.Lock()
	defer f.kubelet.mu.Unlock()
	f.kubelet.running[host].init.busy.Store(is)
}

// hostVersions returns the versions of the profiles on a host. wrong describes the first profile
// that is not reported as running.
func (f *sim) hostVersions(host string) (versions, problem string) {
	for _, p := range f.profiles() {
		if p.Status.Host != host {
			continue
		}
		versions += " " + p.Name + "=" + p.ResourceVersion
		if p.Status.Phase != v1alpha1.PhaseRunning || !p.Status.Ready || f.kubelet.ledger.runningOn()[p.Name] != host {
			problem = fmt.Sprintf("%s: %+v", p.Name, p.Status)
		}
	}
	return versions, problem
}

// TestAHostThatWaitsForAnAnswerRunsOn checks that profiles keep running while rollout.whenIdle
// delays the replacement of their host. The controller and the host must not overwrite each other's
// status.
func TestAHostThatWaitsForAnAnswerRunsOn(t *testing.T) {
	const n, idle = 8, 20 * time.Second
	f := newSim(t, "idle", 2, func(p *v1alpha1.AgentPool) {
		p.Spec.Rollout.WhenIdle, p.Spec.Rollout.IdleSeconds = true, int32(idle/time.Second)
	})
	f.controller(t, f.log)
	f.create(n, func(i int, p *v1alpha1.AgentProfile) { p.Spec.Pin = fmt.Sprintf("%s-%d", f.pool, i%2) })
	eventually(t, 2*time.Minute, "all profiles ready", func() string { return f.missing(n) })
	last, first := f.pool+"-1", f.pool+"-0"
	for what, change := range map[string]func(*v1alpha1.AgentPool){
		"another image": func(p *v1alpha1.AgentPool) { p.Spec.Image = "agent:2" },
		"another pod":   func(p *v1alpha1.AgentPool) { p.Spec.Env = map[string]string{"A": "b"} },
	} {
		f.setBusy(last, true)
		f.setBusy(first, true)
		f.edit(change)
		container := func(host string) string {
			if s := f.pod(host).Status.ContainerStatuses; len(s) > 0 {
				return s[0].ContainerID
			}
			return ""
		}
		waits := func(host string) func() string {
			return func() string {
				if p := f.pod(host); p.DeletionTimestamp == nil && p.Annotations[v1alpha1.Group+"/replaced"] != container(host) {
					return "it is not to be replaced"
				}
				return ""
			}
		}
		old := container(last)
		eventually(t, time.Minute, what+": the last host told to end", waits(last))
		time.Sleep(time.Second) // By now, all writes in progress are done.
		before, problem := f.hostVersions(last)
		for range 8 {
			if now, bad := f.hostVersions(last); now != before || bad != "" || problem != "" || now == "" {
				t.Fatalf("%s: a host that waits for an answer: %s, then %s; %s%s", what, before, now, problem, bad)
			}
			time.Sleep(500 * time.Millisecond)
		}
		f.setBusy(last, false)
		eventually(t, 10*time.Second, what+": the last host replaced", func() string {
			if now := container(last); now == old || now == "" {
				return "it is the old one"
			}
			return ""
		})
		began, old := time.Now(), container(first)
		eventually(t, time.Minute, what+": the first host told to end", waits(first))
		eventually(t, 2*idle, what+": the first host replaced", func() string {
			if now := container(first); now == old || now == "" {
				return "it is the old one"
			}
			return f.missing(n)
		})
		if took := time.Since(began); took < idle {
			t.Errorf("%s: a host did not wait for its answer: it was replaced after %s", what, took)
		}
		eventually(t, time.Minute, what+": the rollout told to be over", func() string {
			if p := f.poolStatus(); p.Updated != 2 || strings.Contains(p.Doing, "replaces") {
				return fmt.Sprintf("%+v", p)
			}
			return ""
		})
	}
	f.checkLedger()
}
