package kanban_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/kanban"
)

// TestFigures prints how long a task waits for its worker, and how long a free slot stays empty. It
// checks only that the work is done.
func TestFigures(t *testing.T) {
	b := newBoardContainer(t, "  max_in_progress: 8\n")
	s := b.board()
	defer s.Close()
	var waits []time.Duration
	for range 20 {
		begin := time.Now()
		id := b.create(s, kanban.Task{Title: "x", Assignee: "coder"})
		var run client.Run
		b.await("its worker", func() bool {
			list, err := b.client.Runs(b.Context())
			i := slices.IndexFunc(list, func(r client.Run) bool { return strings.Contains(r.Tag, id) })
			if i >= 0 {
				run = list[i]
			}
			return err == nil && i >= 0
		})
		waits = append(waits, run.StartedAt.Sub(begin))
	}
	slices.Sort(waits)
	t.Logf("from create to exec: median %v, longest %v", waits[len(waits)/2], waits[len(waits)-1])

	n := 60
	if *full {
		n = 900 // PID 1 remembers only a thousand ended runs.
	}
	for i := range n {
		b.create(s, kanban.Task{Title: fmt.Sprint("slot ", i), Assignee: "ops"})
	}
	b.awaitLong("every task to be done", func() bool {
		st, err := s.Stats(b.Context(), time.Now())
		return err == nil && st.ByStatus[kanban.Done] == n+20
	})
	var list []client.Run
	b.await("the end of every worker", func() bool {
		all, err := b.client.Runs(b.Context())
		list = slices.DeleteFunc(all, func(r client.Run) bool { return r.Profile != "ops" })
		return err == nil && !slices.ContainsFunc(list, func(r client.Run) bool { return r.End == nil })
	})
	slices.SortFunc(list, func(a, b client.Run) int { return cmp.Compare(a.Seq, b.Seq) })
	var starts []time.Time
	for _, r := range list {
		starts = append(starts, r.StartedAt)
	}
	slices.SortFunc(starts, time.Time.Compare)
	var gaps []time.Duration // Times from a worker's end to the next start, while a task is ready.
	for _, r := range list {
		if i, _ := slices.BinarySearchFunc(starts, r.End.EndedAt, time.Time.Compare); i < len(starts) {
			gaps = append(gaps, starts[i].Sub(r.End.EndedAt))
		}
	}
	slices.Sort(gaps)
	late := len(gaps) - len(slices.DeleteFunc(slices.Clone(gaps), func(d time.Duration) bool { return d > 20*time.Millisecond }))
	t.Logf("%d workers through 8 slots: from an end to the next start median %v, longest %v, %d of %d above 20ms",
		len(list), gaps[len(gaps)/2], gaps[len(gaps)-1], late, len(gaps))
}
