package cli

import (
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// hinit sandbox show must mask control characters, also in JSON, which permits some of them. The command of a job could
// otherwise move the cursor of root's terminal.
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

// TestARequestWithoutWordsPanicked checks that a client that sends no word gets an error. Before, each such request panicked in the
// service, and wrote its stack to the log.
func TestARequestWithoutWordsPanicked(t *testing.T) {
	var errs strings.Builder
	if code := Main(t.Context(), nil, daemon.Request{}, sandbox.Streams{Err: &errs}); code != cmdline.WrongUsage || !strings.HasPrefix(errs.String(), "cannot run") {
		t.Errorf("code %d: %s", code, errs.String())
	}
}
