package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"hinit/client"
	"hinit/internal/runs"
	"hinit/internal/testkit"
	"hinit/kanban"
)

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	os.Exit(m.Run())
}

// TestAWorkerOfAnIsolatedProfileNeedsHinit checks that a dispatcher without hinit refuses to start
// the worker of an isolated profile.
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

// TestTwoBoardsMayLookForProcessesAtATime checks that two boards can scan for leftover processes at
// the same time.
func TestTwoBoardsMayLookForProcessesAtATime(t *testing.T) {
	r := &Runner{}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			if pids, ok := r.Leftovers(kanban.RunRef{DB: fmt.Sprint("/nowhere/", n), Task: "t_1"}); len(pids) > 0 || !ok {
				t.Errorf("board %d: %v, %t", n, pids, ok)
			}
		})
	}
	all.Wait()
}

// TestEndedRunsAreForgotten checks that the many runs that an agent starts don't fill the
// dispatcher's memory.
func TestEndedRunsAreForgotten(t *testing.T) {
	r := &Runner{runs: make(map[string]client.Run), runEnded: make(chan struct{}), workerEnded: make(chan struct{}, 1)}
	r.storeRun(client.Run{Tag: "alive", Seq: 1})
	last := uint64(10 * runs.MaxEndedRuns)
	for seq := uint64(2); seq <= last; seq++ {
		r.storeRun(client.Run{Tag: fmt.Sprint(seq), Seq: seq, End: &client.RunEnd{}})
	}
	_, alive := r.runs["alive"]
	_, latest := r.runs[fmt.Sprint(last)]
	if len(r.runs) > 3*runs.MaxEndedRuns || !alive || !latest {
		t.Errorf("%d runs are remembered; the living one: %t, the latest: %t", len(r.runs), alive, latest)
	}
}
