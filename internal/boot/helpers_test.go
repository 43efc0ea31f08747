package boot

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

const agentUID = 10000

func testAgentActor() *fsutil.Actor {
	return fsutil.NewActor(fsutil.Identity{UID: agentUID, GID: agentUID, Groups: []uint32{agentUID}})
}

type logRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *logRecorder) say(l LogLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l.Text)
}

func (r *logRecorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func uidOf(t testing.TB, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return int(fsutil.UID(info))
}
