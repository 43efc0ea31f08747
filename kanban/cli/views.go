package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/internal/cmdline"
	"hinit/internal/pause"
	"hinit/kanban"
	"hinit/kanban/cli/serve"
)

// viewVerbs are the verbs that show the board as a whole.
var viewVerbs = []verb{
	{name: "tail", hasJSONFlag: true, args: "ID", summary: "follow the events of a task", defineFlags: followEvents},
	{name: "watch", hasJSONFlag: true, summary: "follow the events of the board", defineFlags: followEvents},
	{name: "stats", hasJSONFlag: true, opensNoBoard: true, summary: "count tasks by status and by profile", defineFlags: printStats},
	{name: "assignees", hasJSONFlag: true, summary: "list the profiles and the other names that have tasks", defineFlags: listAssignees},
}

// followEvents prints the events of one task, or of all tasks, until it is interrupted.
func followEvents(c *call) verbAction {
	last := c.Flags.Int("n", 20, "begin with the last `N`")
	_ = c.Flags.Float64("interval", 0, "without effect: changes are told, `SECONDS`")
	once := c.Flags.Bool("no-follow", false, "don't wait for more")
	var only kanban.TaskFilter
	var kinds string
	if c.verb.args == "" {
		c.Flags.StringVar(&only.Assignee, "assignee", "", "only of tasks of this `PROFILE`")
		c.Flags.StringVar(&only.Tenant, "tenant", "", "only of tasks of this tenant, `NAME`")
		c.Flags.StringVar(&kinds, "kinds", "", "only these `KINDS` of event, with commas between them")
	}
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		id := strings.Join(words, "")
		if _, err := s.Task(ctx, id); id != "" && err != nil {
			return err
		}
		wanted := func(e kanban.Event) bool {
			if kinds != "" && !slices.Contains(strings.FieldsFunc(kinds, func(r rune) bool { return r == ',' || r == ' ' }), e.Kind) {
				return false
			}
			if only == (kanban.TaskFilter{}) {
				return true
			}
			t, err := s.Task(ctx, e.TaskID)
			return err == nil && (only.Assignee == "" || t.Assignee == only.Assignee) && (only.Tenant == "" || t.Tenant == only.Tenant)
		}
		changes, stop := serve.WatchDatabase(s.Paths().DB)
		defer stop()
		var cursor int64
		for first := true; ; first = false {
			if !s.IsFileInPlace() {
				return errors.New("the board's file was replaced; follow it again")
			}
			newEvents, err := s.Events(ctx, id, cursor)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			if len(newEvents) > 0 {
				cursor = newEvents[len(newEvents)-1].ID
			}
			newEvents = slices.DeleteFunc(newEvents, func(e kanban.Event) bool { return !wanted(e) })
			if first {
				newEvents = newEvents[max(0, len(newEvents)-max(0, *last)):]
			}
			for _, e := range newEvents {
				c.showEvent(e, id == "")
			}
			if *once || !pause.Until(ctx, changes) {
				return nil
			}
		}
	}
}

func (c *call) showEvent(e kanban.Event, all bool) {
	task := lo.Ternary(all, e.TaskID+"  ", "")
	if c.wantsJSON && cmdline.WriteJSON(c.Terminal.Out, e, "") == nil {
		return
	}
	c.print("  %s  %s%s %s\n", formatTime(e.CreatedAt), task, e.Kind, e.Payload)
}

func printStats(c *call) verbAction {
	all := c.Flags.Bool("all", false, "all boards, with their blocked tasks and last attempts; always JSON")
	return func(ctx context.Context, _ *kanban.Store, _ []string) error {
		if *all {
			return c.printOverviews(ctx)
		}
		s, err := c.open(ctx)
		if err != nil {
			return err
		}
		defer s.Close()
		st, err := s.Stats(ctx, c.Now())
		return c.printResult(st, err, func() { c.showStats(st) })
	}
}

func (c *call) showStats(st kanban.Stats) {
	c.printTable(func(row func(...any)) {
		for _, status := range kanban.Statuses {
			row(status, st.ByStatus[status])
		}
		for _, status := range slices.Sorted(maps.Keys(st.ByStatus)) {
			if !slices.Contains(kanban.Statuses, status) {
				row(status+" (unknown)", st.ByStatus[status])
			}
		}
	})
	for _, who := range slices.Sorted(maps.Keys(st.ByAssignee)) {
		parts := lo.FilterMap(kanban.Statuses, func(status kanban.Status, _ int) (string, bool) {
			n := st.ByAssignee[who][status]
			return fmt.Sprintf("%d %s", n, status), n > 0
		})
		c.print("%s: %s\n", who, strings.Join(parts, ", "))
	}
	if st.OldestAge != nil {
		c.print("oldest ready task: %s\n", time.Duration(*st.OldestAge)*time.Second)
	}
}

// boardOverview describes one board in the output of `stats --all`. hinit-web makes its page of the boards from this output.
type boardOverview struct {
	Board   string           `json:"board"`
	Name    string           `json:"name"`
	Error   string           `json:"error"` // Reason why the other fields are empty; "" if the board could be read.
	Stats   kanban.Stats     `json:"stats"`
	Blocked []taskSummary    `json:"blocked"`
	Runs    []attemptSummary `json:"runs"` // Attempts, newest first.
}

type taskSummary struct {
	ID       string `json:"id"`
	Title    string `json:"title"`
	Assignee string `json:"assignee"`
	Error    string `json:"error"` // Text of the last failure.
}

type attemptSummary struct {
	Task      string `json:"task"`
	Title     string `json:"title"`
	Profile   string `json:"profile"`
	Outcome   string `json:"outcome"` // Outcome of the attempt; "" while it runs.
	Error     string `json:"error"`
	StartedAt int64  `json:"started_at"`
	EndedAt   int64  `json:"ended_at"` // End of the attempt; 0 while it runs.
}

// maxTextBytes limits each text of an overview, because hinit-web reads only a limited output. It is more than the page shows, so
// that the page can hide a secret before it cuts the text.
const maxTextBytes = 2 << 10

func clipOverviewText(text string) string { return text[:min(len(text), maxTextBytes)] }

// maxOverviewRows is the maximum number of tasks, and of attempts, in an overview.
const maxOverviewRows = 20

// forEachBoard calls do for every board. If the board's file is missing or can't be opened, s is nil and err says why.
// forEachBoard doesn't create a missing file.
func (c *call) forEachBoard(ctx context.Context, do func(m kanban.BoardMeta, paths kanban.Paths, s *kanban.Store, err error)) error {
	b := c.boards()
	metas, err := b.List()
	for _, m := range metas {
		paths, err := b.Paths(m.Slug)
		if err == nil {
			_, err = os.Stat(paths.DB)
		}
		var s *kanban.Store
		if err == nil {
			s, err = c.openAt(ctx, paths)
		}
		do(m, paths, s, err)
		if s != nil {
			_ = s.Close() // Ignore the error, because nothing was written.
		}
	}
	return err
}

// printOverviews prints the overviews of all boards as JSON. It waits only briefly for a board that another program has
// locked, because hinit-web waits only a few seconds for the whole output.
func (c *call) printOverviews(ctx context.Context) error {
	c.verb.busyTimeout = time.Second
	list := []boardOverview{}
	err := c.forEachBoard(ctx, func(m kanban.BoardMeta, _ kanban.Paths, s *kanban.Store, err error) {
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		o := boardOverview{Board: m.Slug, Name: clipOverviewText(m.Name), Blocked: []taskSummary{}, Runs: []attemptSummary{}}
		if err == nil {
			err = o.fill(ctx, s, c.Now())
		}
		if err != nil {
			o.Error = clipOverviewText(err.Error())
		}
		list = append(list, o)
	})
	return errors.Join(err, c.printJSON(list))
}

func (o *boardOverview) fill(ctx context.Context, s *kanban.Store, now time.Time) (err error) {
	if o.Stats, err = s.Stats(ctx, now); err != nil {
		return err
	}
	blocked, err := s.Tasks(ctx, kanban.TaskFilter{Status: kanban.Blocked, Limit: maxOverviewRows, WithoutBody: true})
	if err != nil {
		return err
	}
	o.Blocked = lo.Map(blocked, func(t kanban.Task, _ int) taskSummary {
		return taskSummary{clipOverviewText(t.ID), clipOverviewText(t.Title), clipOverviewText(t.Assignee), clipOverviewText(t.LastFailureError)}
	})
	runs, err := s.LastRuns(ctx, maxOverviewRows)
	for _, t := range runs {
		r := t.Run
		o.Runs = append(o.Runs, attemptSummary{clipOverviewText(r.TaskID), clipOverviewText(t.Title), clipOverviewText(r.Profile), clipOverviewText(r.Outcome), clipOverviewText(r.Error), r.StartedAt, r.EndedAt})
	}
	return err
}

func listAssignees(c *call) verbAction {
	return func(ctx context.Context, s *kanban.Store, _ []string) error {
		st, err := s.Stats(ctx, c.Now())
		type line struct {
			Name   string                `json:"name"`
			OnDisk bool                  `json:"on_disk"` // Whether the name is a profile, and not only the assignee of a task.
			Counts map[kanban.Status]int `json:"counts"`
		}
		rows := lo.SliceToMap(kanban.ProfileDirs(c.boards().Root).List(), func(name string) (string, line) {
			return name, line{name, true, map[kanban.Status]int{}}
		})
		for who, by := range st.ByAssignee {
			rows[who] = line{who, rows[who].OnDisk, by}
		}
		list := lo.Map(slices.Sorted(maps.Keys(rows)), func(name string, _ int) line { return rows[name] })
		return c.printResult(list, err, func() {
			c.printTable(func(row func(...any)) {
				for _, r := range list {
					kind := lo.Ternary(r.OnDisk, "profile", "no profile: works through its own terminal")
					row(r.Name, lo.Sum(lo.Values(r.Counts)), kind)
				}
			})
		})
	}
}

// boardVerbs are the verbs that create, list and remove boards.
var boardVerbs = []verb{
	{name: "init", summary: "make the board's file", defineFlags: func(c *call) verbAction {
		return func(_ context.Context, s *kanban.Store, _ []string) error {
			return c.reportDone(true, nil, "Kanban DB initialized at %s", s.Paths().DB)
		}
	}},
	{
		name: "boards", hasJSONFlag: true, opensNoBoard: true, args: "[list|create|rm|switch|show|rename|set-default-workdir] [...]", summary: "manage boards", defineFlags: manageBoards,
		help: `  list                           show them all, which is done without a word, too (also: ls)
  create SLUG                    make one (also: new)
  rm SLUG                        put one away, or delete it with --delete (also: remove, delete)
  switch SLUG                    make one the current one (also: use)
  show [SLUG]                    show one (also: current)
  rename SLUG NAME               change its name
  set-default-workdir SLUG [DIR] directory of tasks that say none; none without DIR`,
	},
}

// boardAliases maps alternative names of the operations on boards to their main names.
var boardAliases = map[string]string{"ls": "list", "new": "create", "remove": "rm", "delete": "rm", "use": "switch", "current": "show"}

func manageBoards(c *call) verbAction {
	var m kanban.BoardMeta
	c.Flags.StringVar(&m.Name, "name", "", "`NAME` of a new board")
	c.Flags.StringVar(&m.Description, "description", "", "`TEXT`")
	c.Flags.StringVar(&m.Icon, "icon", "", "`TEXT`")
	c.Flags.StringVar(&m.Color, "color", "", "`TEXT`")
	c.Flags.StringVar(&m.DefaultWorkdir, "default-workdir", "", "`DIR` of tasks that say none")
	hard := c.Flags.Bool("delete", false, "delete it for good")
	use := c.Flags.Bool("switch", false, "make a new board the current one")
	_ = c.Flags.Bool("all", false, "archived boards too")
	return func(ctx context.Context, _ *kanban.Store, words []string) (err error) {
		b := c.boards()
		words = append(words, []string{"list"}[min(len(words), 1):]...)
		verb, words := words[0], append(words[1:], "", "", "")
		if name, is := boardAliases[verb]; is {
			verb = name
		}
		need, known := map[string][2]int{
			"list": {0, 0}, "create": {1, 1}, "rm": {1, 1}, "switch": {1, 1}, "show": {0, 1}, "rename": {2, 2}, "set-default-workdir": {1, 2},
		}[verb]
		if n := len(words) - 3; !known || n < need[0] || n > need[1] {
			return usageErrorf("expected: %s boards %s%s", programName, c.verb.args, cmdline.DidYouMean(verb, slices.Collect(maps.Values(boardAliases))))
		}
		slug, arg := words[0], words[1]
		if _, err := kanban.CanonicalSlug(slug); err != nil {
			return err
		}
		switch verb {
		case "list":
			return c.listBoards(ctx, b)
		case "show":
			return c.showBoard(b, slug)
		case "create":
			m.Slug = slug
			if m, err = b.Create(ctx, c.Now(), m); err == nil && *use {
				err = b.Switch(m.Slug)
			}
			return c.reportDone(true, err, "Created board %s", m.Slug)
		case "rm":
			to, err := b.Remove(c.Now(), slug, *hard)
			if to == "" {
				return c.reportDone(true, err, "Deleted board %s", slug)
			}
			return c.reportDone(true, err, "Archived board %s to %s", slug, to)
		case "switch":
			return c.reportDone(true, b.Switch(slug), "Switched to board %s", slug)
		case "rename":
			err = b.Update(slug, func(m *kanban.BoardMeta) { m.Name = arg })
			return c.reportDone(true, err, "Renamed board %s to %s", slug, arg)
		}
		err = b.Update(slug, func(m *kanban.BoardMeta) { m.DefaultWorkdir = arg })
		return c.reportDone(true, err, "Tasks of board %s work in %s", slug, cmp.Or(arg, emptyCell))
	}
}

// boardSummary is a board in the output of `boards list`.
type boardSummary struct {
	kanban.BoardMeta
	DB      string                `json:"db_path"`
	Current bool                  `json:"is_current"`
	Counts  map[kanban.Status]int `json:"counts"` // Number of tasks by status; empty if the board's file is not readable.
	Total   int                   `json:"total"`
}

func (c *call) listBoards(ctx context.Context, b *kanban.Boards) error {
	lines, current := []boardSummary{}, b.Current()
	err := c.forEachBoard(ctx, func(m kanban.BoardMeta, paths kanban.Paths, s *kanban.Store, err error) {
		line := boardSummary{BoardMeta: m, DB: paths.DB, Current: m.Slug == current, Counts: map[kanban.Status]int{}}
		if err == nil {
			st, unread := s.Stats(ctx, c.Now())
			err = unread
			if st.ByStatus != nil {
				line.Counts = st.ByStatus
			}
		}
		line.Total = lo.Sum(lo.Values(line.Counts))
		lines = append(lines, line)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.reportFailure("count the tasks of board "+m.Slug, err)
		}
	})
	return c.printResult(lines, err, func() {
		c.printTable(func(row func(...any)) {
			for _, l := range lines {
				row(lo.Ternary(l.Current, "* ", "  ")+l.Slug, l.Name, fmt.Sprint(l.Total, " tasks"), l.Description)
			}
		})
	})
}

func (c *call) showBoard(b *kanban.Boards, slug string) error {
	slug, _ = kanban.CanonicalSlug(slug)
	slug = cmp.Or(slug, b.Current())
	paths, err := b.Paths(slug)
	if !b.Exists(slug) {
		err = fmt.Errorf("cannot show board %q: it does not exist", slug)
	}
	m := b.Meta(slug)
	return c.printResult(m, err, func() {
		c.print("%s  %s\n", m.Slug, m.Name)
		c.printProperty("description", m.Description)
		c.printProperty("database", paths.DB)
		c.printProperty("workspaces", paths.Workspaces)
		c.printProperty("logs", paths.Logs)
		c.printProperty("default workdir", m.DefaultWorkdir)
	})
}
