package v1alpha1

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// manifests is a block of objects on a page.
var manifests = regexp.MustCompile("(?s)```yaml\n(apiVersion: .*?)```")

// TestThePagesHaveNoUnknownField checks that each pool and profile in docs/ decodes without unknown fields. The tests
// of the cluster have the API server judge them too, but a short run leaves that out.
func TestThePagesHaveNoUnknownField(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range manifests.FindAllStringSubmatch(string(text), -1) {
			for doc := range strings.SplitSeq(block[1], "\n---\n") {
				var into any
				switch {
				case strings.Contains(doc, "kind: AgentPool\n"):
					into = new(AgentPool)
				case strings.Contains(doc, "kind: AgentProfile\n"):
					into = new(AgentProfile)
				default:
					continue
				}
				found[filepath.Base(page)]++
				if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
	}
	for _, page := range []string{"your-first-fleet.md", "run-a-fleet.md", "move-from-an-operator.md"} {
		if found[page] == 0 {
			t.Errorf("%s has no pool or profile", page)
		}
	}
}
