package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	os.Exit(m.Run())
}

// A dispatcher without hinit must refuse to start the worker of an isolated profile, because only hinit can isolate it.
func TestAWorkerOfAnIsolatedProfileNeedsHinit(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hinit.yaml")
	if err := os.WriteFile(file, []byte("profiles: {coder: {isolation: files}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HINIT_CONFIG", file)
	for profile, refused := range map[string]bool{"coder": true, "writer": false} {
		if got := refuseIsolated(profile); (got != nil) != refused || refused && !strings.Contains(got.Error(), "coder: it is isolated") {
			t.Errorf("the worker of %s is refused with: %v", profile, got)
		}
	}
}
