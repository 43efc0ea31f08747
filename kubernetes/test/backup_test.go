package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"hinit/kubernetes/internal/cluster"
)

// backupHooks returns the commands that Velero runs in the pod before and after its backup, as the page
// documents them.
func (b *testBed) backupHooks() (pre, post []string) {
	b.Helper()
	text, err := os.ReadFile("../../docs/how-to/back-up-agents-on-a-cluster.md")
	if err != nil {
		b.Fatal(err)
	}
	type hook struct{ Exec struct{ Command []string } }
	var schedule struct {
		Spec struct {
			Template struct {
				Hooks struct{ Resources []struct{ Pre, Post []hook } }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(manifest.FindStringSubmatch(string(text))[1]), &schedule); err != nil {
		b.Fatal(err)
	}
	resource := schedule.Spec.Template.Hooks.Resources[0]
	return resource.Pre[0].Exec.Command, resource.Post[0].Exec.Command
}

// TestABackupIsOfAVolumeAtRest runs the Velero hooks of docs/how-to/back-up-agents-on-a-cluster.md.
// It copies the volume twice between the pre hook and the post hook. Another pod must start on a
// copy.
func TestABackupIsOfAVolumeAtRest(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "backup")
	pre, post := b.backupHooks()
	dirs := b.volumes(2, corev1.ReadWriteOnce)
	b.createPod("one", nil)
	b.awaitReady("one")
	for _, words := range [][]string{{"hermes", "profile", "create", "coder"}, {"hinit", "start", "coder"}} {
		if r := b.execInPod("one", words...); r.exitCode != 0 {
			t.Fatal(r)
		}
	}
	if r := b.execInPod("one", pre...); r.exitCode != 0 {
		t.Fatal(r)
	}
	volume, free := dirs[0], dirs[1]
	if entries, err := os.ReadDir(volume); err != nil || len(entries) == 0 { // The claim may have got either of the two volumes.
		volume, free = free, volume
	}
	copyOf := func(to string) {
		t.Helper()
		if out, err := exec.Command("cp", "-a", volume+"/.", to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	copyOf(free)
	b.consistently(5*time.Second, func() string {
		if restarts(b.pod("one")) != 0 {
			return "a pod at rest was restarted"
		}
		return ""
	})
	if isPodReady(b.pod("one")) {
		t.Error("no gateway answers, and the pod is Ready")
	}
	later := t.TempDir()
	copyOf(later)
	// Ignore the logs, because hinit itself writes them.
	if out, err := exec.Command("diff", "-r", "--exclude=logs", "--exclude=.hinit*", free, later).CombinedOutput(); err != nil {
		t.Errorf("gateways have written while they rested: %s", out)
	}
	if r := b.execInPod("one", post...); r.exitCode != 0 {
		t.Fatal(r)
	}
	b.eventually("the gateways answer again", func() string {
		if r := b.execInPod("one", "hinit", "healthcheck"); r.exitCode != 0 {
			return r.String()
		}
		return ""
	})
	b.awaitReady("one")
	if r := b.execInPod("one", "hinit", "status"); strings.Contains(r.output, "stopped") || strings.Count(r.output, " up ") < 2 {
		t.Error(r)
	}
	b.mustRun("delete", "pod", "one")
	b.createPod("restored", nil)
	b.awaitReady("restored")
	b.eventually("what ran at the backup runs again", func() string {
		if has := gatewayPIDs(); len(has["default"]) != 1 || len(has["coder"]) != 1 {
			return "a gateway is missing"
		}
		return ""
	})
	if text, err := os.ReadFile(filepath.Join(free, "profiles/coder/gateway_state.json")); err != nil || !strings.Contains(string(text), "running") {
		t.Errorf("the restored volume: %v, %s", err, text)
	}
}
