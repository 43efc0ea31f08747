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
	cluster.InFull(t)
	b := withServer(t)
	dir, err := cluster.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	b.must("apply", "--server-side", "-f", dir)
	b.must("apply", "-f", "../deploy/fleet/crds") // The definitions stay, as they do after the tests of a fleet.
	b.must("wait", "crd", "--all", "--for=condition=Established", "--timeout=1m")
	t.Cleanup(func() { b.must("delete", "-f", dir) })
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
				if ns := o.Metadata.Namespace; ns != "" && b.try("get", "namespace", ns).code != 0 {
					b.must("create", "namespace", ns)
					t.Cleanup(func() { b.must("delete", "namespace", ns, "--wait=false") })
				}
				b.ns = "default"
				if ns := o.Metadata.Namespace; ns != "" {
					b.ns = ns
				}
				r := b.feed(doc, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
				if r.code != 0 || strings.Contains(r.out, "Warning") {
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
	if r := b.feed("apiVersion: velero.io/v1\nkind: Schedule\nmetadata: {name: wrong}\nspec: {schedule: x, template: {hook: {}}}\n", "apply", "--dry-run=server", "--validate=strict", "-f", "-"); r.code == 0 {
		t.Error("an unknown field was taken:", r)
	}
}
