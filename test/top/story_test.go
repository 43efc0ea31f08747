package top_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/client"
	"hinit/internal/testkit"
)

// TestFiftyProfiles checks that an operator finds and repairs two of fifty profiles with the keys
// alone. The page tells how many keys that takes.
func TestFiftyProfiles(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("p%02d", i))
	}
	h := newContainer(t, "restart: {initial: 50ms}\n", names...)
	// One gateway has lost its messenger, and the other crashes repeatedly.
	h.write("data/profiles/p31/agent.conf", `platforms={"telegram":{"state":"failed","error_message":"unauthorized: the token was revoked"}}`+"\n")
	h.write("data/profiles/p17/agent.conf", "crash_after=1ms\ncrash_code=3\n")
	h.boot()
	testkit.Until(t, "what is wrong is seen", func() bool { return h.status("p17").CrashLoop && h.status("p31").Problem != "" })
	w := h.top(120, 40)

	// The first two lines are the services in trouble, each with its reason.
	w.awaitScreen("1 in trouble 1 ailing 49 of 52 well")
	testkit.Until(t, "the troubles come first", func() bool {
		lines := strings.Split(w.screen(), "\n")
		return strings.HasPrefix(lines[2], "> gateway-p17") && strings.Contains(lines[2], "✗ crash-loop") && strings.Contains(lines[3], "gateway-p31") &&
			strings.Contains(lines[3], "! ailing") && strings.Contains(lines[3], "telegram is failed")
	})
	w.press("d") // The key shows the details of the first service.
	w.awaitScreen("last exit  code 3 (crash)", "| ")
	w.press("Space") // The key marks the service, and shows the next one's details.
	w.awaitScreen("telegram is failed: unauthorized: the token was revoked")

	// An operator has repaired both causes.
	for _, name := range []string{"p17", "p31"} {
		if err := os.Remove(filepath.Join(h.dir, "data/profiles", name, "agent.conf")); err != nil {
			t.Fatal(err)
		}
	}
	w.press("Space", "R") // The keys mark this service too, and begin a rollout.
	w.awaitScreen("restart one after the other 2 services? y/n")
	w.press("y")
	w.awaitScreen("rollout: 2 of 2 are restarted and ready")
	for _, name := range []string{"p17", "p31"} {
		if s := h.status(name); s.State != client.StateUp || !s.Ready || s.CrashLoop || s.Problem != "" {
			t.Errorf("%s is not mended: %s", name, asJSON(s))
		}
	}
	w.awaitScreen("51 of 52 well")
	page, err := os.ReadFile("../../docs/how-to/look-after-many-agents.md")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%d keys", w.keys); !strings.Contains(string(page), text) {
		t.Errorf("it took %s; the page says otherwise", text)
	}
}

// TestARolloutStopsAtAFailure checks that a rollout stops at a service that does not get ready. The services after it
// must keep running as they are.
func TestARolloutStopsAtAFailure(t *testing.T) {
	t.Parallel()
	h := newContainer(t, "", "a", "b", "c")
	h.boot()
	w := h.top(120, 20)
	w.awaitScreen("4 of 5 well")
	h.write("data/profiles/b/agent.conf", "exit_now=1\n")
	first, before := h.status("a").RunNumber, h.status("c").PID
	w.press("/")
	w.write("gateway- !default")
	w.press("Enter", "*", "R")
	w.awaitScreen("restart one after the other 3 services? y/n  gateway-a gateway-b gateway-c")
	w.press("n")
	if s := h.status("a"); s.RunNumber != first {
		t.Errorf("it was restarted without a yes: %s", asJSON(s))
	}
	w.press("R", "y")
	w.awaitScreen("rollout stopped at gateway-b, 1 of 3 are done: ")
	if s := h.status("a"); s.RunNumber == first || s.State != client.StateUp {
		t.Errorf("a: %s", asJSON(s))
	}
	if s := h.status("c"); s.PID != before {
		t.Errorf("c was touched: %s", asJSON(s))
	}
	w.escape() // Esc removes the filter.
	w.press("/")
	w.write("gateway-c")
	w.press("Enter", "x", "y")
	w.awaitScreen("stop gateway-c: done", "· down")
	w.press("s", "y")
	w.awaitScreen("start gateway-c: done", "● up")
}
