package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"hinit/internal/control/show"
	"hinit/kanban"
	"hinit/kanban/cli/serve"
)

// The verbs that look at the board as a whole.
func lookVerbs() []verb {
	return []verb{
		{name: "tail", args: "ID", summary: "follow the events of a task", run: func(c *call) int { return follow(c, 1) }},
		{name: "watch", summary: "follow the events of the board", run: func(c *call) int { return follow(c, 0) }},
		{name: "stats", summary: "count tasks by status and by profile", run: stats},
		{name: "assignees", summary: "list the profiles and who else has tasks", run: assignees},
	}
}

// follow prints events, those of one task or of all, and goes on until it is interrupted.
func follow(c *call, ids int) int {
	c.asJSON()
	last := c.flags.Int("n", 20, "begin with the last `N`")
	_ = c.flags.Float64("interval", 0, "without effect: changes are told, `SECONDS`")
	once := c.flags.Bool("no-follow", false, "don't wait for more")
	words, code, ok := c.parse(ids, ids)
	if !ok {
		return code
	}
	id := ""
	if ids > 0 {
		id = words[0]
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		if id != "" {
			if _, err := s.Task(ctx, id); err != nil {
				return c.failed("follow "+id, err)
			}
		}
		past, err := s.Events(ctx, id, 0, 0)
		if err != nil {
			return c.failed("follow the board", err)
		}
		var cursor int64
		if len(past) > 0 {
			cursor = past[len(past)-1].ID
		}
		c.showEvents(past[max(0, len(past)-max(0, *last)):], id == "")
		if *once {
			return exitDone
		}
		changes, err := serve.Watch(s.Paths().DB)
		if err != nil {
			return c.failed("follow the board", err)
		}
		defer changes.Close()
		for {
			select {
			case <-ctx.Done():
				return exitDone
			case <-changes.C:
			}
			news, err := s.Events(ctx, id, cursor, 0)
			if err != nil && ctx.Err() == nil {
				return c.failed("follow the board", err)
			}
			if len(news) > 0 {
				cursor = news[len(news)-1].ID
				c.showEvents(news, id == "")
			}
		}
	})
}

func (c *call) showEvents(list []kanban.Event, all bool) {
	for _, e := range list {
		if c.json {
			line, err := json.Marshal(e)
			if err == nil {
				fmt.Fprintf(c.Out, "%s\n", line)
			}
			continue
		}
		c.showEvent(e, all)
	}
}

func (c *call) showEvent(e kanban.Event, all bool) {
	task := ""
	if all {
		task = e.TaskID + "  "
	}
	c.print("  %s  %s%s %s\n", at(e.CreatedAt), task, show.Line(e.Kind), show.Line(e.Payload))
}

func stats(c *call) int {
	c.asJSON()
	all := c.flags.Bool("all", false, "every board that there is, with what is blocked and the last attempts; always JSON")
	if _, code, ok := c.parse(0, 0); !ok {
		return code
	}
	if *all {
		return c.overviews()
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		st, err := s.Stats(ctx, c.Now())
		if err != nil {
			return c.failed("count tasks", err)
		}
		if c.json {
			return c.printJSON(st)
		}
		w := c.table()
		for _, status := range kanban.Statuses {
			fmt.Fprintf(w, "%s\t%d\n", status, st.ByStatus[status])
		}
		for _, status := range slices.Sorted(maps.Keys(st.ByStatus)) {
			if !known(status) {
				fmt.Fprintf(w, "%s (unknown)\t%d\n", show.Line(string(status)), st.ByStatus[status])
			}
		}
		_ = w.Flush()
		for _, who := range slices.Sorted(maps.Keys(st.ByAssignee)) {
			var parts []string
			for _, status := range kanban.Statuses {
				if n := st.ByAssignee[who][status]; n > 0 {
					parts = append(parts, fmt.Sprintf("%d %s", n, status))
				}
			}
			c.print("%s: %s\n", show.Line(who), strings.Join(parts, ", "))
		}
		if st.OldestAge > 0 {
			c.print("oldest ready task: %s\n", time.Duration(st.OldestAge)*time.Second)
		}
		return exitDone
	})
}

// overview is a board as the status page shows it.
type overview struct {
	Board   string        `json:"board"`
	Name    string        `json:"name"`
	Error   string        `json:"error"` // why there is no more to be said of it, "" when there is
	Stats   kanban.Stats  `json:"stats"`
	Blocked []taskLine    `json:"blocked"`
	Runs    []attemptLine `json:"runs"` // the newest first
}

type taskLine struct {
	ID       string `json:"id"`
	Title    string `json:"title"`
	Assignee string `json:"assignee"`
	Error    string `json:"error"` // of the last failure
}

type attemptLine struct {
	Task      string `json:"task"`
	Title     string `json:"title"`
	Profile   string `json:"profile"`
	Outcome   string `json:"outcome"` // "" while it runs
	Error     string `json:"error"`
	StartedAt int64  `json:"started_at"`
	EndedAt   int64  `json:"ended_at"` // 0 while it runs
}

// overviewMost is how many tasks and attempts of a board are in an overview.
const overviewMost = 20

// overviews prints every board. A file that is not there is not made.
func (c *call) overviews() int {
	ctx, cancel := interruptible()
	defer cancel()
	b := c.boards()
	metas, err := b.List()
	if err != nil {
		return c.failed("list the boards", err)
	}
	list := []overview{}
	for _, m := range metas {
		paths, err := b.Paths(m.Slug)
		if err == nil {
			if _, err = os.Stat(paths.DB); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		o := overview{Board: m.Slug, Name: m.Name, Blocked: []taskLine{}, Runs: []attemptLine{}}
		if err == nil {
			err = c.overview(ctx, paths, &o)
		}
		if err != nil {
			o.Error = err.Error()
		}
		list = append(list, o)
	}
	return c.printJSON(list)
}

func (c *call) overview(ctx context.Context, paths kanban.Paths, o *overview) error {
	s, err := c.openAt(ctx, paths)
	if err != nil {
		return err
	}
	defer s.Close()
	if o.Stats, err = s.Stats(ctx, c.Now()); err != nil {
		return err
	}
	blocked, err := s.Tasks(ctx, kanban.Filter{Status: kanban.Blocked, Limit: overviewMost})
	if err != nil {
		return err
	}
	for _, t := range blocked {
		o.Blocked = append(o.Blocked, taskLine{t.ID, t.Title, t.Assignee, t.LastFailureError})
	}
	runs, err := s.LastRuns(ctx, overviewMost)
	if err != nil {
		return err
	}
	titles := make(map[string]string)
	for _, r := range runs {
		if _, known := titles[r.TaskID]; !known {
			t, err := s.Task(ctx, r.TaskID)
			if err != nil && !errors.Is(err, kanban.ErrNoTask) {
				return err
			}
			titles[r.TaskID] = t.Title
		}
		o.Runs = append(o.Runs, attemptLine{r.TaskID, titles[r.TaskID], r.Profile, r.Outcome, r.Error, r.StartedAt, r.EndedAt})
	}
	return nil
}

func assignees(c *call) int {
	c.asJSON()
	if _, code, ok := c.parse(0, 0); !ok {
		return code
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		st, err := s.Stats(ctx, c.Now())
		if err != nil {
			return c.failed("list assignees", err)
		}
		type row struct {
			Name   string                `json:"name"`
			OnDisk bool                  `json:"on_disk"` // it is a profile
			Counts map[kanban.Status]int `json:"counts"`
		}
		rows := make(map[string]row)
		for _, name := range kanban.ProfileDirs(c.boards().Root).List() {
			rows[name] = row{name, true, map[kanban.Status]int{}}
		}
		for who, by := range st.ByAssignee {
			rows[who] = row{who, rows[who].OnDisk, by}
		}
		list := make([]row, 0, len(rows))
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			list = append(list, rows[name])
		}
		if c.json {
			return c.printJSON(list)
		}
		w := c.table()
		for _, r := range list {
			kind, tasks := "profile", 0
			if !r.OnDisk {
				kind = "no profile: works through its own terminal"
			}
			for _, n := range r.Counts {
				tasks += n
			}
			fmt.Fprintf(w, "%s\t%d\t%s\n", show.Line(r.Name), tasks, kind)
		}
		_ = w.Flush()
		return exitDone
	})
}
