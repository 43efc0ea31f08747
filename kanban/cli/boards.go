package cli

import (
	"context"
	"fmt"
	"os"

	"hinit/internal/control/show"
	"hinit/kanban"
)

// The verbs about boards themselves.
func boardVerbs() []verb {
	return []verb{
		{name: "init", summary: "make the board's file", run: initBoard},
		{
			name: "boards", args: "list|create|rm|switch|show|rename|set-default-workdir ...", summary: "manage boards", run: boards,
			help: `  list                         show them all (also: ls)
  create SLUG                  make one (also: new)
  rm SLUG                      put one away, or delete it with --delete (also: remove, delete)
  switch SLUG                  make one the current one (also: use)
  show [SLUG]                  show one (also: current)
  rename SLUG NAME             change its name
  set-default-workdir SLUG DIR directory of tasks that say none`,
		},
	}
}

func initBoard(c *call) int {
	if _, code, ok := c.parse(0, 0); !ok {
		return code
	}
	return c.onBoard(func(_ context.Context, s *kanban.Store) int {
		c.print("Initialised %s\n", s.Paths().DB)
		return exitDone
	})
}

func boards(c *call) int {
	c.asJSON()
	var m kanban.Meta
	c.flags.StringVar(&m.Name, "name", "", "`NAME` of a new board")
	c.flags.StringVar(&m.Description, "description", "", "`TEXT`")
	c.flags.StringVar(&m.Icon, "icon", "", "`TEXT`")
	c.flags.StringVar(&m.Color, "color", "", "`TEXT`")
	hard := c.flags.Bool("delete", false, "delete it for good")
	use := c.flags.Bool("switch", false, "make a new board the current one")
	words, code, ok := c.parse(1, -1)
	if !ok {
		return code
	}
	verb, words := words[0], words[1:]
	need := map[string][2]int{
		"list": {0, 0}, "ls": {0, 0}, "create": {1, 1}, "new": {1, 1}, "rm": {1, 1}, "remove": {1, 1}, "delete": {1, 1}, "switch": {1, 1}, "use": {1, 1},
		"show": {0, 1}, "current": {0, 1}, "rename": {2, 2}, "set-default-workdir": {2, 2},
	}
	n, known := need[verb]
	if !known || len(words) < n[0] || len(words) > n[1] {
		return c.fail(exitUsage, "cannot manage boards: expected: hinit kanban boards %s", c.verb.args)
	}
	b := c.boards()
	ctx, cancel := interruptible()
	defer cancel()
	var err error
	switch verb {
	case "list", "ls":
		return c.listBoards(b)
	case "show", "current":
		slug := b.Current()
		if len(words) > 0 {
			slug = words[0]
		}
		return c.showBoard(b, slug)
	case "create", "new":
		m.Slug = words[0]
		if m, err = b.Create(ctx, c.Now(), m); err == nil && *use {
			err = b.Switch(m.Slug)
		}
		if err == nil {
			c.print("Created board %s\n", m.Slug)
		}
	case "rm", "remove", "delete":
		var to string
		if to, err = b.Remove(c.Now(), words[0], *hard); err == nil && to != "" {
			c.print("Archived board %s to %s\n", words[0], to)
		} else if err == nil {
			c.print("Deleted board %s\n", words[0])
		}
	case "switch", "use":
		if err = b.Switch(words[0]); err == nil {
			c.print("Switched to board %s\n", words[0])
		}
	case "rename":
		if _, err = b.Update(words[0], func(m *kanban.Meta) { m.Name = words[1] }); err == nil {
			c.print("Renamed board %s to %s\n", words[0], words[1])
		}
	case "set-default-workdir":
		if _, err = b.Update(words[0], func(m *kanban.Meta) { m.DefaultWorkdir = words[1] }); err == nil {
			c.print("Tasks of board %s work in %s\n", words[0], words[1])
		}
	}
	if err != nil {
		return c.failed(verb+" a board", err)
	}
	return exitDone
}

func (c *call) listBoards(b *kanban.Boards) int {
	list, err := b.List()
	if err != nil {
		return c.failed("list boards", err)
	}
	current := b.Current()
	if c.json {
		return c.printJSON(c.counted(list, current))
	}
	w := c.table()
	for _, m := range list {
		mark := " "
		if m.Slug == current {
			mark = "*"
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\n", mark, m.Slug, show.Line(m.Name), show.Line(m.Description))
	}
	_ = w.Flush()
	return exitDone
}

// boardLine is a board with its tasks.
type boardLine struct {
	kanban.Meta
	Current bool                  `json:"is_current"`
	Counts  map[kanban.Status]int `json:"counts"` // empty for a board without a file, or with one that can't be read
}

func (c *call) counted(list []kanban.Meta, current string) []boardLine {
	ctx, cancel := interruptible()
	defer cancel()
	lines := make([]boardLine, len(list))
	for i, m := range list {
		lines[i] = boardLine{m, m.Slug == current, map[kanban.Status]int{}}
		var o overview
		if paths, err := c.boards().Paths(m.Slug); err == nil && isThere(paths.DB) && c.overview(ctx, paths, &o) == nil {
			lines[i].Counts = o.Stats.ByStatus
		}
	}
	return lines
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (c *call) showBoard(b *kanban.Boards, slug string) int {
	slug, err := kanban.Slug(slug)
	if err != nil {
		return c.failed("show a board", err)
	}
	if !b.Exists(slug) {
		return c.fail(exitFailed, "cannot show board %q: it does not exist", slug)
	}
	m := b.Meta(slug)
	if c.json {
		return c.printJSON(m)
	}
	paths, err := b.Paths(slug)
	if err != nil {
		return c.failed("show a board", err)
	}
	c.print("%s  %s\n", m.Slug, show.Line(m.Name))
	for _, row := range [][2]string{
		{"description", m.Description}, {"database", paths.DB}, {"workspaces", paths.Workspaces}, {"logs", paths.Logs}, {"default workdir", m.DefaultWorkdir},
	} {
		if row[1] != "" {
			c.print("  %-16s %s\n", row[0], show.Line(row[1]))
		}
	}
	return exitDone
}
