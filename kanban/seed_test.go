package kanban

import (
	"fmt"
	"testing"
)

func TestDefaultAssignee(t *testing.T) {
	t.Parallel()
	t.Run("skipped without default", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("")
		r := b.tick()
		checkEqual(t, "unassigned", r.SkippedUnassigned, id)
		checkEqual(t, "spawned", spawnedIDs(r))
		checkEqual(t, "nonspawnable", r.SkippedNonspawnable)
		if got := b.task(id).Assignee; got != "" {
			t.Errorf("assignee %q", got)
		}
	})
	t.Run("auto-assigned", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = " Default "
		id := b.createReady("")
		r := b.tick()
		checkEqual(t, "auto-assigned", r.AutoAssigned, id)
		checkEqual(t, "unassigned", r.SkippedUnassigned)
		if len(r.Spawned) != 1 || r.Spawned[0].Assignee != "default" || b.task(id).Assignee != "default" {
			t.Errorf("spawned %+v, assignee %q", r.Spawned, b.task(id).Assignee)
		}
		if n := b.countEvents(id, "assigned"); n != 1 {
			t.Errorf("%d assigned events", n)
		}
		for _, e := range b.events(id) {
			if want := `{"assignee": "default", "source": "kanban.default_assignee"}`; e.Kind == "assigned" && e.Payload != want {
				t.Errorf("payload %s", e.Payload)
			}
		}
	})
	t.Run("dry run", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = "default"
		id := b.createReady("")
		before := dumpTables(t, b.Store, "tasks", "task_events", "task_runs")
		r := b.dryTick()
		checkEqual(t, "auto-assigned", r.AutoAssigned, id)
		checkEqual(t, "spawned", spawnedIDs(r), id)
		if after := dumpTables(t, b.Store, "tasks", "task_events", "task_runs"); after != before {
			t.Errorf("the dry run wrote:\n%s\n%s", before, after)
		}
	})
	t.Run("whitespace", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = " \t"
		id := b.createReady("")
		checkEqual(t, "unassigned", b.tick().SkippedUnassigned, id)
	})
	t.Run("missing profile is no fallback", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = "ghost"
		id := b.createReady("")
		r := b.tick()
		checkEqual(t, "unassigned", r.SkippedUnassigned, id)
		checkEqual(t, "nonspawnable", r.SkippedNonspawnable)
		checkEqual(t, "auto-assigned", r.AutoAssigned)
		if b.task(id).Assignee != "" {
			t.Error("the row was touched")
		}
	})
	t.Run("a failing check counts as exists", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = "broken"
		id := b.createReady("")
		checkEqual(t, "auto-assigned", b.tick().AutoAssigned, id)
	})
	t.Run("explicit untouched", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = "someother"
		id := b.createReady("default")
		r := b.tick()
		checkEqual(t, "auto-assigned", r.AutoAssigned)
		if len(r.Spawned) != 1 || r.Spawned[0].Assignee != "default" || b.task(id).Assignee != "default" {
			t.Errorf("spawned %+v", r.Spawned)
		}
	})
	t.Run("assigned and then capped", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = "alpha"
		b.dispatcher.Config.MaxInProgressPerProfile = new(1)
		first, second := b.createReady("alpha"), b.createReady("")
		r := b.tick()
		checkEqual(t, "spawned", spawnedIDs(r), first)
		checkEqual(t, "auto-assigned", r.AutoAssigned, second)
		checkEqual(t, "capped", r.SkippedCapped, CappedTask{second, "alpha", 1})
		if r = b.tick(); len(r.AutoAssigned) != 0 || b.countEvents(second, "assigned") != 1 {
			t.Error("it was assigned again")
		}
	})
	t.Run("review rows are never assigned", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.DefaultAssignee = "alpha"
		id := b.createReady("")
		b.execSQL("UPDATE tasks SET status = 'review' WHERE id = ?", id)
		checkEqual(t, "unassigned", b.tick().SkippedUnassigned, id)
	})
	t.Run("field exists", func(t *testing.T) {
		if r := newBoard(t).tick(); r.AutoAssigned == nil || len(r.AutoAssigned) != 0 {
			t.Errorf("%#v", r.AutoAssigned)
		}
	})
}

func TestPerProfileCap(t *testing.T) {
	t.Parallel()
	fill := func(b *testBoard, who string, n int) (ids []string) {
		for range n {
			ids = append(ids, b.createReady(who))
		}
		return ids
	}
	capped := func(r TickResult) map[string]int {
		n := make(map[string]int)
		for _, c := range r.SkippedCapped {
			n[c.Assignee]++
		}
		return n
	}
	want := func(t *testing.T, what string, got map[string]int, alpha, beta int) {
		t.Helper()
		if got["alpha"] != alpha || got["beta"] != beta {
			t.Errorf("%s: %v, not %d alpha, %d beta", what, got, alpha, beta)
		}
	}
	t.Run("no cap", func(t *testing.T) {
		b := newBoard(t)
		fill(b, "alpha", 5)
		fill(b, "beta", 3)
		r := b.tick()
		want(t, "spawned", spawnedByProfile(r), 5, 3)
		want(t, "capped", capped(r), 0, 0)
	})
	for _, dry := range []bool{true, false} {
		t.Run(fmt.Sprintf("cap 2, dry %t", dry), func(t *testing.T) {
			b := newBoard(t)
			b.dispatcher.Config.MaxInProgressPerProfile = new(2)
			fill(b, "alpha", 5)
			fill(b, "beta", 3)
			r, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{DryRun: dry})
			must(t, err)
			want(t, "spawned", spawnedByProfile(r), 2, 2)
			want(t, "capped", capped(r), 3, 1)
			for _, c := range r.SkippedCapped {
				if c.Current != 2 {
					t.Errorf("count %d in %+v", c.Current, c)
				}
			}
		})
	}
	t.Run("pre-existing running", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.MaxInProgressPerProfile = new(1)
		b.claimForPID(b.createReady("alpha"), 77, true)
		fill(b, "alpha", 2)
		fill(b, "beta", 2)
		r := b.tick()
		want(t, "spawned", spawnedByProfile(r), 0, 1)
		want(t, "capped", capped(r), 2, 1)
	})
	for _, bad := range []*int{new(0), new(-1), nil} {
		t.Run(fmt.Sprintf("invalid %v", bad), func(t *testing.T) {
			b := newBoard(t)
			b.dispatcher.Config.MaxInProgressPerProfile = bad
			fill(b, "alpha", 3)
			r := b.tick()
			want(t, "spawned", spawnedByProfile(r), 3, 0)
			want(t, "capped", capped(r), 0, 0)
		})
	}
	t.Run("next tick", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.MaxInProgressPerProfile = new(1)
		fill(b, "alpha", 3)
		r := b.tick()
		want(t, "spawned", spawnedByProfile(r), 1, 0)
		want(t, "capped", capped(r), 2, 0)
		first := r.Spawned[0].Task
		ok, err := b.Complete(t.Context(), b.now, first, Completion{Summary: "done"})
		if must(t, err); !ok {
			t.Fatal("cannot complete")
		}
		want(t, "while its process is alive", spawnedByProfile(b.tick()), 0, 0)
		b.procs.setProcess(b.runner.pid(first), false, 0)
		r = b.tick()
		want(t, "spawned", spawnedByProfile(r), 1, 0)
		want(t, "capped", capped(r), 1, 0)
		if r.Spawned[0].Task == first {
			t.Error("the same task again")
		}
	})
	t.Run("field exists", func(t *testing.T) {
		if r := newBoard(t).tick(); r.SkippedCapped == nil || len(r.SkippedCapped) != 0 {
			t.Errorf("%#v", r.SkippedCapped)
		}
	})
}
