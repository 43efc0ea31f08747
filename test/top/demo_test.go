package top_test

import (
	"os"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// TestTheDemoOpensIt checks that the demo shows the screen on a terminal, and that leaving the
// screen ends the demo.
func TestTheDemoOpensIt(t *testing.T) {
	t.Parallel()
	h := newContainer(t, "")
	w := h.shell(120, 30, built+"/hinit demo --agent "+built+"/example-agent")
	w.awaitScreen("> gateway-", "gateway-coder", "gateway-writer")
	w.awaitScreen("1 crash ") // The demo's gateway crashes once, and must restart.
	w.press("/")
	w.write("coder")
	w.press("Enter", "l")
	w.awaitScreen("log of gateway-coder", "Hermes Gateway Starting")
	w.press("q")
	w.awaitScreen("demo: the init has ended with code 0, and nothing it started is left", "it has ended with 0")
}

// TestTheDemoWithoutTheScreen checks that the demo, without hinit-top, describes what it would show.
func TestTheDemoWithoutTheScreen(t *testing.T) {
	t.Parallel()
	h := newContainer(t, "")
	for _, name := range []string{"/hinit", "/hinit-tools"} {
		program, err := os.ReadFile(built + name)
		if err != nil {
			t.Fatal(err)
		}
		h.write("alone"+name, string(program))
		if err := os.Chmod(h.dir+"/alone"+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w := h.shell(120, 60, h.dir+"/alone/hinit demo --agent "+built+"/example-agent")
	w.awaitScreen("so the demo prints", "three gateways are up")
	w.press("C-c")
	testkit.Until(t, "it ends", func() bool { return strings.Contains(w.screen(), "it has ended with 0") })
}
