package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

func TestADirectoryIsLockedOnlyOnALocalFileSystem(t *testing.T) {
	for path, wants := range map[string]string{"": "another process is finding or making it", "/proc": ""} {
		warned := ""
		m := fakeManager(t, newFake(), func(o *Options) { o.Warn = func(text string) { warned += text } })
		m.store.path = cmp.Or(path, m.store.path)
		unlock, err := m.Lock(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err = m.Lock(ctx, nil)
		cancel()
		if got := fmt.Sprint(err); !strings.Contains(got, cmp.Or(wants, "<nil>")) || (wants == "") != strings.Contains(warned, "without locks") {
			t.Errorf("in %s the second says %v; warnings: %q", m.store.path, err, warned)
		}
		unlock()
	}
}

// TestRootPutAHelperOfTheAgentIntoSandboxes checks that root takes no helper from a directory of
// PATH that the agent can change.
func TestRootPutAHelperOfTheAgentIntoSandboxes(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	helper := filepath.Join(dir, helperName)
	if err := os.WriteFile(helper, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if found, err := FindHelper(""); found != helper || err != nil {
		t.Errorf("in a directory of root's: %q, %v", found, err)
	}
	if err := os.Chown(dir, 10000, 10000); err != nil {
		t.Fatal(err)
	}
	if found, err := FindHelper(""); found != "" || err == nil {
		t.Errorf("in a directory of the agent: %q, %v", found, err)
	}
}
