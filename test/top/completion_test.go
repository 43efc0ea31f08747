package top_test

import (
	"os/exec"
	"testing"

	"hinit/internal/testkit"
)

// TestShellsCompleteGroupsAndPatterns checks the completion of groups and patterns in real shells, by pressing keys.
func TestShellsCompleteGroupsAndPatterns(t *testing.T) {
	t.Parallel()
	h := newContainer(t, speaking)
	h.boot()
	for shell, begin := range map[string]string{
		"bash": "bash --norc --noprofile -i",
		"zsh":  "zsh -f -i",
		"fish": "fish --no-config",
	} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				testkit.SkipOrFail(t, "needs "+shell+" (test/install-tools)")
			}
			w := h.runOnTerminal(t, 100, 24, "PS1='> ' PATH="+built+":$PATH "+begin)
			w.write(map[string]string{
				"bash": "source <(hinit completion bash)",
				"zsh":  "autoload -Uz compinit && compinit -u -D && source <(hinit completion zsh)",
				"fish": "hinit completion fish | source",
			}[shell])
			w.press("Enter")
			w.write("echo ready | tr a-z A-Z")
			w.press("Enter")
			w.awaitScreen("READY")
			for _, c := range []struct{ typed, done string }{
				{"hinit stop @pa", "hinit stop @payments"},
				{"hinit restart oth", "hinit restart other"},
				{"hinit logs --level wa", "hinit logs --level warning"},
			} {
				w.press("C-l")
				w.write(c.typed)
				w.press("Tab")
				w.awaitScreen(c.done)
				w.press("C-u")
			}
			// A pattern with a match is a complete word, so the shell closes its quote.
			w.press("C-l")
			w.write("hinit status 'w*")
			w.press("Tab")
			w.awaitScreen("hinit status 'w*'")
			w.write("; echo ended | tr a-z A-Z")
			w.press("Enter")
			w.awaitScreen("web ", "ENDED")
		})
	}
}
