package kanban_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/client"
	"hinit/internal/testkit"
	"hinit/kanban"
)

// The agent's gateway runs as it is beside the service: it decomposes tasks and tells chats, and dispatches nothing.
func TestTheGatewayNotifiesAndDecomposes(t *testing.T) {
	t.Parallel() // it waits
	if strings.Contains(gateway(""), "/bin/sleep") {
		testkit.Cannot(t, "there is no python3")
	}
	b := newBox(t, "")
	s := b.board()
	defer s.Close()
	_, err := b.client.Start(b.Context(), "default", client.Wait{})
	b.must(err)
	said := func() string {
		log, _ := os.ReadFile(filepath.Join(b.dir, "home/logs/gateways/default/current"))
		return string(log)
	}
	b.await("a round of the gateway", func() bool { return strings.Contains(said(), "skipped_locked") })
	id := b.create(s, kanban.NewTask{Title: "split me", Assignee: "coder", Status: kanban.Triage})
	b.subscribe(id)
	b.await("the chat to be told", func() bool { return strings.Contains(said(), "told chat "+id+" completed") })
	log := said()
	if !strings.Contains(log, "decomposed "+id) || strings.Contains(log, "dispatches") || strings.Contains(log, "disabled") {
		t.Errorf("the gateway said\n%s", log)
	}
	list, err := b.client.Runs(b.Context())
	b.must(err)
	if len(list) != 1 || !strings.Contains(list[0].Tag, id) {
		t.Errorf("PID 1 started %+v", list)
	}
	out := b.inside(bin+"/hinit-kanban", "doctor")
	if !strings.Contains(out, "ok       dispatcher   process ") {
		t.Errorf("doctor says\n%s", out)
	}
}
