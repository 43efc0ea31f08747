package initlog

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

func TestAWarningIsSaidOnceAndKept(t *testing.T) {
	var out strings.Builder
	var kept []string
	v := New(func() io.Writer { return &out }, func(warning string) bool {
		if slices.Contains(kept, warning) {
			return false
		}
		kept = append(kept, warning)
		return true
	}, NewTerminationLog())
	v.Warn("no room for %s", "two\nlines")
	v.Warn("no room for %s", "two\nlines")
	v.Say("%d settings changed", 2)
	v.Print("as it is: 100%d")
	const want = "[hinit] warning: no room for two"
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], want) || lines[1] != "[hinit] 2 settings changed" || lines[2] != "as it is: 100%d" {
		t.Errorf("it said\n%s", out.String())
	}
	if len(kept) != 1 || strings.Contains(kept[0], "\n") {
		t.Errorf("it kept %q", kept)
	}
}

// TestTheTerminationMessageTellsWhatCameBefore checks that the termination message contains the last lines of hinit's
// log while the container runs. kubectl describe then shows them also for a container that the kernel has killed.
func TestTheTerminationMessageTellsWhatCameBefore(t *testing.T) {
	w := &TerminationLog{path: t.TempDir() + "/termination-log", wake: make(chan struct{}, 1)}
	if err := os.WriteFile(w.path, []byte(strings.Repeat("old", 5000)), 0o666); err != nil {
		t.Fatal(err)
	}
	v := New(func() io.Writer { return io.Discard }, func(string) bool { return true }, w)
	v.Say("gateway-coder: exited with code 1 after 3s (crash)")
	v.AddToTermination("gateway-coder: token sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789-abcdefghijklmnop is wrong")
	has := func() string {
		text, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	testkit.Until(t, "the message of a container that the kernel kills", func() bool {
		return strings.HasPrefix(has(), killed+"\n[hinit] gateway-coder: exited with code 1") && strings.Contains(has(), "is wrong")
	})
	if strings.Contains(has(), "abcdefghijklmnop") {
		t.Errorf("the message has a secret: %s", has())
	}
	for range 100 {
		v.Say("%s", strings.Repeat("long ", 100))
	}
	v.End(3)
	v.Say("too late")
	if text := has(); !strings.HasPrefix(text, "exit code 3, after:\n") || len(text) > maxMessageBytes || strings.Contains(text, "too late") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}
