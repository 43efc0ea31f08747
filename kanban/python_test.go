package kanban

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// pythonCmd returns a command that runs the Python program that also writes the board.
func pythonCmd(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return exec.CommandContext(t.Context(), path, append([]string{"testdata/writer.py"}, args...)...)
}

func pythonOutput(t *testing.T, args ...string) string {
	t.Helper()
	cmd := pythonCmd(t, args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// TestPythonSharesTheFile checks that boards made here and by Python have the same structure.
func TestPythonSharesTheFile(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	theirs := filepath.Join(t.TempDir(), "kanban.db")
	pythonOutput(t, "init", theirs)
	want := pythonOutput(t, "check", theirs)

	b := newBoard(t)
	id := b.createReady("alpha")
	if got := pythonOutput(t, "check", b.paths.DB); got != want {
		t.Errorf("structure here\n%s\nthere\n%s", got, want)
	}
	b.checkStatus(id, Ready)

	s, err := Open(t.Context(), Paths{DB: theirs}, Options{Env: testEnv{}.get})
	must(t, err)
	defer s.Close()
	_, err = s.Create(t.Context(), time.Unix(1, 0), Task{Title: "x"})
	must(t, err)
	if got := pythonOutput(t, "check", theirs); got != want || !strings.Contains(want, `"integrity": "ok"`) || !strings.Contains(want, `"journal": "wal"`) {
		t.Errorf("structure after opening\n%s\nbefore\n%s", got, want)
	}
	if names, _ := filepath.Glob(theirs + ".migration*"); len(names) > 0 {
		t.Errorf("a present file was migrated: %q", names)
	}
}

// TestPythonSharesTheLocks checks that this dispatcher and Python respect each other's locks, flock
// and lockf.
func TestPythonSharesTheLocks(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	for _, kind := range []string{"flock", "lockf"} {
		b := newBoard(t)
		id := b.createReady("alpha")
		cmd := pythonCmd(t, kind, b.paths.TickLock())
		in, err := cmd.StdinPipe()
		must(t, err)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		must(t, err)
		if line != "held\n" {
			t.Fatal(line)
		}
		if r := b.tick(); !r.SkippedLocked {
			t.Errorf("%s: %+v", kind, r)
		}
		must(t, in.Close())
		_ = cmd.Wait()
		lock, held, err := TryLock(b.paths.TickLock())
		if must(t, err); !held {
			t.Fatalf("%s: not released", kind)
		}
		if got := pythonOutput(t, kind, b.paths.TickLock()); got != "refused" {
			t.Errorf("%s: %s", kind, got)
		}
		lock.Release()
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	}
}

// TestPythonWritesTheSameJSON checks that payloads have the form of Python's json.dumps.
func TestPythonWritesTheSameJSON(t *testing.T) {
	t.Parallel()
	cases := []any{
		jsonObject{{"a", nil}, {"b", true}, {"c", -3}, {"d", "x"}, {"e", []string{"y", "z"}}, {"f", []string{}}},
		jsonObject{},
		[]string{"ä ö \u2028 \U0001F600 \x7f \x01 / < > & ' \" \\ \b\f\n\r\t"},
	}
	var in strings.Builder
	for _, v := range cases {
		in.WriteString(encodeLikePython(v) + "\n")
	}
	cmd := pythonCmd(t, "json")
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.Output()
	must(t, err)
	if string(out) != in.String() {
		t.Errorf("here\n%sthere\n%s", in.String(), out)
	}
}

// readStructure returns the types and indexes of a file, without their order.
func readStructure(t *testing.T, path string) map[string]any {
	t.Helper()
	var m map[string]any
	must(t, json.Unmarshal([]byte(pythonOutput(t, "check", path)), &m))
	for name, v := range m {
		if rows, ok := v.([]any); ok && !strings.HasPrefix(name, "idx_") {
			byName := make(map[string]any)
			for _, r := range rows {
				if col, ok := r.([]any); ok {
					byName[col[0].(string)] = col[1:]
				}
			}
			m[name] = byName
		}
	}
	return m
}
