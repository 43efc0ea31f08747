package top_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"hinit/client"
	"hinit/internal/testkit"
)

// TestSeveralHostsOnOneScreen checks that each row names its host, that an order reaches the right host, and that the screen
// shows a host that ends.
func TestSeveralHostsOnOneScreen(t *testing.T) {
	t.Parallel()
	first, second := newContainer(t, "", "coder"), newContainer(t, "", "coder")
	first.boot()
	second.boot()
	sockets := "eu=unix:" + first.dir + "/control.sock,us=unix:" + second.dir + "/control.sock"
	w := first.top(100, 24, "-H", sockets)
	w.awaitScreen("4 of 6 well 2 down", "2 hosts", "eu   gateway-coder", "us   gateway-coder")
	w.press("/")
	w.write("us coder")
	w.press("Enter", "x")
	w.awaitScreen("stop us:gateway-coder? y/n")
	w.press("y")
	w.awaitScreen("stop us:gateway-coder: done", "· down")
	if s := first.status("coder"); s.State != client.StateUp {
		t.Errorf("the other host's was stopped: %s", asJSON(s))
	}
	w.press("l")
	w.awaitScreen("log of us:gateway-coder", "Hermes Gateway Starting")
	w.press("l")
	w.escape()
	if err := second.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.awaitScreen("us: not answering since", "us   gateway-coder   ?", "eu   gateway-coder   ● up", "3 unknown")
	if out, code := first.run(built+"/hinit", "top", "-H", sockets); code != 4 || !strings.Contains(out, "eu:\n") || !strings.Contains(out, "no hinit listens on") {
		t.Errorf("%d %q", code, out)
	}
	if out, code := first.run(built+"/hinit", "top", "-H", "tcp:1"); code != 2 || !strings.Contains(out, "write unix:PATH") {
		t.Errorf("%d %q", code, out)
	}
	second.boot()
	testkit.Until(t, "the second host comes back", func() bool { return !strings.Contains(w.screen(), "not answering") })
	w.press("q")
	w.awaitScreen("it has ended with 0")
}

const speaking = `services:
  web:
    group: payments
    log: true
    env: {COLOUR: blue}
    command: ["/bin/sh", "-c", "trap 'echo WARNING: heard HUP' HUP; sleep 0.5; echo INFO: run begins; echo ERROR: a fault; while :; do sleep 0.1; done"]
  other:
    group: payments
    command: [/bin/sleep, "1000000"]
`

// TestASignalAndAShellFromTheScreen checks that a signal reaches the service, and that a shell has the service's
// environment. The screen must come back after the shell.
func TestASignalAndAShellFromTheScreen(t *testing.T) {
	t.Parallel()
	h := newContainer(t, speaking)
	h.boot()
	w := h.top(100, 24)
	w.awaitScreen("web", "q quit")
	w.press("/")
	w.write("web")
	w.press("Enter", "l")
	w.awaitScreen("INFO: run begins")
	w.press("S")
	w.awaitScreen("signal to web (HUP, USR1, 15; enter sends, esc doesn't): _")
	w.write("hup")
	w.press("Enter")
	w.awaitScreen("signal web: done", "WARNING: heard HUP")
	w.press("S")
	w.write("nonsense")
	w.press("Enter")
	w.awaitScreen(`"nonsense" is no signal`)
	w.press("!")
	testkit.Until(t, "the shell has the terminal", func() bool { return !strings.Contains(w.screen(), "hinit top") })
	w.write("echo the colour is $COLOUR")
	w.press("Enter")
	w.awaitScreen("the colour is blue")
	w.write("exit")
	w.press("Enter")
	w.awaitScreen("shell web: done", "hinit top", "log of web")
	w.press("q")
	w.awaitScreen("it has ended with 0")
}

// TestTheLogOfTheRunBeforeIsWritten checks that lines of one level can be written to a new file, but never over an
// existing one.
func TestTheLogOfTheRunBeforeIsWritten(t *testing.T) {
	t.Parallel()
	h := newContainer(t, speaking)
	h.boot()
	testkit.Until(t, "the first run has said all", func() bool { return h.status("web").Output != nil && h.status("web").Output.Lines == 2 })
	if _, err := h.client.Restart(t.Context(), "web", waiting); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.Signal(t.Context(), "web", 1); err != nil {
		t.Fatal(err)
	}
	w := h.top(100, 24)
	w.awaitScreen("web")
	w.press("/")
	w.write("web")
	w.press("Enter", "l")
	w.awaitScreen("WARNING: heard HUP")
	w.press("b")
	screen := w.awaitScreen("log of web, the run before:", "ERROR: a fault")
	if strings.Contains(screen, "WARNING: heard HUP") {
		t.Errorf("the log of the run before has lines of this one:\n%s", screen)
	}
	w.press("L", "L")
	testkit.Until(t, "the level leaves lines out", func() bool { return !strings.Contains(w.screen(), "INFO: run begins") })
	path, agents := h.dir+"/saved.log", h.dir+"/agents"
	if err := errors.Join(os.Mkdir(h.dir+"/roots", 0o755), os.Mkdir(agents, 0o755), os.Symlink("../roots", agents+"/link"), os.Chown(agents, 10000, 10000)); err != nil {
		t.Fatal(err)
	}
	for _, save := range [][2]string{{path, "save web: done"}, {path, "file exists"}, {agents + "/link/saved.log", "open " + agents}} {
		w.press("w", "C-u")
		w.write(save[0])
		w.press("Enter")
		w.awaitScreen(save[1])
	}
	if _, err := os.Lstat(h.dir + "/roots/saved.log"); err == nil {
		t.Error("root wrote through a link that an agent made")
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), "Z ERROR: a fault") {
		t.Errorf("the file has %q (%v)", text, err)
	}
}

// TestAGroupIsStoppedFromTheScreen checks that a folded group shows how many of its services are in trouble, and can be
// stopped with one order.
func TestAGroupIsStoppedFromTheScreen(t *testing.T) {
	t.Parallel()
	h := newContainer(t, speaking)
	h.boot()
	w := h.top(80, 24)
	w.awaitScreen("web", "q quit", "? help")
	w.press("p", "Home")
	w.awaitScreen("> ▾ @payments: 2 of 2 up")
	w.press("f")
	w.awaitScreen("> ▸ @payments: 2 of 2 up")
	w.press("x")
	w.awaitScreen("stop 2 services? y/n")
	w.press("y")
	w.awaitScreen("▸ @payments: 0 of 2 up")
	for _, name := range []string{"web", "other"} {
		if s := h.status(name); s.State != client.StateDown {
			t.Errorf("%s", asJSON(s))
		}
	}
}
