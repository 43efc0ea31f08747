package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"

	"hinit/kanban"
)

// taskVerbs are the verbs that make, list, show and connect tasks.
var taskVerbs = []verb{
	{name: "create", hasJSONFlag: true, args: "TITLE", summary: "make a task", defineFlags: createTask},
	{name: "list", hasJSONFlag: true, aliases: []string{"ls"}, summary: "list tasks", defineFlags: listTasks},
	{name: "show", hasJSONFlag: true, args: "ID", summary: "show a task with its links, comments, attempts and events", defineFlags: showTask},
	{name: "edit", args: "ID", summary: "change what a task says", defineFlags: editTask},
	{name: "comment", args: "ID TEXT...", summary: "write a remark on a task", defineFlags: addComment},
	{name: "archive", args: "[ID...]", multiWordFlag: "rm", summary: "archive tasks", defineFlags: archiveTasks},
	{name: "assign", args: "ID PROFILE", summary: "give a task to a profile; none takes it away", defineFlags: assignTask},
	{name: "link", args: "PARENT CHILD", summary: "let a task wait for another one", defineFlags: linkTasks},
	{name: "unlink", args: "PARENT CHILD", summary: "remove such a link", defineFlags: unlinkTasks},
}

func createTask(c *call) verbAction {
	n, parents, f := kanban.Task{}, stringList{}, c.Flags
	f.StringVar(&n.Body, "body", "", "opening post, `TEXT`")
	f.StringVar(&n.Assignee, "assignee", "", "`PROFILE` that works on it")
	f.Var(&parents, "parent", "`ID` of a task that must be done before; may be repeated")
	f.StringVar(&n.WorkspaceKind, "workspace", "", "`KIND`: scratch, worktree or dir; KIND:PATH names the directory")
	f.StringVar(&n.Branch, "branch", "", "branch of a worktree, `NAME`")
	f.StringVar(&n.Tenant, "tenant", "", "`NAME` to filter by")
	f.Int64Var(&n.Priority, "priority", 0, "higher is first, `N`")
	f.StringVar(&n.IdempotencyKey, "idempotency-key", "", "`KEY`: the task that has it is returned, and none made")
	optionalFlag(c, &n.MaxRuntimeSeconds, "max-runtime", "`TIME` for one attempt: 90s, 30m, 2h, 1d, or seconds", parseSeconds)
	f.StringVar(&n.CreatedBy, "created-by", "user", "`AUTHOR`")
	f.Var((*stringList)(&n.Skills), "skill", "`NAME` of a skill for its worker; may be repeated")
	optionalFlag(c, &n.MaxRetries, "max-retries", "failures after which it is blocked, `N`", parseNumber)
	f.StringVar(&n.ModelOverride, "model", "", "model for its worker, `NAME`")
	f.BoolVar(&n.GoalMode, "goal", false, "goal mode")
	optionalFlag(c, &n.GoalMaxTurns, "goal-max-turns", "`N` turns in goal mode", parseNumber)
	f.Func("due", "`TIME` it is due: a date, a time as in RFC 3339, or seconds since 1970", func(text string) (err error) {
		n.DueAt, err = parseTime(text)
		return err
	})
	triage := f.Bool("triage", false, "put it into triage")
	initial := f.String("initial-status", "running", "`STATUS`: blocked, triage or scheduled; running and ready let it be dispatched")
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		n.Title = words[0]
		n.WorkspaceKind, n.WorkspacePath, _ = strings.Cut(n.WorkspaceKind, ":")
		n.Status = kanban.Status(*initial)
		if n.Status == kanban.Running || n.Status == kanban.Ready || n.Status == kanban.Todo {
			n.Status = ""
		}
		if *triage && n.Status != "" {
			return usageErrorf("one status only: --triage or --initial-status")
		}
		if *triage {
			n.Status = kanban.Triage
		}
		var t kanban.Task
		id, err := s.Create(ctx, c.Now(), n, parents...)
		if err == nil {
			t, err = s.Task(ctx, id)
		}
		return c.printResult(t, err, func() {
			c.print("Created %s  (%s, assignee=%s)\n", t.ID, t.Status, cmp.Or(t.Assignee, emptyCell))
			if t.Status == kanban.Ready && t.Assignee != "" {
				c.warnNoDispatcher()
			}
		})
	}
}

func listTasks(c *call) verbAction {
	var f kanban.TaskFilter
	c.Flags.StringVar((*string)(&f.Status), "status", "", "only this `STATUS`")
	c.Flags.StringVar(&f.Assignee, "assignee", "", "only this `PROFILE`")
	c.Flags.StringVar(&f.Tenant, "tenant", "", "only this `NAME`")
	c.Flags.StringVar(&f.SessionID, "session", "", "only of this session, `ID`")
	c.Flags.StringVar(&f.Template, "workflow-template-id", "", "only of this workflow, `ID`")
	c.Flags.StringVar(&f.StepKey, "step-key", "", "only at this step of it, `KEY`")
	c.Flags.BoolVar(&f.IncludeArchived, "archived", false, "archived ones too")
	c.Flags.IntVar(&f.Limit, "n", 0, "at most `N`")
	c.Flags.StringVar(&f.Sort, "sort", "priority", "by `KEY`: "+strings.Join(kanban.SortOrders(), ", "))
	mine := c.Flags.Bool("mine", false, "only those for HERMES_PROFILE")
	return func(ctx context.Context, s *kanban.Store, _ []string) error {
		if *mine && f.Assignee == "" {
			f.Assignee = c.author("")
		}
		if f.Status != "" && !slices.Contains(kanban.Statuses, f.Status) {
			return usageErrorf("there is no such status as %q; there are: %q", f.Status, kanban.Statuses)
		}
		f.WithoutBody = !c.wantsJSON
		tasks, err := s.Tasks(ctx, f)
		return c.printResult(nonNil(tasks), err, func() {
			c.printTable(func(row func(...any)) {
				row("ID", "STATUS", "PRIORITY", "ASSIGNEE", "TITLE")
				for _, t := range tasks {
					row(t.ID, t.Status, t.Priority, t.Assignee, t.Title)
				}
			})
		})
	}
}

// taskDetails is the output of the verb show.
type taskDetails struct {
	Task          kanban.Task      `json:"task"`
	LatestSummary *string          `json:"latest_summary"` // Summary of the latest attempt that has one.
	Parents       []string         `json:"parents"`
	Children      []string         `json:"children"`
	Comments      []kanban.Comment `json:"comments"`
	Events        []kanban.Event   `json:"events"`
	Runs          []kanban.Run     `json:"runs"`
}

func readDetails(ctx context.Context, s *kanban.Store, id string) (w taskDetails, err error) {
	var failed [5]error
	w.Task, failed[0] = s.Task(ctx, id)
	w.Parents, w.Children, failed[1] = s.Links(ctx, id)
	w.Comments, failed[2] = s.Comments(ctx, id)
	w.Runs, failed[3] = s.Runs(ctx, id)
	w.Events, failed[4] = s.Events(ctx, id, 0)
	if r, _, has := lo.FindLastIndexOf(w.Runs, func(r kanban.Run) bool { return r.Summary != "" }); has {
		w.LatestSummary = new(r.Summary)
	}
	w.Parents, w.Children, w.Comments, w.Events, w.Runs = nonNil(w.Parents), nonNil(w.Children), nonNil(w.Comments), nonNil(w.Events), nonNil(w.Runs)
	return w, errors.Join(failed[:]...)
}

// nonNil turns a nil list into an empty one. The JSON then has [] instead of null, as in the output of the agent's own
// command.
func nonNil[T any](list []T) []T { return append([]T{}, list...) }

// attemptFilterFlags defines the flags that select attempts by their state. It returns a function that filters a list of attempts
// by the flags' values.
func (c *call) attemptFilterFlags() func([]kanban.Run) ([]kanban.Run, error) {
	kind := c.Flags.String("state-type", "", "with --state-name: `COLUMN` to compare, status or outcome")
	name := c.Flags.String("state-name", "", "with --state-type: only attempts with this `VALUE`")
	return func(runs []kanban.Run) ([]kanban.Run, error) {
		if (*kind == "") != (*name == "") || !slices.Contains([]string{"", "status", "outcome"}, *kind) {
			return nil, usageErrorf("--state-type status or outcome, and --state-name, come together")
		}
		return slices.DeleteFunc(runs, func(r kanban.Run) bool {
			return *kind == "status" && r.Status != *name || *kind == "outcome" && r.Outcome != *name
		}), nil
	}
}

func showTask(c *call) verbAction {
	selected := c.attemptFilterFlags()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		t, err := readDetails(ctx, s, words[0])
		if err == nil {
			t.Runs, err = selected(t.Runs)
		}
		return c.printResult(t, err, func() { c.showDetails(t) })
	}
}

// printProperty prints the name and the value of a property on one line, or nothing if the value is empty.
func (c *call) printProperty(name, value string) {
	if value != "" && value != emptyCell {
		c.print("  %-16s %s\n", name, value)
	}
}

func (c *call) showDetails(all taskDetails) {
	t := all.Task
	c.print("%s  %s\n", t.ID, t.Title)
	c.printProperty("status", string(t.Status))
	c.printProperty("assignee", t.Assignee)
	c.printProperty("priority", fmt.Sprint(t.Priority))
	c.printProperty("created", formatTime(t.CreatedAt)+" by "+cmp.Or(t.CreatedBy, emptyCell))
	c.printProperty("started", formatTime(t.StartedAt))
	c.printProperty("completed", formatTime(t.CompletedAt))
	c.printProperty("workspace", strings.TrimSpace(t.WorkspaceKind+" "+t.WorkspacePath))
	c.printProperty("branch", t.Branch)
	c.printProperty("claim", t.ClaimLock)
	if t.ConsecutiveFailures > 0 {
		c.printProperty("failures", fmt.Sprintf("%d: %s", t.ConsecutiveFailures, t.LastFailureError))
	}
	c.printProperty("result", t.Result)
	c.printProperty("waits for", strings.Join(all.Parents, ", "))
	c.printProperty("before", strings.Join(all.Children, ", "))
	if t.Body != "" {
		c.print("\n%s\n", multilineText(t.Body))
	}
	for _, m := range all.Comments {
		c.print("\n%s %s: %s\n", formatTime(m.CreatedAt), m.Author, multilineText(m.Body))
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

// checkMetadata returns an error if the value of --metadata is set but isn't a JSON object.
func checkMetadata(text *string) error {
	if text != nil && *text != "" && json.Unmarshal([]byte(*text), &map[string]any{}) != nil {
		return usageErrorf("--metadata must be a JSON object")
	}
	return nil
}

func editTask(c *call) verbAction {
	var e kanban.TaskEdit
	optionalFlag(c, &e.Priority, "priority", "`N`", parseNumber)
	texts := map[string]**string{"title": &e.Title, "body": &e.Body, "result": &e.Result, "summary": &e.Summary, "metadata": &e.Metadata}
	for name, field := range texts {
		usage := "`TEXT`"
		if field != &e.Title && field != &e.Body {
			usage += ", of a task that is done"
		}
		c.Flags.Func(name, usage, func(text string) error {
			*field = &text
			return nil
		})
	}
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		if e == (kanban.TaskEdit{}) {
			return usageErrorf("cannot edit %s: say what, for instance --title TEXT", words[0])
		}
		if err := checkMetadata(e.Metadata); err != nil {
			return err
		}
		ok, err := s.Edit(ctx, c.Now(), words[0], e)
		return c.reportDone(ok, err, "Edited %s", words[0])
	}
}

// author returns the author of a comment or task: the parameter named if it is set, otherwise HERMES_PROFILE, otherwise
// "user".
func (c *call) author(named string) string {
	return cmp.Or(named, c.EnvOr("HERMES_PROFILE", "user"))
}

func addComment(c *call) verbAction {
	author := c.Flags.String("author", "", "`AUTHOR`; HERMES_PROFILE or user by default")
	var most *int64
	optionalFlag(c, &most, "max-len", "cut it to `N` characters", parseNumber)
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		text := strings.Join(words[1:], " ")
		if most != nil && *most < 1 {
			return usageErrorf("--max-len must be at least 1")
		}
		if runes := []rune(text); most != nil && len(runes) > int(*most) {
			text = string(runes[:*most])
		}
		return c.reportDone(true, s.AddComment(ctx, c.Now(), words[0], c.author(*author), text), "Commented on %s", words[0])
	}
}

func archiveTasks(c *call) verbAction {
	var remove stringList
	c.Flags.Var(&remove, "rm", "delete these tasks, which are archived, with all that belongs to them: `ID`...")
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		if len(words) > 0 == (len(remove) > 0) {
			return fmt.Errorf("cannot archive: name tasks, or archived ones after --rm")
		}
		if len(remove) > 0 {
			return c.forEachTask(remove, "Deleted %s", func(id string) (bool, error) { return s.DeleteArchived(ctx, id) })
		}
		return c.forEachTask(words, "Archived %s", func(id string) (bool, error) { return s.Archive(ctx, c.Now(), id) })
	}
}

// parseAssignee returns the assignee that a word on the command line names. The words none, - and null mean no assignee (""),
// in upper or lower case.
func parseAssignee(word string) string {
	if slices.Contains([]string{"none", "-", "null"}, strings.ToLower(word)) {
		return ""
	}
	return word
}

func assignTask(c *call) verbAction {
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		ok, err := s.Assign(ctx, c.Now(), words[0], parseAssignee(words[1]))
		if errors.Is(err, kanban.ErrRunning) {
			err = fmt.Errorf("%w: %s reassign %s %s --reclaim", err, programName, words[0], words[1])
		}
		return c.reportDone(ok, err, "Assigned %s to %s", words[0], cmp.Or(parseAssignee(words[1]), emptyCell))
	}
}

func linkTasks(c *call) verbAction {
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		return c.reportDone(true, s.Link(ctx, c.Now(), words[0], words[1]), "Linked %s -> %s", words[0], words[1])
	}
}

func unlinkTasks(c *call) verbAction {
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		ok, err := s.Unlink(ctx, c.Now(), words[0], words[1])
		return c.reportDone(ok, err, "Unlinked %s -> %s", words[0], words[1])
	}
}
