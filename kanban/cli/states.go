package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"hinit/kanban"
)

// The verbs that connect tasks and give them to profiles.
func linkVerbs() []verb {
	return []verb{
		{name: "assign", args: "ID PROFILE", summary: "give a task to a profile; none takes it away", run: assign},
		{name: "link", args: "PARENT CHILD", summary: "let a task wait for another one", run: link},
		{name: "unlink", args: "PARENT CHILD", summary: "take such a link away", run: unlink},
	}
}

// The verbs that move tasks between statuses.
func stateVerbs() []verb {
	return []verb{
		{name: "complete", args: "ID...", summary: "finish tasks, and promote what waited for them", run: complete},
		{name: "block", args: "ID REASON", summary: "take a task off the board until somebody unblocks it", run: block},
		{name: "schedule", args: "ID [REASON]", summary: "put a task aside; it is not dispatched", run: schedule},
		{name: "unblock", args: "ID...", summary: "return blocked or scheduled tasks", run: unblock},
		{name: "promote", args: "ID [REASON]", summary: "make a waiting or blocked task ready", run: promote},
	}
}

// did runs an operation on one task and says whether it came about.
func (c *call) did(doing, done string, do func(ctx context.Context, s *kanban.Store) (bool, error)) int {
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		ok, err := do(ctx, s)
		switch {
		case err != nil:
			return c.failed(doing, err)
		case !ok:
			return c.fail(exitFailed, "cannot %s: unknown id, or its status does not allow it; see: hinit kanban show", doing)
		}
		c.print("%s\n", done)
		return exitDone
	})
}

// each runs an operation on every task that is named, and fails if one of them did.
func (c *call) each(verb, done string, atLeast int, do func(ctx context.Context, s *kanban.Store, id string) (bool, error)) int {
	ids, code, ok := c.parse(atLeast, -1)
	if !ok {
		return code
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		worst := exitDone
		for _, id := range ids {
			ok, err := do(ctx, s, id)
			switch {
			case err != nil:
				worst = c.failed(verb+" "+id, err)
			case !ok:
				worst = c.fail(exitFailed, "cannot %s %s: unknown id, or its status does not allow it; see: hinit kanban show %s", verb, id, id)
			default:
				c.print("%s %s\n", done, id)
			}
		}
		return worst
	})
}

// given reports whether a flag was on the command line.
func (c *call) given(name string) (is bool) {
	c.flags.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}

// who is the author of something.
func (c *call) who(named string) string {
	for _, name := range []string{named, c.Env("HERMES_PROFILE")} {
		if name != "" {
			return name
		}
	}
	return "user"
}

func assign(c *call) int {
	words, code, ok := c.parse(2, 2)
	if !ok {
		return code
	}
	who := words[1]
	if who == "none" || who == "-" {
		who = ""
	}
	return c.did("assign "+words[0], fmt.Sprintf("Assigned %s to %s", words[0], dash(who)), func(ctx context.Context, s *kanban.Store) (bool, error) {
		ok, err := s.Assign(ctx, c.Now(), words[0], who)
		if errors.Is(err, kanban.ErrRunning) {
			err = fmt.Errorf("cannot assign %s: %w; reclaim it first: hinit kanban reassign %s %s --reclaim", words[0], err, words[0], words[1])
		}
		return ok, err
	})
}

func link(c *call) int {
	words, code, ok := c.parse(2, 2)
	if !ok {
		return code
	}
	return c.did("link "+words[0]+" and "+words[1], fmt.Sprintf("Linked %s -> %s", words[0], words[1]), func(ctx context.Context, s *kanban.Store) (bool, error) {
		err := s.Link(ctx, c.Now(), words[0], words[1])
		return err == nil, err
	})
}

func unlink(c *call) int {
	words, code, ok := c.parse(2, 2)
	if !ok {
		return code
	}
	return c.did("unlink "+words[0]+" and "+words[1], fmt.Sprintf("Unlinked %s -> %s", words[0], words[1]), func(ctx context.Context, s *kanban.Store) (bool, error) {
		return s.Unlink(ctx, c.Now(), words[0], words[1])
	})
}

// reason defines --reason, which may be words after the task as well.
func (c *call) reason() func(words []string) string {
	said := c.flags.String("reason", "", "`TEXT`")
	return func(words []string) string { return cmp.Or(*said, strings.Join(words[1:], " ")) }
}

// runFlag defines --run, which makes the call of a worker that was superseded do nothing.
func (c *call) runFlag(run *int64) {
	c.flags.Int64Var(run, "run", 0, "only if this is the task's current attempt, `N`")
}

func complete(c *call) int {
	var done kanban.Completion
	var cards, artifacts list
	c.flags.StringVar(&done.Result, "result", "", "short result, `TEXT`")
	c.flags.StringVar(&done.Summary, "summary", "", "hand-over for what waits for it, `TEXT`")
	c.flags.StringVar(&done.Metadata, "metadata", "", "JSON `OBJECT`")
	c.flags.Var(&cards, "created-card", "`ID` of a task that the worker created; may be repeated")
	c.flags.Var(&artifacts, "artifact", "`PATH` of a result; may be repeated")
	c.runFlag(&done.Run)
	return c.each("complete", "Completed", 1, func(ctx context.Context, s *kanban.Store, id string) (bool, error) {
		done.CreatedCards, done.Artifacts = cards, artifacts
		return s.Complete(ctx, c.Now(), id, done)
	})
}

// putAside is block and schedule.
func (c *call) putAside(atLeast int, verb, done string, do func(s *kanban.Store) func(context.Context, time.Time, string, string, int64) (bool, error)) int {
	var run int64
	c.runFlag(&run)
	reason := c.reason()
	words, code, ok := c.parse(atLeast, -1)
	if !ok {
		return code
	}
	return c.did(verb+" "+words[0], done+" "+words[0], func(ctx context.Context, s *kanban.Store) (bool, error) {
		return do(s)(ctx, c.Now(), words[0], reason(words), run)
	})
}

func block(c *call) int {
	return c.putAside(1, "block", "Blocked", func(s *kanban.Store) func(context.Context, time.Time, string, string, int64) (bool, error) {
		return s.Block
	})
}

func schedule(c *call) int {
	return c.putAside(1, "schedule", "Scheduled", func(s *kanban.Store) func(context.Context, time.Time, string, string, int64) (bool, error) {
		return s.Schedule
	})
}

func unblock(c *call) int {
	return c.each("unblock", "Unblocked", 1, func(ctx context.Context, s *kanban.Store, id string) (bool, error) {
		return s.Unblock(ctx, c.Now(), id)
	})
}

func promote(c *call) int {
	var p kanban.Promotion
	c.flags.BoolVar(&p.Force, "force", false, "though it waits for others")
	c.flags.BoolVar(&p.DryRun, "dry-run", false, "only say whether it would work")
	reason := c.reason()
	words, code, ok := c.parse(1, -1)
	if !ok {
		return code
	}
	p.Actor, p.Reason = c.who(""), reason(words)
	done := "Promoted " + words[0]
	if p.DryRun {
		done = "Would promote " + words[0]
	}
	return c.did("promote "+words[0], done, func(ctx context.Context, s *kanban.Store) (bool, error) {
		err := s.Promote(ctx, c.Now(), words[0], p)
		if refused := (*kanban.ValueError)(nil); errors.As(err, &refused) { // by the board, not for how it was asked
			err = errors.New(refused.Text)
		}
		return err == nil, err
	})
}
