package program

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"hinit/internal/testkit"
	"hinit/sandbox"
)

// controlCharEngine is an engine with one container, whose log contains control characters.
type controlCharEngine struct{ sandbox.FullEngine }

func (controlCharEngine) List(context.Context, map[string]string) ([]sandbox.Container, error) {
	return []sandbox.Container{{ID: "1", Name: "box", Labels: sandbox.AgentLabels(sandbox.Key{Profile: "coder"}), State: sandbox.Running}}, nil
}

func (controlCharEngine) Inspect(context.Context, string) (sandbox.Container, error) {
	return sandbox.Container{}, sandbox.ErrGone
}

func (controlCharEngine) Logs(_ context.Context, _ string, _ bool, out, errs io.Writer) error {
	for _, w := range []io.Writer{out, errs} {
		if _, err := io.WriteString(w, "\x1b]0;owned\a\x1b[31mred\nend\n"); err != nil {
			return err
		}
	}
	return nil
}
func (controlCharEngine) Close() error { return nil }

// TestTheLogOfASandboxControlsNoTerminal checks that control characters in a container's log are
// masked on a terminal.
func TestTheLogOfASandboxControlsNoTerminal(t *testing.T) {
	near, far, err := testkit.OpenTerminal(24, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	t.Setenv("HERMES_HOME", t.TempDir()+"/profiles/coder")
	t.Setenv("HINIT_SANDBOX_SOCKET", t.TempDir()+"/none.sock")
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = far, far
	code := Program{func(string) (sandbox.FullEngine, error) { return controlCharEngine{}, nil }}.Run([]string{"hinit-sandbox", "logs"})
	os.Stdout, os.Stderr = stdout, stderr
	_ = far.Close()
	seen, _ := io.ReadAll(near) // ReadAll fails when the terminal closes.
	if text := string(seen); code != 0 || strings.Contains(text, "\x1b]") || strings.Contains(text, "\a") || strings.Count(text, "\x1b[31mred\x1b[0m\r\nend\r\n") != 2 {
		t.Errorf("exit code %d, the terminal got %q", code, text)
	}
}
