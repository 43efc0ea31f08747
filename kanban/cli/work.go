package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"hinit/internal/control/show"
	"hinit/kanban"
)

// The verbs of a worker, and those that tell of one.
func workVerbs() []verb {
	return []verb{
		{name: "claim", args: "ID", summary: "take a ready task to work on it here", run: claim},
		{name: "heartbeat", args: "ID [NOTE]", summary: "say that a task is being worked on", run: heartbeat},
		{name: "runs", args: "ID", summary: "list the attempts at a task", run: runs},
		{name: "log", args: "ID", summary: "print what the workers of a task wrote", run: workerLog},
	}
}

func claim(c *call) int {
	ttl := c.flags.Int64("ttl", 0, "`SECONDS` until the claim runs out")
	words, code, ok := c.parse(1, 1)
	if !ok {
		return code
	}
	id := words[0]
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		t, won, err := s.Claim(ctx, c.Now(), id, time.Duration(*ttl)*time.Second)
		if err != nil && !errors.Is(err, kanban.ErrNoTask) {
			return c.failed("claim "+id, err)
		}
		if !won {
			t, err := s.Task(ctx, id)
			if err != nil {
				return c.failed("claim "+id, err)
			}
			return c.fail(exitFailed, "cannot claim %s: status=%s lock=%s", id, t.Status, dash(t.ClaimLock))
		}
		c.print("Claimed %s\nWorkspace: %s\n", t.ID, dash(t.WorkspacePath))
		return exitDone
	})
}

func heartbeat(c *call) int {
	var run int64
	c.runFlag(&run)
	said := c.flags.String("note", "", "`TEXT`")
	words, code, ok := c.parse(1, 2)
	if !ok {
		return code
	}
	note := cmp.Or(*said, strings.Join(words[1:], " "))
	return c.did("record a heartbeat for "+words[0], "Heartbeat recorded for "+words[0], func(ctx context.Context, s *kanban.Store) (bool, error) {
		if lock := c.Env("HERMES_KANBAN_CLAIM_LOCK"); lock != "" {
			if _, err := s.HeartbeatClaim(ctx, c.Now(), words[0], lock, 0); err != nil {
				return false, err
			}
		}
		return s.HeartbeatWorker(ctx, c.Now(), words[0], note, run)
	})
}

func runs(c *call) int {
	c.asJSON()
	words, code, ok := c.parse(1, 1)
	if !ok {
		return code
	}
	return c.onBoard(func(ctx context.Context, s *kanban.Store) int {
		_, err := s.Task(ctx, words[0])
		var list []kanban.Run
		if err == nil {
			list, err = s.Runs(ctx, words[0])
		}
		if err == nil {
			err = c.leaving(ctx, s, list)
		}
		if err != nil {
			return c.failed("list the attempts at "+words[0], err)
		}
		if c.json {
			if list == nil {
				list = []kanban.Run{}
			}
			return c.printJSON(list)
		}
		c.showRuns(list)
		return exitDone
	})
}

// leaving gives the attempts that are over their worker, while that is still alive.
func (c *call) leaving(ctx context.Context, s *kanban.Store, list []kanban.Run) error {
	left, err := c.dispatcher(s, kanban.Config{}, host{}).Leaving(ctx, c.Now())
	for _, w := range left {
		for i := range list {
			if list[i].ID == w.Run {
				list[i].WorkerPID = w.PID
			}
		}
	}
	return err
}

func (c *call) showRuns(list []kanban.Run) {
	w := c.table()
	fmt.Fprintln(w, "RUN\tPROFILE\tPID\tSTARTED\tTOOK\tOUTCOME\tWHY")
	for _, r := range list {
		took, outcome := "-", r.Outcome
		if r.EndedAt != 0 {
			took = (time.Duration(r.EndedAt-r.StartedAt) * time.Second).String()
		} else {
			outcome = r.Status
		}
		pid := "-"
		why := r.Error
		if why == "" {
			why = r.Summary
		}
		if r.WorkerPID != 0 {
			pid = fmt.Sprint(r.WorkerPID)
			if r.EndedAt != 0 {
				why = strings.TrimPrefix(why+"; its worker is still alive", "; ")
			}
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, dash(show.Line(r.Profile)), pid, at(r.StartedAt), took, dash(show.Line(outcome)), dash(show.Line(why)))
	}
	_ = w.Flush()
}

func workerLog(c *call) int {
	tail := c.flags.Int64("tail", 0, "only the last `BYTES`, without a line cut short")
	words, code, ok := c.parse(1, 1)
	if !ok {
		return code
	}
	paths, err := c.paths()
	if err != nil {
		return c.failed("read the log", err)
	}
	data, err := paths.TailLog(words[0], *tail)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.fail(exitFailed, "cannot read the log of %s: no worker has written one", words[0])
	case err != nil:
		return c.failed("read the log of "+words[0], err)
	}
	_, _ = c.Out.Write(data) // as the worker wrote it
	return exitDone
}
