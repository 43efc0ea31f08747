package v1alpha1

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTheDefinitionsAreThoseOfTheSource generates the definitions and the deep copies again, and compares them with the files.
func TestTheDefinitionsAreThoseOfTheSource(t *testing.T) {
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	// The test reads the sources itself, so that go test does not use a cached result after a change of them.
	for _, file := range sources {
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "tool", "-modfile=tools/go.mod", "controller-gen", "object", "crd", "paths=./api/...", "output:object:dir="+dir, "output:crd:dir="+dir)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(made) != 3 {
		t.Fatalf("made %q: %v", made, err)
	}
	for _, file := range made {
		have := filepath.Join("../../deploy/fleet/crds", filepath.Base(file))
		if filepath.Ext(file) == ".go" {
			have = filepath.Base(file)
		}
		want, err := os.ReadFile(file)
		got, err2 := os.ReadFile(have)
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is out of date; run go generate in kubernetes/ (%v, %v)", have, err, err2)
		}
	}
}
