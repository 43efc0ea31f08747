package program

import (
	"io"
	"os"
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/sandbox"
)

// TestOutputThatCouldNotBeWrittenWasNoFailure checks that hinit sandbox fails if its output can't
// be written, as on a full disk.
func TestOutputThatCouldNotBeWrittenWasNoFailure(t *testing.T) {
	t.Setenv("HERMES_HOME", t.TempDir()+"/profiles/coder")
	t.Setenv("HINIT_SANDBOX_SOCKET", t.TempDir()+"/none.sock")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, words := range []string{"--help", "help", "ls --help", "exec --help", "serve --help", "cp --help", "logs", "ls", "ls --json"} {
		stdout, stderr := os.Stdout, os.Stderr
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout, os.Stderr = full, w
		code := Program{func(string) (sandbox.FullEngine, error) { return controlCharEngine{}, nil }}.Run(append([]string{"hinit-sandbox"}, strings.Fields(words)...))
		os.Stdout, os.Stderr = stdout, stderr
		_ = w.Close()
		output, _ := io.ReadAll(r)
		_ = r.Close()
		if code != cmdline.ExitFailed || !strings.Contains(string(output), "no space left on device") {
			t.Errorf("hinit sandbox %s: code %d, %q", words, code, output)
		}
	}
}
