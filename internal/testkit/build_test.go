package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// All test binaries of a run share one build of a program.
func TestBuiltOnceForAll(t *testing.T) {
	dir, before := t.TempDir(), shared
	defer func() { shared = before }()
	shared = t.TempDir()
	if err := Build(dir, "hinit-shim"); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(dir, "hinit-shim"))
	if err != nil || len(first) < 1<<20 {
		t.Fatalf("%d bytes, %v", len(first), err)
	}
	if err := os.MkdirAll(filepath.Join(shared, "faulty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "faulty", "hinit"), []byte("built by another"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Build(dir, "faulty/hinit"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "faulty", "hinit")); err != nil || string(got) != "built by another" {
		t.Errorf("%q, %v", got, err)
	}
	if err := Build(dir, "no-such-program"); err == nil {
		t.Error("what nobody knows was built")
	}
}
