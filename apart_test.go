package hinit_test

import (
	"os"
	"strings"
	"testing"
)

// TestKubernetesIsAModuleOfItsOwn checks that only kubernetes/go.mod requires the Kubernetes
// libraries, which make builds minutes longer.
func TestKubernetesIsAModuleOfItsOwn(t *testing.T) {
	for file, want := range map[string]bool{"go.mod": false, "kubernetes/go.mod": true} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(text), "k8s.io/"); has != want {
			t.Errorf("%s requires modules of Kubernetes: %v", file, has)
		}
	}
	if text, err := os.ReadFile("kubernetes/go.mod"); err != nil || !strings.HasPrefix(string(text), "module hinit/kubernetes\n") {
		t.Errorf("kubernetes is part of the product's module (%v)", err)
	}
}
