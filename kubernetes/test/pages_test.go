package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"hinit/kubernetes/internal/cluster"
)

// manifest matches a YAML block with objects on a page.
var manifest = regexp.MustCompile("(?s)```yaml\n(apiVersion: .*?)```")

// TestTheServerTakesTheObjectsOfThePages checks that the API server accepts every object in docs/, strictly, by the
// definitions of the projects that the objects belong to.
func TestTheServerTakesTheObjectsOfThePages(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withServer(t)
	dir, err := cluster.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	b.mustRun("apply", "--server-side", "-f", dir)
	b.mustRun("apply", "-f", "../deploy/fleet/crds") // The definitions stay, as they do after the tests of a fleet.
	b.mustRun("wait", "crd", "--all", "--for=condition=Established", "--timeout=1m")
	t.Cleanup(func() { b.mustRun("delete", "-f", dir) })
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range manifest.FindAllStringSubmatch(string(text), -1) {
			for doc := range strings.SplitSeq(m[1], "\n---\n") {
				var o struct {
					Kind     string
					Metadata struct{ Namespace string }
				}
				if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
					t.Errorf("%s: %v", page, err)
					continue
				}
				kinds[o.Kind] = true
				if ns := o.Metadata.Namespace; ns != "" && b.run("get", "namespace", ns).exitCode != 0 {
					b.mustRun("create", "namespace", ns)
					t.Cleanup(func() { b.mustRun("delete", "namespace", ns, "--wait=false") })
				}
				b.ns = "default"
				if ns := o.Metadata.Namespace; ns != "" {
					b.ns = ns
				}
				r := b.runWithInput(doc, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
				if r.exitCode != 0 || strings.Contains(r.output, "Warning") {
					t.Errorf("%s: %v", page, r)
				}
				b.ns = "default"
			}
		}
	}
	for _, kind := range []string{"Application", "GitRepository", "Kustomization", "ReplicationSource", "Schedule"} {
		if !kinds[kind] {
			t.Errorf("no page has a %s", kind)
		}
	}
	if r := b.runWithInput("apiVersion: velero.io/v1\nkind: Schedule\nmetadata: {name: wrong}\nspec: {schedule: x, template: {hook: {}}}\n", "apply", "--dry-run=server", "--validate=strict", "-f", "-"); r.exitCode == 0 {
		t.Error("an unknown field was taken:", r)
	}
}
