package strict

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryVersionTakesTheManifests checks that the base and the components decode without unknown
// fields, with three versions of the API.
func TestEveryVersionTakesTheManifests(t *testing.T) {
	files, err := filepath.Glob("../../deploy/*/*.yaml")
	more, err2 := filepath.Glob("../../deploy/components/*/*.yaml")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	n := 0
	for _, name := range append(files, more...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.Contains(name, "/chart/"), filepath.Base(name) == "kustomization.yaml":
			continue
		case filepath.Base(name) == "monitor.yaml":
			continue // The API lacks this kind, which belongs to the Prometheus Operator.
		}
		for one := range strings.SplitSeq(string(text), "\n---\n") {
			n++
			if err := Decode([]byte(one)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d manifests", n)
	}
	if Decode([]byte("apiVersion: v1\nkind: Service\nspec: {port: 1}\n")) == nil {
		t.Error("an unknown field was taken")
	}
}
