package runner

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/runs"
)

func TestWhatMayNotRun(t *testing.T) {
	elsewhere := errors.New("another container has the profiles")
	r := &Runner{
		Book: runs.NewBook(), Actor: fsutil.Self(), MayRun: func() error { return elsewhere },
		Config: func() *config.Config { return &config.Config{Runs: map[string]config.Run{"worker": {}}} },
	}
	for _, tt := range []struct {
		ask  client.RunRequest
		kind client.Kind
	}{
		{client.RunRequest{Template: "shell"}, client.KindUnknown},
		{client.RunRequest{Template: "worker", Tag: "a/b c"}, client.KindBadRequest},
	} {
		var refused *client.Error
		if _, err := r.StartRun(t.Context(), tt.ask); !errors.As(err, &refused) || refused.Kind != tt.kind {
			t.Errorf("%+v: %v", tt.ask, err)
		}
	}
	if _, err := r.StartRun(t.Context(), client.RunRequest{Template: "worker", Tag: "one"}); !errors.Is(err, elsewhere) {
		t.Errorf("without the lease: %v", err)
	}
}

// TestALogIsAppendedTo, and never where a link leads that the agent has put there.
func TestALogIsAppendedTo(t *testing.T) {
	r := &Runner{Actor: fsutil.Self()}
	dir := t.TempDir()
	for range 2 {
		f, err := r.log(filepath.Join(dir, "run.log"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString("line\n")
		_ = f.Close()
	}
	if text, err := os.ReadFile(filepath.Join(dir, "run.log")); err != nil || string(text) != "line\nline\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Symlink("run.log", filepath.Join(dir, "link.log")); err != nil {
		t.Fatal(err)
	}
	if f, err := r.log(filepath.Join(dir, "link.log")); err == nil {
		_ = f.Close()
		t.Error("a link was followed")
	}
	if f, err := r.log(""); f != nil || err != nil {
		t.Errorf("without a path: %v, %v", f, err)
	}
}
