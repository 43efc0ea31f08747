package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"hinit/internal/cmdline"
	"hinit/kanban"
)

// The verbs about boards themselves.
func boardVerbs() []verb {
	return []verb{
		{name: "init", summary: "make the board's file", define: func(c *call) action {
			return func(_ context.Context, s *kanban.Store, _ []string) error {
				c.print("Kanban DB initialized at %s\n", s.Paths().DB)
				return nil
			}
		}},
		{
			name: "boards", apart: true, args: "[list|create|rm|switch|show|rename|set-default-workdir] [...]", summary: "manage boards", define: boards,
			help: `  list                           show them all, which is done without a word, too (also: ls)
  create SLUG                    make one (also: new)
  rm SLUG                        put one away, or delete it with --delete (also: remove, delete)
  switch SLUG                    make one the current one (also: use)
  show [SLUG]                    show one (also: current)
  rename SLUG NAME               change its name
  set-default-workdir SLUG [DIR] directory of tasks that say none; none without DIR`,
		},
	}
}

// boardAliases are the other names of what can be done with boards.
var boardAliases = map[string]string{"ls": "list", "new": "create", "remove": "rm", "delete": "rm", "use": "switch", "current": "show"}

func boards(c *call) action {
	c.asJSON()
	var m kanban.Meta
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
			return misused("expected: %s boards %s%s", program, c.verb.args, cmdline.DidYouMean(verb, slices.Collect(maps.Values(boardAliases))))
		}
		slug, arg := words[0], words[1]
		if _, err := kanban.Slug(slug); err != nil {
			return usageError{err}
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
			return c.did(true, err, "Created board %s", m.Slug)
		case "rm":
			to, err := b.Remove(c.Now(), slug, *hard)
			if to == "" {
				return c.did(true, err, "Deleted board %s", slug)
			}
			return c.did(true, err, "Archived board %s to %s", slug, to)
		case "switch":
			return c.did(true, b.Switch(slug), "Switched to board %s", slug)
		case "rename":
			_, err = b.Update(slug, func(m *kanban.Meta) { m.Name = arg })
			return c.did(true, err, "Renamed board %s to %s", slug, arg)
		}
		_, err = b.Update(slug, func(m *kanban.Meta) { m.DefaultWorkdir = arg })
		return c.did(true, err, "Tasks of board %s work in %s", slug, dash(arg))
	}
}

// boardLine is a board with its tasks.
type boardLine struct {
	kanban.Meta
	DB      string                `json:"db_path"`
	Current bool                  `json:"is_current"`
	Counts  map[kanban.Status]int `json:"counts"` // empty for a board without a file, or with one that can't be read
	Total   int                   `json:"total"`
}

func (c *call) listBoards(ctx context.Context, b *kanban.Boards) error {
	lines, current := []boardLine{}, b.Current()
	err := c.onEach(ctx, func(m kanban.Meta, s *kanban.Store, err error) {
		line := boardLine{Meta: m, Current: m.Slug == current, Counts: map[kanban.Status]int{}}
		paths, failed := b.Paths(m.Slug)
		if line.DB = paths.DB; err == nil {
			st, unread := s.Stats(ctx, c.Now())
			if err = unread; st.ByStatus != nil {
				line.Counts = st.ByStatus
			}
		}
		for _, n := range line.Counts {
			line.Total += n
		}
		if lines = append(lines, line); failed == nil && err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.failed("count the tasks of board "+m.Slug, err)
		}
	})
	if c.json || err != nil {
		return errors.Join(err, c.printJSON(lines))
	}
	row, end := c.table()
	for _, l := range lines {
		row(map[bool]string{true: "* ", false: "  "}[l.Current]+l.Slug, l.Name, fmt.Sprint(l.Total, " tasks"), l.Description)
	}
	return end()
}

func (c *call) showBoard(b *kanban.Boards, slug string) error {
	slug, _ = kanban.Slug(slug)
	if slug == "" {
		slug = b.Current()
	}
	paths, err := b.Paths(slug)
	if !b.Exists(slug) {
		err = fmt.Errorf("cannot show board %q: it does not exist", slug)
	}
	m := b.Meta(slug)
	if err != nil || c.json {
		return errors.Join(err, c.printJSON(m))
	}
	c.print("%s  %s\n", m.Slug, m.Name)
	c.row("description", m.Description)
	c.row("database", paths.DB)
	c.row("workspaces", paths.Workspaces)
	c.row("logs", paths.Logs)
	c.row("default workdir", m.DefaultWorkdir)
	return nil
}
