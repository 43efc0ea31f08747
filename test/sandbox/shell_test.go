package sandbox_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// TestShellOnATerminal checks hinit sandbox shell on a terminal: job control, size changes, Ctrl-C
// and the exit code.
func TestShellOnATerminal(t *testing.T) {
	inEachSetup(t, func(t *testing.T, p *installation) {
		cmd := exec.Command(filepath.Join(built, "hinit-sandbox"), "shell")
		cmd.Env = append(append(cleanEnv(), p.env...), "TERM=xterm", "TERMINAL_DOCKER_NETWORK=none")
		setUser(cmd, p.uid)
		term := testkit.StartOnTerminal(t, 33, 101, cmd)
		term.Type("PS1='# '; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is' 'a' 'tty\n")
		term.AwaitText("is a tty")
		term.Type("while [ \"$(stty size 2>/dev/null)\" != '33 101' ]; do usleep 50000; done; echo size' 'is' 'shown\n")
		term.AwaitText("size is shown")
		term.Type("while [ \"$(stty size)\" != '44 122' ]; do usleep 50000; done; echo size' 'has' 'changed\n")
		testkit.Until(t, "the shell knows that the size has changed", func() bool {
			term.Resize(44, 121)
			term.Resize(44, 122)
			return strings.Contains(term.Text(), "size has changed")
		})
		term.Type("sh -c \"echo now' 'asleep; exec sleep 5557\"\n")
		term.AwaitText("now asleep")
		term.Type("\x03")
		term.Type("echo shell' 'lives\n")
		term.AwaitText("shell lives")
		if r := p.sandbox("exec", "ps"); strings.Contains(r.out, "sleep 5557") {
			t.Errorf("the command that Ctrl-C should end still runs: %v", r)
		}
		term.Type("exit 7\n")
		if code := term.ExitCode(); code != 7 {
			t.Errorf("exit code %d, want 7; the terminal shows %q", code, term.Text())
		}
	})
}
