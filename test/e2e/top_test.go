package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// checkTopScreen checks hinit top on docker exec's terminal during a re-execution of PID 1.
func checkTopScreen(t *testing.T, c *container) {
	term := testkit.StartOnTerminal(t, 24, 110, exec.Command("docker", "exec", "-it", "-u", "hermes", "-e", "TERM=xterm-256color", c.id, "hinit", "top"))
	term.AwaitText("gateway-default")
	eventually(t, settle, func() error { // hinit refuses the re-execution while it writes the boot log.
		if r := c.exec("hinit", "reexec"); r.code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
	c.mustExec("hinit", "profile", "create", "newcomer")
	term.AwaitText("gateway-newcomer") // The screen must show the data of the new program.
	before := len(term.Text())
	term.Resize(30, 120)
	testkit.Until(t, "all of it is drawn again", func() bool {
		text := term.Text()[before:]
		return strings.Contains(text, "gateway-default") && strings.Contains(text, "gateway-newcomer")
	})
	term.Type("q")
	if code := term.ExitCode(); code != 0 {
		t.Errorf("exit code %d:\n%q", code, tail(term.Text()))
	}
}
