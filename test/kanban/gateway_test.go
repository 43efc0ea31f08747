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

// TestTheBoardIsHeldBeforeAGatewayStarts checks that the service locks the boards before a gateway
// runs. A broken board must not block the gateway.
func TestTheBoardIsHeldBeforeAGatewayStarts(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	if strings.Contains(gateway(""), "/bin/sleep") {
		testkit.SkipOrFail(t, "there is no python3")
	}
	for name, c := range map[string]struct{ command, broken, says string }{
		"slow":              {command: `[/bin/sh, -c, "sleep 2; exec ` + bin + `/hinit-kanban serve"]`, says: "the board is held"},
		"no program":        {command: "[/nonexistent]", says: "the board is free"},
		"ends":              {command: "[/bin/false]", says: "the board is free"},
		"one broken board":  {broken: "kanban/boards/side/kanban.db", says: "the board is held"},
		"the default board": {broken: "kanban.db", says: "the board is free"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // This test mostly waits, so it runs beside others.
			b := makeBoardContainer(t, "")
			if c.command != "" {
				yaml, err := os.ReadFile(b.dir + "/hinit.yaml")
				b.check(err)
				b.check(os.WriteFile(b.dir+"/hinit.yaml", []byte(strings.Replace(string(yaml), "["+bin+"/hinit-kanban, serve]", c.command, 1)), 0o644))
			}
			if c.broken != "" {
				b.check(os.MkdirAll(filepath.Dir(filepath.Join(b.home, c.broken)), 0o755))
				b.check(os.WriteFile(filepath.Join(b.home, c.broken), []byte("this is no database, whatever its name says"), 0o644))
			}
			b.check(os.WriteFile(b.home+"/gateway_state.json", []byte(`{"desired_state": "running"}`), 0o644))
			b.start()
			var output string
			b.await("the gateway to start", func() bool {
				log, _ := os.ReadFile(filepath.Join(b.home, "logs/gateways/default/current"))
				output = string(log)
				return strings.Contains(output, "at its start")
			})
			if !strings.Contains(output, c.says) {
				t.Errorf("the gateway said\n%s", output)
			}
		})
	}
}

// TestTheGatewayNotifiesAndDecomposes checks that the agent's gateway still decomposes tasks and
// notifies chats beside the service.
func TestTheGatewayNotifiesAndDecomposes(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	if strings.Contains(gateway(""), "/bin/sleep") {
		testkit.SkipOrFail(t, "there is no python3")
	}
	b := newBoardContainer(t, "")
	s := b.board()
	defer s.Close()
	_, err := b.client.Start(b.Context(), "default", client.WaitOptions{})
	b.check(err)
	said := func() string {
		log, _ := os.ReadFile(filepath.Join(b.dir, "home/logs/gateways/default/current"))
		return string(log)
	}
	b.await("a round of the gateway", func() bool { return strings.Contains(said(), "skipped_locked") })
	id := b.create(s, kanban.Task{Title: "split me", Assignee: "coder", Status: kanban.Triage})
	b.subscribe(id)
	b.await("the chat to be told", func() bool { return strings.Contains(said(), "told chat "+id+" completed") })
	log := said()
	if !strings.Contains(log, "decomposed "+id) || strings.Contains(log, "dispatches") || strings.Contains(log, "disabled") {
		t.Errorf("the gateway said\n%s", log)
	}
	list, err := b.client.Runs(b.Context())
	b.check(err)
	if len(list) != 1 || !strings.Contains(list[0].Tag, id) {
		t.Errorf("PID 1 started %+v", list)
	}
	out := b.inside(bin+"/hinit-kanban", "doctor")
	if !strings.Contains(out, "ok       dispatcher   process ") {
		t.Errorf("doctor says\n%s", out)
	}
}
