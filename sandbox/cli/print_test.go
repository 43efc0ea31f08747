package cli

import (
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// TestNothingInASandboxMovesATerminal checks that hinit sandbox show masks control characters, also
// in JSON. A job's command could otherwise control root's terminal.
func TestNothingInASandboxMovesATerminal(t *testing.T) {
	for _, json := range []bool{true, false} {
		var out strings.Builder
		i := &invocation{Streams: sandbox.Streams{Out: &out}, options: options{json: json}}
		if err := i.print(sandbox.Job{Command: "\u009b2J\u202e"}, [][]string{{"Job", "\u009b2J\u202e"}, {"a", "b"}}); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); strings.ContainsAny(text, "\u009b\u202e") || !strings.Contains(text, `\u009b2J\u202e`) || !strings.HasSuffix(text, "\n") {
			t.Errorf("json %t: %q", json, text)
		}
	}
}

// TestARequestWithoutWordsPanicked checks that a request without words gets an error. Each such
// request panicked in the service.
func TestARequestWithoutWordsPanicked(t *testing.T) {
	var errs strings.Builder
	if code := Main(t.Context(), nil, daemon.Request{}, sandbox.Streams{Err: &errs}); code != cmdline.ExitUsage || !strings.HasPrefix(errs.String(), "cannot run") {
		t.Errorf("code %d: %s", code, errs.String())
	}
}
