package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/internal/cmdline"
	"hinit/kanban"
)

// stateVerbs are the verbs that move tasks between statuses.
var stateVerbs = []verb{
	{name: "complete", args: "ID...", summary: "finish tasks, and promote what waited for them", defineFlags: completeTasks},
	{name: "block", args: "ID [REASON...]", multiWordFlag: "ids", summary: "block tasks until they are unblocked", defineFlags: func(c *call) verbAction {
		return suspendAction(c, "Blocked", "BLOCKED", (*kanban.Store).Block)
	}},
	{name: "schedule", args: "ID [REASON...]", multiWordFlag: "ids", summary: "put tasks aside; they are not dispatched", defineFlags: func(c *call) verbAction {
		return suspendAction(c, "Scheduled", "SCHEDULED", (*kanban.Store).Schedule)
	}},
	{name: "unblock", args: "ID...", summary: "return blocked or scheduled tasks", defineFlags: unblockTasks},
	{name: "promote", hasJSONFlag: true, args: "ID [REASON...]", multiWordFlag: "ids", summary: "make waiting or blocked tasks ready", defineFlags: promoteTasks},
}

// workerVerbs are the verbs that workers use, and the verbs that show a task's workers.
var workerVerbs = []verb{
	{name: "claim", args: "ID", summary: "take a ready task to work on it here", defineFlags: claimTask},
	{name: "heartbeat", args: "ID [NOTE]", summary: "say that a task is being worked on", defineFlags: sendHeartbeat},
	{name: "runs", hasJSONFlag: true, args: "ID", summary: "list the attempts at a task", defineFlags: listRuns},
	{name: "log", args: "ID", opensNoBoard: true, summary: "print what the workers of a task wrote", defineFlags: workerLog},
}

// reasonFlag defines the flag --reason. The verb calls the returned function after parsing. Its result is the flag's value,
// or the words after the task if the flag is absent.
func (c *call) reasonFlag() func(words []string) string {
	reason := c.Flags.String("reason", "", "`TEXT`")
	return func(words []string) string { return cmp.Or(*reason, strings.Join(words, " ")) }
}

// attemptFlag defines the flag --run: the verb then changes a task only if this attempt is the task's current one. The verb
// calls the returned function after parsing. Its result is the number of the attempt, or 0 for any. A worker may change only
// its own task: the default is then its own attempt, and any other task is an error.
func (c *call) attemptFlag() func(task string) (int64, error) {
	run := c.Flags.Int64("run", 0, "only if this is the task's current attempt, `N`; a worker's own by default")
	return func(task string) (int64, error) {
		if own := c.EnvOr("HERMES_KANBAN_TASK", task); own != task {
			return 0, fmt.Errorf("this worker is at work on %s, and changes no other task", own)
		}
		if *run == 0 && c.EnvOr("HERMES_KANBAN_TASK", "") != "" {
			// If the variable is unset or invalid, n is 0 and means any attempt.
			n, _ := strconv.ParseInt(c.EnvOr("HERMES_KANBAN_RUN_ID", ""), 10, 64)
			return n, nil
		}
		return *run, nil
	}
}

func completeTasks(c *call) verbAction {
	var done kanban.Completion
	c.Flags.StringVar(&done.Result, "result", "", "short result, `TEXT`")
	c.Flags.StringVar(&done.Summary, "summary", "", "hand-over for what waits for it, `TEXT`")
	c.Flags.StringVar(&done.Metadata, "metadata", "", "JSON `OBJECT`")
	c.Flags.Var((*stringList)(&done.CreatedCards), "created-card", "`ID` of a task that the worker created; may be repeated")
	c.Flags.Var((*stringList)(&done.Artifacts), "artifact", "`PATH` of a result; may be repeated")
	attempt := c.attemptFlag()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		if len(words) > 1 && (done.Summary != "" || done.Metadata != "") {
			return usageErrorf("--summary and --metadata are for one task at a time")
		}
		if err := checkMetadata(&done.Metadata); err != nil {
			return err
		}
		return c.forEachTask(words, "Completed %s", func(id string) (ok bool, err error) {
			if done.Run, err = attempt(id); err != nil {
				return false, err
			}
			return s.Complete(ctx, c.Now(), id, done)
		})
	}
}

// idsFlag defines the flag --ids, with which a verb also changes tasks that its arguments don't name.
func (c *call) idsFlag() *stringList {
	ids := &stringList{}
	c.Flags.Var(ids, "ids", "further tasks, with the same reason: `ID`...")
	return ids
}

// forEachTaskWithReason runs do for every task in ids. Like the agent's own command, it adds the reason as a comment to each
// task that was changed.
func (c *call) forEachTaskWithReason(ctx context.Context, s *kanban.Store, ids []string, done, kind, reason string, do func(id string) (bool, error)) error {
	return c.forEachTask(ids, done+" %s", func(id string) (bool, error) {
		ok, err := do(id)
		if ok && err == nil && reason != "" {
			err = s.AddComment(ctx, c.Now(), id, c.author(""), kind+": "+reason)
		}
		return ok, err
	})
}

// suspendAction returns the action of the verbs block and schedule. It calls do for each task that the arguments name.
func suspendAction(c *call, done, kind string, do func(s *kanban.Store, ctx context.Context, now time.Time, id, reason string, run int64) (bool, error)) verbAction {
	reason, ids, attempt := c.reasonFlag(), c.idsFlag(), c.attemptFlag()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		why := reason(words[1:])
		return c.forEachTaskWithReason(ctx, s, append(words[:1:1], *ids...), done, kind, why, func(id string) (bool, error) {
			run, err := attempt(id)
			if err != nil {
				return false, err
			}
			return do(s, ctx, c.Now(), id, why, run)
		})
	}
}

func unblockTasks(c *call) verbAction {
	reason := c.reasonFlag()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		return c.forEachTaskWithReason(ctx, s, words, "Unblocked", "UNBLOCK", reason(nil), func(id string) (bool, error) { return s.Unblock(ctx, c.Now(), id) })
	}
}

// promoteResult is the JSON output of the verb promote for one task.
type promoteResult struct {
	Task     string  `json:"task_id"`
	Promoted bool    `json:"promoted"`
	DryRun   bool    `json:"dry_run"`
	Reason   *string `json:"reason"`
	Error    *string `json:"error"`
}

func promoteTasks(c *call) verbAction {
	var p kanban.PromoteOptions
	c.Flags.BoolVar(&p.Force, "force", false, "though it waits for others")
	c.Flags.BoolVar(&p.DryRun, "dry-run", false, "only say whether it would work")
	reason, ids := c.reasonFlag(), c.idsFlag()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		p.Actor, p.Reason = c.author(""), reason(words[1:])
		did, results := "Promoted", []promoteResult{}
		if p.DryRun {
			did = "Would promote"
		}
		promote := func(id string) (bool, error) { return true, s.Promote(ctx, c.Now(), id, p) }
		all := append(words[:1:1], *ids...)
		if !c.wantsJSON {
			return c.forEachTask(all, did+" %s", promote)
		}
		var failed error
		for _, id := range all {
			one := promoteResult{Task: id, DryRun: p.DryRun, Promoted: true, Reason: lo.EmptyableToPtr(p.Reason)}
			if _, err := promote(id); err != nil {
				one.Promoted, one.Error, failed = false, new(err.Error()), errAlreadyPrinted
			}
			results = append(results, one)
		}
		if len(results) == 1 {
			return errors.Join(c.printJSON(results[0]), failed)
		}
		return errors.Join(c.printJSON(results), failed)
	}
}

func claimTask(c *call) verbAction {
	ttl := c.Flags.Int64("ttl", 0, "`SECONDS` until the claim runs out")
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		id := words[0]
		t, won, err := c.dispatcher(s, kanban.Config{}, workerHost{}).Claim(ctx, c.Now(), id, time.Duration(*ttl)*time.Second)
		if err != nil {
			return err
		}
		if !won {
			t, err := s.Task(ctx, id)
			if err != nil {
				return err
			}
			return fmt.Errorf("cannot claim %s: status=%s lock=%s", id, t.Status, cmp.Or(t.ClaimLock, "(none)"))
		}
		return c.reportDone(true, nil, "Claimed %s\nWorkspace: %s", t.ID, cmp.Or(t.WorkspacePath, emptyCell))
	}
}

func sendHeartbeat(c *call) verbAction {
	note, attempt := c.Flags.String("note", "", "`TEXT`"), c.attemptFlag()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		run, err := attempt(words[0])
		if err != nil {
			return err
		}
		if lock := c.EnvOr("HERMES_KANBAN_CLAIM_LOCK", ""); lock != "" {
			if _, err := s.HeartbeatClaim(ctx, c.Now(), words[0], lock, 0); err != nil {
				return err
			}
		}
		ok, err := s.HeartbeatWorker(ctx, c.Now(), words[0], cmp.Or(*note, strings.Join(words[1:], " ")), run)
		return c.reportDone(ok, err, "Heartbeat recorded for %s", words[0])
	}
}

func listRuns(c *call) verbAction {
	selected := c.attemptFilterFlags()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		list, err := s.Runs(ctx, words[0])
		if err == nil {
			err = c.restoreDepartedPIDs(ctx, s, list)
		}
		if err == nil {
			list, err = selected(list)
		}
		return c.printResult(nonNil(list), err, func() { c.showRuns(list) })
	}
}

// restoreDepartedPIDs restores the pid of each attempt in list that is over while its worker is still alive. The board clears the
// pid when an attempt ends.
func (c *call) restoreDepartedPIDs(ctx context.Context, s *kanban.Store, list []kanban.Run) error {
	left, err := c.dispatcher(s, kanban.Config{}, workerHost{}).DepartedWorkers(ctx, c.Now())
	for _, w := range left {
		if i := slices.IndexFunc(list, func(r kanban.Run) bool { return r.ID == w.Run }); i >= 0 {
			list[i].WorkerPID = w.PID
		}
	}
	return err
}

func (c *call) showRuns(list []kanban.Run) {
	c.printTable(func(row func(...any)) {
		row("RUN", "PROFILE", "PID", "STARTED", "TOOK", "OUTCOME", "WHY")
		for _, r := range list {
			took, outcome, pid, why := "", r.Status, "", cmp.Or(r.Error, r.Summary)
			if r.EndedAt != 0 {
				took, outcome = (time.Duration(r.EndedAt-r.StartedAt) * time.Second).String(), r.Outcome
			}
			if r.WorkerPID != 0 {
				pid = fmt.Sprint(r.WorkerPID)
				if r.EndedAt != 0 {
					why = strings.TrimPrefix(why+"; its worker is still alive", "; ")
				}
			}
			row(r.ID, r.Profile, pid, formatTime(r.StartedAt), took, outcome, why)
		}
	})
}

func workerLog(c *call) verbAction {
	tail := c.Flags.Int64("tail", 0, "only the last `BYTES`, without a line cut short")
	return func(_ context.Context, _ *kanban.Store, words []string) error {
		paths, err := c.paths()
		if err != nil {
			return err
		}
		data, err := paths.TailLog(words[0], *tail)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("cannot read the log of %s: no worker has written one", words[0])
		}
		if c.OutIsTerminal { // An agent wrote the text, so make escape sequences visible.
			data = cmdline.EscapeLines(data)
		}
		_, _ = c.Terminal.Out.Write(data)
		return err
	}
}
