package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"hinit/internal/control/show"
	"hinit/kanban"
)

// The verbs that make, list and show tasks.
func taskVerbs() []verb {
	return []verb{
		{name: "create", args: "TITLE", summary: "make a task", run: create},
		{name: "list", aliases: []string{"ls"}, summary: "list tasks", run: listTasks},
		{name: "show", args: "ID", summary: "show a task with its links, comments, attempts and events", run: showTask},
		{name: "edit", args: "ID", summary: "change what a task says", run: edit},
		{name: "comment", args: "ID TEXT", summary: "write a remark on a task", run: comment},
		{name: "archive", args: "ID...", summary: "put tasks away", run: archive},
	}
}

func create(c *call) int {
	n := kanban.NewTask{}
	var parents, skills list
	var runtime seconds
	var retries, turns number
	var due when
	var triage, blocked, goal bool
	initial := c.flags.String("initial-status", "", "put it into `STATUS`: triage, blocked, scheduled, or ready where nothing is in the way")
	c.flags.Var(&due, "due", "`WHEN` it is due: a date, a time as in RFC 3339, or seconds since 1970")
	c.flags.StringVar(&n.Body, "body", "", "opening post, `TEXT`")
	c.flags.StringVar(&n.Assignee, "assignee", "", "`PROFILE` that works on it")
	c.flags.Var(&parents, "parent", "`ID` of a task that must be done before; may be repeated")
	c.flags.StringVar(&n.Tenant, "tenant", "", "`NAME` to filter by")
	c.flags.Int64Var(&n.Priority, "priority", 0, "higher is first, `N`")
	c.flags.StringVar(&n.CreatedBy, "created-by", "user", "`WHO`")
	c.flags.StringVar(&n.WorkspaceKind, "workspace", "", "`KIND`: scratch, worktree or dir; KIND:PATH names the directory")
	c.flags.StringVar(&n.Branch, "branch", "", "branch of a worktree, `NAME`")
	c.flags.StringVar(&n.IdempotencyKey, "idempotency-key", "", "`KEY`: the task that has it is returned, and none made")
	c.flags.Var(&runtime, "max-runtime", "`TIME` for one attempt: seconds, or 30m")
	c.flags.Var(&retries, "max-retries", "failures after which it is blocked, `N`")
	c.flags.Var(&skills, "skill", "`NAME` of a skill for its worker; may be repeated")
	c.flags.StringVar(&n.ModelOverride, "model", "", "model for its worker, `NAME`")
	c.flags.BoolVar(&triage, "triage", false, "put it into triage")
	c.flags.BoolVar(&blocked, "blocked", false, "put it into blocked")
	c.flags.BoolVar(&goal, "goal", false, "goal mode")
	c.flags.Var(&turns, "goal-max-turns", "`N` turns in goal mode")
	c.asJSON()
	words, code, ok := c.parse(1, 1)
	if !ok {
		return code
	}
	n.Title, n.Parents, n.Skills, n.GoalMode, n.DueAt = words[0], parents, skills, goal, int64(due)
	n.MaxRuntimeSeconds, n.MaxRetries, n.GoalMaxTurns = runtime.n, retries.n, turns.n
	n.WorkspaceKind, n.WorkspacePath, _ = strings.Cut(n.WorkspaceKind, ":")
	switch {
	case triage && blocked || (triage || blocked) && *initial != "":
		return c.fail(exitUsage, "cannot create a task in more than one status; choose one")
	case *initial != "" && *initial != string(kanban.Ready) && *initial != string(kanban.Todo):
		n.Status = kanban.Status(*initial)
	case triage:
		n.Status = kanban.Triage
	case blocked:
		n.Status = kanban.Blocked
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		id, err := s.Create(ctx, c.Now(), n)
		if err != nil {
			return c.failed("create a task", err)
		}
		t, err := s.Task(ctx, id)
		if err != nil {
			return c.failed("create a task", err)
		}
		if c.json {
			return c.printJSON(t)
		}
		c.print("Created %s  (%s, assignee=%s)\n", t.ID, t.Status, dash(t.Assignee))
		if t.Status == kanban.Ready && t.Assignee != "" {
			c.warnIdle()
		}
		return exitDone
	})
}

func listTasks(c *call) int {
	var f kanban.Filter
	var status string
	c.flags.StringVar(&status, "status", "", "only this `STATUS`")
	c.flags.StringVar(&f.Assignee, "assignee", "", "only this `PROFILE`")
	c.flags.StringVar(&f.Tenant, "tenant", "", "only this `NAME`")
	c.flags.StringVar(&f.SessionID, "session", "", "only of this session, `ID`")
	c.flags.BoolVar(&f.IncludeArchived, "archived", false, "archived ones too")
	c.flags.IntVar(&f.Limit, "n", 0, "at most `N`")
	mine := c.flags.Bool("mine", false, "only those for HERMES_PROFILE")
	c.flags.StringVar(&f.Sort, "sort", "", "by `KEY`: priority, created, due, status, assignee or title")
	c.asJSON()
	if _, code, ok := c.parse(0, 0); !ok {
		return code
	}
	if *mine {
		f.Assignee = c.who("")
	}
	if f.Status = kanban.Status(status); status != "" && !known(f.Status) {
		return c.fail(exitUsage, "cannot list tasks in %q: there is no such status; there are: %s", status, statuses())
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		tasks, err := s.Tasks(ctx, f)
		if err != nil {
			return c.failed("list tasks", err)
		}
		if c.json {
			if tasks == nil {
				tasks = []kanban.Task{}
			}
			return c.printJSON(tasks)
		}
		w := c.table()
		fmt.Fprintln(w, "ID\tSTATUS\tPRIORITY\tASSIGNEE\tTITLE")
		for _, t := range tasks {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", t.ID, show.Line(string(t.Status)), t.Priority, dash(show.Line(t.Assignee)), show.Line(t.Title))
		}
		_ = w.Flush()
		return exitDone
	})
}

func (c *call) table() *tabwriter.Writer { return tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0) }

func known(s kanban.Status) bool { return slices.Contains(kanban.Statuses, s) }

func statuses() string {
	var names []string
	for _, s := range kanban.Statuses {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

// whole is a task with everything that belongs to it.
type whole struct {
	Task     kanban.Task      `json:"task"`
	Latest   *string          `json:"latest_summary"` // of the last attempt that left one
	Parents  []string         `json:"parents"`
	Children []string         `json:"children"`
	Comments []kanban.Comment `json:"comments"`
	Runs     []kanban.Run     `json:"runs"`
	Events   []kanban.Event   `json:"events"`
}

func read(ctx context.Context, s *kanban.Store, id string) (w whole, err error) {
	if w.Task, err = s.Task(ctx, id); err != nil {
		return w, err
	}
	if w.Parents, w.Children, err = s.Links(ctx, id); err != nil {
		return w, err
	}
	if w.Comments, err = s.Comments(ctx, id); err != nil {
		return w, err
	}
	if w.Runs, err = s.Runs(ctx, id); err != nil {
		return w, err
	}
	for _, r := range w.Runs {
		if r.Summary != "" {
			w.Latest = new(r.Summary)
		}
	}
	w.Events, err = s.Events(ctx, id, 0, 0)
	return w, err
}

func showTask(c *call) int {
	c.asJSON()
	words, code, ok := c.parse(1, 1)
	if !ok {
		return code
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		t, err := read(ctx, s, words[0])
		if err != nil {
			return c.failed("show "+words[0], err)
		}
		if c.json {
			return c.printJSON(t)
		}
		c.showWhole(t)
		return exitDone
	})
}

func (c *call) showWhole(all whole) {
	t := all.Task
	c.print("%s  %s\n", t.ID, show.Line(t.Title))
	row := func(name, value string) {
		if value != "" && value != "-" {
			c.print("  %-12s %s\n", name, show.Line(value))
		}
	}
	row("status", string(t.Status))
	row("assignee", t.Assignee)
	row("priority", fmt.Sprint(t.Priority))
	row("created", at(t.CreatedAt)+" by "+dash(t.CreatedBy))
	row("started", at(t.StartedAt))
	row("completed", at(t.CompletedAt))
	row("workspace", strings.TrimSpace(t.WorkspaceKind+" "+t.WorkspacePath))
	row("branch", t.Branch)
	row("claim", t.ClaimLock)
	if t.ConsecutiveFailures > 0 {
		row("failures", fmt.Sprintf("%d: %s", t.ConsecutiveFailures, t.LastFailureError))
	}
	row("result", t.Result)
	row("waits for", strings.Join(all.Parents, ", "))
	row("before", strings.Join(all.Children, ", "))
	if t.Body != "" {
		c.print("\n%s\n", t.Body)
	}
	for _, m := range all.Comments {
		c.print("\n%s %s: %s\n", at(m.CreatedAt), m.Author, m.Body)
	}
	if len(all.Runs) > 0 {
		c.print("\nAttempts\n")
		c.showRuns(all.Runs)
	}
	if len(all.Events) > 0 {
		c.print("\nEvents\n")
		for _, e := range all.Events {
			c.showEvent(e, false)
		}
	}
}

func edit(c *call) int {
	var e kanban.Edit
	title, body, result := c.flags.String("title", "", "`TEXT`"), c.flags.String("body", "", "`TEXT`"), c.flags.String("result", "", "`TEXT`")
	summary := c.flags.String("summary", "", "hand-over of a task that is done, `TEXT`")
	var priority number
	c.flags.Var(&priority, "priority", "`N`")
	words, code, ok := c.parse(1, 1)
	if !ok {
		return code
	}
	for name, v := range map[string]**string{"title": &e.Title, "body": &e.Body, "result": &e.Result, "summary": &e.Summary} {
		if c.given(name) {
			*v = map[string]*string{"title": title, "body": body, "result": result, "summary": summary}[name]
		}
	}
	e.Priority = priority.n
	if e == (kanban.Edit{}) {
		return c.fail(exitUsage, "cannot edit %s: say what, for instance --title TEXT", words[0])
	}
	return c.did("edit "+words[0], "Edited "+words[0], func(ctx context.Context, s *kanban.Store) (bool, error) {
		return s.Edit(ctx, c.Now(), words[0], e)
	})
}

func comment(c *call) int {
	author := c.flags.String("author", "", "`WHO`; HERMES_PROFILE or user by default")
	words, code, ok := c.parse(2, -1)
	if !ok {
		return code
	}
	return c.did("comment on "+words[0], "Commented on "+words[0], func(ctx context.Context, s *kanban.Store) (bool, error) {
		_, err := s.AddComment(ctx, c.Now(), words[0], c.who(*author), strings.Join(words[1:], " "))
		return err == nil, err
	})
}

func archive(c *call) int {
	remove := c.flags.Bool("rm", false, "delete tasks that are archived, with all that belongs to them")
	return c.each("archive", "Archived", 1, func(ctx context.Context, s *kanban.Store, id string) (bool, error) {
		if *remove {
			return s.DeleteArchived(ctx, id)
		}
		return s.Archive(ctx, c.Now(), id)
	})
}
