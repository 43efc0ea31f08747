package kanban

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestCreate(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	for what, n := range map[string]Task{
		"no title":           {Title: " \n"},
		"blank assignee":     {Title: "x", Assignee: "  "},
		"bad kind":           {Title: "x", WorkspaceKind: "cloud"},
		"branch of scratch":  {Title: "x", Branch: "b"},
		"skill with a comma": {Title: "x", Skills: []string{"a,b"}},
		"status":             {Title: "x", Status: Running},
		"max_retries":        {Title: "x", MaxRetries: new(int64(0))},
	} {
		if _, err := b.Create(t.Context(), b.now, n); err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := b.Create(t.Context(), b.now, Task{Title: "x"}, "t_00000000"); err == nil || err.Error() != `cannot create task: unknown parents ["t_00000000"]` {
		t.Error(err)
	}
	b.opt.Toolsets = []string{"web", "file"}
	if _, err := b.Create(t.Context(), b.now, Task{Title: "x", Skills: []string{"web", "ok", "file"}}); err == nil ||
		!strings.Contains(err.Error(), "web") || !strings.Contains(err.Error(), "file") || strings.Contains(err.Error(), `"ok"`) {
		t.Errorf("toolsets: %v", err)
	}
	tasks, err := b.Tasks(t.Context(), TaskFilter{})
	if must(t, err); len(tasks) != 0 {
		t.Errorf("%d tasks were made", len(tasks))
	}

	parent := b.create(Task{Title: " A \n", Assignee: " Alpha ", CreatedBy: "user", Skills: []string{" s ", "s", ""}})
	if task := b.task(parent); task.Title != "A" || task.Assignee != "alpha" || task.WorkspaceKind != WorkspaceScratch || task.Status != Ready ||
		!regexp.MustCompile(`^t_[0-9a-f]{8}$`).MatchString(task.ID) {
		t.Errorf("%+v", task)
	}
	checkEqual(t, "skills", b.task(parent).Skills, "s")
	for status, want := range map[Status]Status{"": Todo, Triage: Triage, Scheduled: Scheduled, Blocked: Blocked} {
		b.checkStatus(b.create(Task{Status: status}, parent, parent), want)
	}
	child := b.create(Task{Title: "b", Tenant: "ä\"\u2028\U0001F600\x01", GoalMode: true}, parent)
	want := `{"assignee": null, "status": "todo", "parents": ["` + parent + `"], "tenant": "\u00e4\"\u2028\ud83d\ude00\u0001", "branch_name": null, "skills": null, "goal_mode": true}`
	if got := b.events(child)[0].Payload; got != want {
		t.Errorf("payload %s\nnot     %s", got, want)
	}

	b.opt.Workdir = "/srv/repo"
	if task := b.task(b.create(Task{WorkspaceKind: WorkspaceDir})); task.WorkspacePath != "/srv/repo" {
		t.Errorf("%+v", task)
	}
	if task := b.task(b.create(Task{})); task.WorkspacePath != "" {
		t.Errorf("scratch has %s", task.WorkspacePath)
	}

	first := b.create(Task{IdempotencyKey: "k"})
	if again := b.create(Task{IdempotencyKey: "k"}); again != first {
		t.Error("a second task with the key")
	}
	_, err = b.Archive(t.Context(), b.now, first)
	must(t, err)
	if again := b.create(Task{IdempotencyKey: "k"}); again == first {
		t.Error("an archived task was returned")
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for range 500 {
		id := newID()
		if len(id) != 10 || seen[id] {
			t.Errorf("%q", id)
		}
		seen[id] = true
	}
}

func TestAssignAndLink(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	if ok, err := b.Assign(t.Context(), b.now, "t_00000000", "alpha"); ok || err != nil {
		t.Errorf("unknown: %v %v", ok, err)
	}
	x, y, z := b.createReady("alpha"), b.createReady("alpha"), b.createReady("alpha")
	must(t, b.Link(t.Context(), b.now, x, y))
	must(t, b.Link(t.Context(), b.now, y, z))
	must(t, b.Link(t.Context(), b.now, y, z))
	b.checkStatus(y, Todo)
	b.checkStatus(z, Todo)
	if n := b.countEvents(z, "linked"); n != 1 {
		t.Errorf("%d linked events", n)
	}
	if got := b.events(y)[1].Payload; got != `{"parent": "`+x+`", "child": "`+y+`"}` {
		t.Errorf("payload %s", got)
	}
	for what, pair := range map[string][2]string{"itself": {x, x}, "cycle": {z, x}, "unknown": {x, "t_00000000"}} {
		if err := b.Link(t.Context(), b.now, pair[0], pair[1]); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	parents, children, err := b.Links(t.Context(), y)
	must(t, err)
	checkEqual(t, "parents", parents, x)
	checkEqual(t, "children", children, z)
	was, err := b.Unlink(t.Context(), b.now, x, y)
	if must(t, err); !was {
		t.Error("there was a link")
	}
	b.tick()
	b.checkStatus(y, Running)
	if _, err := b.Assign(t.Context(), b.now, y, "beta"); !errors.Is(err, ErrRunning) {
		t.Errorf("%v", err)
	}
}

func TestComplete(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	for status, want := range map[Status]bool{Ready: true, Blocked: true, Running: true, Todo: false, Triage: false, Scheduled: false, Review: false, Done: false, Archived: false} {
		id := b.createReady("alpha")
		if status == Running {
			b.claim(id)
		} else {
			b.execSQL("UPDATE tasks SET status = ? WHERE id = ?", status, id)
		}
		if ok, err := b.Complete(t.Context(), b.now, id, Completion{}); ok != want || err != nil {
			t.Errorf("%s: %v %v", status, ok, err)
		}
	}
	b.checkIntegrity()

	id := b.createReady("alpha")
	runs, err := b.Runs(t.Context(), id)
	if must(t, err); len(runs) != 0 {
		t.Error("a run before")
	}
	child := b.create(Task{Assignee: "beta"}, id)
	made := b.create(Task{CreatedBy: "alpha"})
	foreign := b.create(Task{CreatedBy: "user"})
	_, err = b.Complete(t.Context(), b.now, id, Completion{Summary: "x", CreatedCards: []string{made, foreign, "t_00000000"}})
	if want := fmt.Sprintf("cannot complete %s: it did not create %q; ", id, []string{foreign, "t_00000000"}); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Fatalf("%v", err)
	}
	b.checkStatus(id, Ready)
	if p := b.lastPayload(id, "completion_blocked_hallucination"); len(p["phantom_cards"].([]any)) != 2 || p["summary_preview"] != "x" {
		t.Errorf("%v", p)
	}
	summary := strings.Repeat("s", 500) + "\nsee t_deadbeef and " + made
	ok, err := b.Complete(t.Context(), b.now, id, Completion{
		Result: "ré", Summary: summary, Metadata: `{"a":1}`, CreatedCards: []string{made, child}, Artifacts: []string{"f"},
	})
	if must(t, err); !ok {
		t.Fatal("refused")
	}
	want := `{"result_len": 2, "summary": "` + strings.Repeat("s", 400) + `", "verified_cards": ["` + made + `", "` + child + `"], "artifacts": ["f"]}`
	for _, e := range b.events(id) {
		if e.Kind == "completed" && e.Payload != want {
			t.Errorf("payload %s", e.Payload)
		}
	}
	if p := b.lastPayload(id, "suspected_hallucinated_references"); p["source"] != "summary" || len(p["phantom_refs"].([]any)) != 1 {
		t.Errorf("%v", p)
	}
	if run := b.lastRun(id); run.Outcome != "completed" || run.Status != "done" || run.StartedAt != run.EndedAt || run.Metadata != `{"a":1}` || run.Summary != summary {
		t.Errorf("%+v", run)
	}
	b.checkStatus(child, Ready)
	b.checkIntegrity()
}

func TestAside(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	id := b.createReady("alpha")
	b.claim(id)
	ok, err := b.Block(t.Context(), b.now, id, "why?", 0)
	if must(t, err); !ok || b.lastRun(id).Outcome != "blocked" || b.lastPayload(id, "blocked")["reason"] != "why?" {
		t.Errorf("%v %+v", ok, b.lastRun(id))
	}
	if ok, _ := b.Block(t.Context(), b.now, id, "again", 0); ok {
		t.Error("a blocked task was blocked")
	}
	ok, err = b.Schedule(t.Context(), b.now, id, "", 0)
	if must(t, err); !ok {
		t.Error("not scheduled")
	}
	b.tick()
	b.checkStatus(id, Scheduled)
	parent := b.createReady("orion-cc")
	must(t, b.Link(t.Context(), b.now, parent, id))
	ok, err = b.Unblock(t.Context(), b.now, id)
	if must(t, err); !ok || b.lastPayload(id, "unblocked")["status"] != "todo" {
		t.Error("not unblocked to todo")
	}
	b.checkStatus(id, Todo)

	for _, dry := range []bool{true, false} {
		if err := b.Promote(t.Context(), b.now, id, PromoteOptions{DryRun: dry}); err == nil {
			t.Error("promoted in spite of its parent")
		}
	}
	must(t, b.Promote(t.Context(), b.now, id, PromoteOptions{Force: true, DryRun: true}))
	b.checkStatus(id, Todo)
	must(t, b.Promote(t.Context(), b.now, id, PromoteOptions{Force: true, Actor: "me", Reason: "now"}))
	b.checkStatus(id, Ready)
	if p := b.lastPayload(id, "promoted_manual"); p["actor"] != "me" || p["reason"] != "now" || p["forced"] != true {
		t.Errorf("%v", p)
	}
	if err := b.Promote(t.Context(), b.now, id, PromoteOptions{}); err == nil {
		t.Error("a ready task was promoted")
	}
	if err := b.Promote(t.Context(), b.now, "t_00000000", PromoteOptions{}); !errors.Is(err, ErrNoTask) {
		t.Errorf("%v", err)
	}
}

func TestArchiveAndDelete(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	id := b.createReady("alpha")
	child := b.create(Task{Assignee: "alpha"}, id)
	b.claim(id)
	err := b.AddComment(t.Context(), b.now, id, "user", " hello ")
	must(t, err)
	if p := b.lastPayload(id, "commented"); p["author"] != "user" || p["len"] != 5.0 {
		t.Errorf("%v", p)
	}
	for _, bad := range [][2]string{{"", "x"}, {"x", " "}} {
		if err := b.AddComment(t.Context(), b.now, id, bad[0], bad[1]); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := b.DeleteArchived(t.Context(), id); err == nil {
		t.Error("a running task was deleted")
	}
	ok, err := b.Archive(t.Context(), b.now, id)
	if must(t, err); !ok || b.lastRun(id).Outcome != "reclaimed" {
		t.Errorf("%v %+v", ok, b.lastRun(id))
	}
	b.checkStatus(child, Ready)
	if ok, _ := b.Archive(t.Context(), b.now, id); ok {
		t.Error("archived twice")
	}
	b.checkIntegrity()
	b.execSQL("INSERT INTO task_attachments (task_id, filename, stored_path, created_at) VALUES (?, 'f', 'f', 1)", id)
	b.execSQL("INSERT INTO kanban_notify_subs (task_id, platform, chat_id, created_at) VALUES (?, 'p', 'c', 1)", id)
	ok, err = b.DeleteArchived(t.Context(), id)
	if must(t, err); !ok {
		t.Error("not deleted")
	}
	for _, table := range []string{"task_comments", "task_events", "task_runs", "kanban_notify_subs", "task_attachments"} {
		n, err := queryAll[int](t.Context(), b.db, "SELECT count(*) FROM "+table+" WHERE task_id = ?", id)
		if must(t, err); n[0] != 0 {
			t.Errorf("%d rows left in %s", n[0], table)
		}
	}
	if _, err := b.Task(t.Context(), id); !errors.Is(err, ErrNoTask) {
		t.Errorf("%v", err)
	}
	if ok, err := b.DeleteArchived(t.Context(), id); ok || err != nil {
		t.Errorf("deleted twice: %v %v", ok, err)
	}
}

func TestEditAndStats(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	id := b.createReady("alpha")
	ok, err := b.Edit(t.Context(), b.now, id, TaskEdit{Title: new(" new "), Priority: new(int64(3))})
	if must(t, err); !ok || b.task(id).Title != "new" || b.task(id).Priority != 3 {
		t.Errorf("%v %+v", ok, b.task(id))
	}
	checkEqual(t, "events", b.eventKinds(id), "created", "edited", "reprioritized")
	if _, err := b.Edit(t.Context(), b.now, id, TaskEdit{Title: new(" ")}); err == nil {
		t.Error("a blank title was taken")
	}
	if ok, err := b.Edit(t.Context(), b.now, "t_00000000", TaskEdit{Title: new("x")}); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	b.claimForPID(b.createReady("alpha"), 71, true)
	b.createReady("")
	b.advance(time.Minute)
	st, err := b.Stats(t.Context(), b.now)
	must(t, err)
	if st.ByStatus[Ready] != 2 || st.ByStatus[Running] != 1 || st.ByAssignee["alpha"][Running] != 1 || st.OldestAge == nil || *st.OldestAge != 63 {
		t.Errorf("%+v", st)
	}
	list, err := b.Tasks(t.Context(), TaskFilter{Status: Ready, Assignee: "alpha"})
	if must(t, err); len(list) != 1 || list[0].ID != id {
		t.Errorf("%+v", list)
	}
	events, err := b.Events(t.Context(), "", 2)
	if must(t, err); len(events) < 2 || events[0].ID != 3 {
		t.Errorf("%+v", events)
	}
}
