package top_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"hinit/internal/testkit"
)

// TestEverySizeShowsTheTable checks the screen on the narrowest, the usual and the widest terminal, and on one whose
// size changes meanwhile.
func TestEverySizeShowsTheTable(t *testing.T) {
	t.Parallel()
	h := newContainer(t, "", "coder", "writer")
	h.boot()
	w := h.top(40, 12)
	fits := func(width, height int, texts ...string) {
		t.Helper()
		screen := w.awaitScreen(texts...)
		lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
		if len(lines) != height {
			t.Errorf("%d lines at %dx%d:\n%s", len(lines), width, height, screen)
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > width {
				t.Errorf("a line is wider than %d: %q", width, line)
			}
		}
		if !strings.Contains(lines[len(lines)-1], "help") {
			t.Errorf("the last line at %dx%d is %q", width, height, lines[len(lines)-1])
		}
	}
	fits(40, 12, "NAME", "STATE", "> default", "● up")
	w.resize(80, 24)
	fits(80, 24, "SINCE", "CPU", "MEM", "e events")
	w.resize(250, 70)
	fits(250, 70, "PROC", "PID", "EXIT", "RST", "▁", "NOTE", "rollout", "q quit")
	w.press("l")
	w.awaitScreen("log of gateway-", "Hermes Gateway Starting")
	w.resize(40, 12)
	w.awaitScreen("log of gateway-")
	w.press("l", "?")
	w.awaitScreen("hinit top: keys")
	w.press("PgDn", "PgDn", "PgDn", "PgDn", "PgDn")
	w.awaitScreen("quit")
	w.press("x") // Any key leaves the help; this one must not stop the service.
	w.resize(120, 30)
	fits(120, 30, "gateway-writer")
	w.press("q")
	w.awaitScreen("it has ended with 0")
}

// TestItGoesOnWhileHinitBecomesAnother checks that the screen comes back by itself after a re-execution and after the
// end of PID 1.
func TestItGoesOnWhileHinitBecomesAnother(t *testing.T) {
	t.Parallel()
	h := newContainer(t, "", "coder")
	h.boot()
	w := h.top(100, 20)
	w.awaitScreen("gateway-coder")
	w.press("e")
	w.awaitScreen("gateway-coder starting → up")
	if _, err := h.client.Reexec(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.Stop(t.Context(), "coder", waiting); err != nil {
		t.Fatal(err)
	}
	w.awaitScreen("· down", "→ down")
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.awaitScreen("not answering since", "gateway-coder") // The screen must keep the last known rows.
	testkit.Until(t, "PID 1 is gone", func() bool { _, err := h.client.Health(t.Context()); return err != nil })
	h.boot()
	testkit.Until(t, "the screen comes back", func() bool {
		screen := w.screen()
		return strings.Contains(screen, "1 of 3 well 2 down") && !strings.Contains(screen, "not answering")
	})
	w.press("q")
	w.awaitScreen("it has ended with 0")
}

// TestTopReportsAStoppedPID1 checks that the screen reports a PID 1 that is stopped: it keeps its connections and answers nothing.
func TestTopReportsAStoppedPID1(t *testing.T) {
	t.Parallel()
	h := newContainer(t, "", "coder")
	h.boot()
	w := h.top(100, 20)
	w.awaitScreen("gateway-coder")
	if err := h.cmd.Process.Signal(stopSignal); err != nil {
		t.Fatal(err)
	}
	w.awaitScreen("not answering since")
	w.press("down", "d") // The keys must still work.
	w.awaitScreen("wanted")
	if err := h.cmd.Process.Signal(contSignal); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "it answers again", func() bool { return !strings.Contains(w.screen(), "not answering") })
}

// TestNothingReachesTheTerminal checks that terminal sequences in log lines and notes don't reach the terminal.
func TestNothingReachesTheTerminal(t *testing.T) {
	t.Parallel()
	const hostile = `services:
  evil:
    command: ["/bin/sh", "-c", "printf '\\033]0;owned\\007\\033[2J\\033[31mred\\033[0m \\342\\200\\256gnol \\377 plain\\n'; exec sleep 1000000", "\x1b[2Jowned"]
    log: true
`
	h := newContainer(t, hostile)
	h.boot()
	w := h.shell(120, 40, "script -qfec '"+built+"/hinit top' "+h.dir+"/typescript")
	w.awaitScreen("evil")
	w.press("/")
	w.write("evil")
	w.press("Enter", "d")
	w.awaitScreen(`\x1b[2Jowned`)
	w.press("l")
	w.awaitScreen("log of evil", `\x1b]0;owned\a\x1b[2Jred \u202egnol \xff plain`)
	w.press("q")
	w.awaitScreen("it has ended with 0")
	raw, err := os.ReadFile(h.dir + "/typescript")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"\x1b]0;", "\u202e", "\x1b[2Jred", "\x1b[31mred", "\xff plain"} {
		if strings.Contains(string(raw), bad) {
			t.Errorf("the terminal was given %q", bad)
		}
	}
}

// TestWithoutATerminalATableIsPrinted checks that the table is printed once into a pipe. Without hinit there must be
// one line on stderr.
func TestWithoutATerminalATableIsPrinted(t *testing.T) {
	t.Parallel()
	h := newContainer(t, "", "coder")
	if out, code := h.run(built+"/hinit", "top"); code != 4 || strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "cannot run hinit top: ") {
		t.Errorf("without hinit: %d %q", code, out)
	}
	h.boot()
	if out, code := h.run(built+"/hinit", "top"); code != 0 || !strings.Contains(out, "NAME") || !strings.Contains(out, "gateway-coder") || strings.Contains(out, "\x1b") {
		t.Errorf("%d %q", code, out)
	}
	if out, code := h.run(built+"/hinit", "top", "--theme", "x"); code != 2 || !strings.Contains(out, "colour-blind") {
		t.Errorf("%d %q", code, out)
	}
	if out, code := h.run(built+"/hinit", "top", "-H", "x"); code != 2 || !strings.Contains(out, "write unix:PATH") {
		t.Errorf("%d %q", code, out)
	}
	if out, code := h.run("/bin/sh", "-c", built+"/hinit top --help >/dev/full"); code != 1 || !strings.Contains(out, "no space left") {
		t.Errorf("the help is cut: %d %q", code, out)
	}
	// Without hinit-top and hinit-tools, a message names the missing program.
	alone := h.dir + "/alone/hinit"
	program, err := os.ReadFile(built + "/hinit")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(h.dir+"/alone", 0o755), testkit.WriteProgram(alone, program)); err != nil {
		t.Fatal(err)
	}
	h.env = append(h.env, "HINIT_RUNTIME_DIR="+h.dir) // Only hinit-tools reads hinit.yaml to find the socket.
	if out, code := h.run(alone, "top"); code != 1 || !strings.Contains(out, alone+"-tools: no such file or directory; install it beside hinit") {
		t.Errorf("%d %q", code, out)
	}
	if out, code := h.run(alone, "doctor"); code != 1 || !strings.Contains(out, alone+"-tools: no such file or directory; install it beside hinit") {
		t.Errorf("%d %q", code, out)
	}
	if out, code := h.run(alone, "status", "coder"); code != 0 {
		t.Errorf("%d %q", code, out)
	}
}
