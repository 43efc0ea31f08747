package pool

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"hinit/kubernetes/api/v1alpha1"
)

// TestTheHooksOfABackupFindThePodsOfAPool compares the page about Velero and VolSync with the objects of a pool: the label, the
// container of the hooks, and the claim of a host. The hooks themselves run in a pod in TestABackupIsOfAVolumeAtRest.
func TestTheHooksOfABackupFindThePodsOfAPool(t *testing.T) {
	text, err := os.ReadFile("../../../docs/how-to/back-up-agents-on-a-cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	set, _ := setOf(t, newTestPool(), 1)
	selector := "`labelSelector: {matchLabels: {" + v1alpha1.PoolLabel + ": agents}}`"
	if set.Spec.Template.Labels[v1alpha1.PoolLabel] != "agents" || !strings.Contains(string(text), selector) {
		t.Errorf("the pods have labels %v, and the page does not say %s", set.Spec.Template.Labels, selector)
	}
	if claim := set.Spec.VolumeClaimTemplates[0].Name + "-" + set.Name + "-0"; !strings.Contains(string(text), "`sourcePVC: "+claim+"`") {
		t.Errorf("the claim of a host is %s, and the page does not say so", claim)
	}
	kinds := map[string]bool{}
	for _, m := range regexp.MustCompile("(?s)```yaml\n(apiVersion: .*?)```").FindAllStringSubmatch(string(text), -1) {
		var o struct {
			Kind string
			Spec struct {
				Template struct {
					Hooks struct {
						Resources []struct {
							Pre, Post []struct{ Exec struct{ Container string } }
						}
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(m[1]), &o); err != nil {
			t.Fatal(err)
		}
		for _, r := range o.Spec.Template.Hooks.Resources {
			for _, hook := range slices.Concat(r.Pre, r.Post) {
				kinds[o.Kind] = true
				if !slices.ContainsFunc(set.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == hook.Exec.Container }) {
					t.Errorf("a pod of a pool has no container %q", hook.Exec.Container)
				}
			}
		}
	}
	if !kinds["Schedule"] {
		t.Error("the page has no Schedule with hooks")
	}
}
