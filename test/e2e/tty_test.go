package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// TestTerminal checks a shell with docker run -it: terminal ownership, size changes and Ctrl-C.
func TestTerminal(t *testing.T) {
	parallel(t)
	name := "hinit-e2e-" + runID + "-tty"
	t.Cleanup(func() { docker("rm", "-fv", name) })
	term := testkit.StartOnTerminal(t, 33, 101, exec.Command("docker", "run", "-it", "--name", name, "--label", runLabel, requireImage(t), "sh"))
	term.Type("PS1='# '; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is' 'a' 'tty\n")
	term.AwaitText("is a tty")
	// The client reports the size only after the start, and may miss early changes.
	term.Type("while [ \"$(stty size 2>/dev/null)\" != '33 101' ]; do usleep 50000; done; echo size' 'is' 'shown\n")
	term.AwaitText("size is shown")
	term.Type("while [ \"$(stty size)\" != '44 122' ]; do usleep 50000; done; echo size' 'has' 'changed\n")
	testkit.Until(t, "the shell knows that the size has changed", func() bool {
		term.Resize(44, 121)
		term.Resize(44, 122)
		return strings.Contains(term.Text(), "size has changed")
	})
	term.Type("sh -c \"echo now' 'asleep; exec sleep 1000\"\n") // The foreground command prints this text.
	term.AwaitText("now asleep")
	term.Type("\x03")
	term.Type("echo shell' 'lives\n")
	term.AwaitText("shell lives")
	term.Type("exit 7\n")
	if code := term.ExitCode(); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}

// TestTerminalWithoutInput checks docker run -t, whose terminal has no input.
func TestTerminalWithoutInput(t *testing.T) {
	parallel(t)
	r := runContainer(t, []string{"-t"}, "sh", "-c", "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is a tty >/dev/tty")
	if r.code != 0 || !strings.Contains(r.out, "is a tty") {
		t.Error(r)
	}
}
