package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/nearest"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/kanban"
)

// maintenanceVerbs are the verbs that clean up a board, back it up, and find its problems.
var maintenanceVerbs = []verb{
	{name: "gc", hasJSONFlag: true, summary: "delete old logs, and old events of finished tasks", defineFlags: removeOldData},
	{name: "backup", checksFile: true, args: "FILE", summary: "write a checked copy of the board", defineFlags: backupBoard},
	{name: "doctor", hasJSONFlag: true, checksFile: true, opensNoBoard: true, busyTimeout: 5 * time.Second, aliases: []string{"diagnostics", "diag"}, summary: "find what keeps tasks from being started", defineFlags: doctor},
}

func removeOldData(c *call) verbAction {
	events := c.Flags.Int("event-retention-days", 30, "keep events that are younger than `N` days")
	logs := c.Flags.Int("log-retention-days", 30, "keep logs that are younger than `N` days")
	return func(ctx context.Context, s *kanban.Store, _ []string) error {
		if *events < 1 || *logs < 1 {
			return usageErrorf("at least one day is kept")
		}
		const day = 24 * time.Hour
		n, err := s.RemoveOldEventsAndLogs(ctx, c.Now(), time.Duration(*events)*day, time.Duration(*logs)*day)
		return c.printResult(n, err, func() { c.print("Deleted %d events and %d logs\n", n.Events, n.Logs) })
	}
}

func backupBoard(c *call) verbAction {
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		return c.reportDone(true, s.Backup(ctx, words[0]), "Wrote %s", words[0])
	}
}

// examination is one run of the verb doctor, with the boards that it examines and its findings so far.
type examination struct {
	*call
	*kanban.Store
	findings       client.Findings
	cfg            kanban.Config
	ready, running []kanban.Task
	host           string // This host's name, as in claims.
}

func doctor(c *call) verbAction {
	return func(ctx context.Context, _ *kanban.Store, _ []string) error {
		x := &examination{call: c}
		s, err := c.open(ctx)
		switch corrupt, is := errors.AsType[*kanban.CorruptError](err); {
		case is:
			x.findings.Failed("file", "%v; put a sound copy in its place, or: sqlite3 %s .recover", err, corrupt.Path)
		case err != nil:
			why, _, _ := strings.Cut(kanban.ExplainFileError(err), "; see: ")
			x.findings.Failed("file", "%s", why)
		default:
			x.findings.OK("file", "%s is sound", s.Paths().DB)
			x.Store = s
			defer s.Close()
			if err := x.examine(ctx); err != nil {
				return err
			}
		}
		_ = c.printResult(client.ExamineReply{Findings: x.findings}, nil, func() {
			for _, f := range x.findings {
				c.print("%-8s %-12s %s\n", f.Result, f.Check, f.Detail)
			}
		})
		if slices.ContainsFunc(x.findings, func(f client.Finding) bool { return f.Result == client.ResultFailed }) {
			return errAlreadyPrinted
		}
		return nil
	}
}

// examine checks an open board for faults.
func (x *examination) examine(ctx context.Context) (err error) {
	var warnings []string
	if x.cfg, warnings, err = kanban.ReadConfig(x.configPath()); err != nil {
		x.findings.Warning("config", "%v; the defaults apply", err)
	}
	for _, w := range warnings {
		x.findings.Warning("config", "%s", w)
	}
	x.host, _, _ = strings.Cut(x.Claimer(), ":")
	for status, tasks := range map[kanban.Status]*[]kanban.Task{kanban.Ready: &x.ready, kanban.Running: &x.running} {
		if *tasks, err = x.Tasks(ctx, kanban.TaskFilter{Status: status, WithoutBody: true}); err != nil {
			return err
		}
	}
	for _, check := range []func(context.Context) error{x.checkFile, x.checkAssignees, x.checkClaims, x.checkWorkers, x.checkGuardedTasks, x.checkDispatchers} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// maxLogBytes is the size of a write-ahead log at which the doctor warns. Writers normally shorten the log when it has 100
// pages. They can't while a program still reads an old state of the board.
const maxLogBytes = 64 << 20

// checkFile reports a board that can't be written, a write-ahead log that only grows, numeric columns with other values, and
// tasks without an id.
func (x *examination) checkFile(ctx context.Context) error {
	users, _ := lockHolders(x.Paths().DB + "-shm")
	users = slices.DeleteFunc(users, func(pid int) bool { return pid == os.Getpid() })
	if err := x.Writable(ctx); err != nil {
		why, _, _ := strings.Cut(kanban.ExplainFileError(err), "; try again")
		x.findings.Failed("file", "%s; processes that have it open: %v", why, users)
	}
	if log, err := os.Stat(x.Paths().DB + "-wal"); err == nil && log.Size() > maxLogBytes {
		x.findings.Warning("file", "%s has %d MiB, because a program does not end its read transaction; end that program; processes that have the board open: %v",
			x.Paths().DB+"-wal", log.Size()>>20, users)
	}
	misfits, err := x.NonIntegerValues(ctx)
	if len(misfits) > 0 {
		x.findings.Failed("file", "%s: no number, and read as one; mend it with sqlite3", firstIDs(misfits))
	}
	without, failed := x.TasksWithoutID(ctx)
	if without > 0 {
		x.findings.Failed("file", "%d tasks have no id, so they can't be started or changed; delete them: sqlite3 %s 'DELETE FROM tasks WHERE id IS NULL'",
			without, cmdline.ShellQuote(x.Paths().DB))
	}
	return errors.Join(err, failed)
}

// checkAssignees reports ready tasks whose assignee can't get a worker.
func (x *examination) checkAssignees(context.Context) error {
	profiles := kanban.ProfileDirs(x.boards().Root)
	var unassigned []string
	strangers := make(map[string][]string)
	for _, t := range x.ready {
		who := strings.TrimSpace(t.Assignee)
		if who == "" {
			unassigned = append(unassigned, cmdline.ShellQuote(t.ID))
		} else if is, err := profiles.Exists(who); err == nil && !is {
			strangers[who] = append(strangers[who], cmdline.ShellQuote(t.ID))
		}
	}
	if fallback := strings.TrimSpace(x.cfg.DefaultAssignee); fallback != "" {
		if is, _ := profiles.Exists(strings.ToLower(fallback)); is {
			unassigned = nil
		} else {
			x.findings.Warning("assignee", "kanban.default_assignee is %q, which is no profile, so it counts as none", fallback)
		}
	}
	if len(unassigned) > 0 {
		x.findings.Failed("assignee", "%s: no assignee; run: hinit kanban assign %s PROFILE, or set kanban.default_assignee", firstIDs(unassigned), unassigned[0])
	}
	for who, ids := range strangers {
		hint := "a person or a terminal claims such tasks; if it is meant to be a profile: hinit profile create " + cmdline.ShellQuote(who)
		if near := nearest.Word(who, profiles.List()); near != "" {
			hint = fmt.Sprintf("did you mean %s? hinit kanban assign %s %s", near, ids[0], near)
		}
		x.findings.Warning("assignee", "%s: %q is no profile; %s", firstIDs(ids), who, hint)
	}
	if len(unassigned)+len(strangers) == 0 {
		x.findings.OK("assignee", "every ready task has a profile to run it")
	}
	return nil
}

// firstIDs returns a text with the first few task ids and the number of the others.
func firstIDs(ids []string) string {
	const limit = 5
	if len(ids) > limit {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:limit], ", "), len(ids)-limit)
	}
	return strings.Join(ids, ", ")
}

// checkClaims reports running tasks whose worker is gone, or whose claim is missing, has expired or belongs to another host.
func (x *examination) checkClaims(context.Context) error {
	now, sound := x.Now().Unix(), true
	for _, t := range x.running {
		owner, _, _ := strings.Cut(t.ClaimLock, ":")
		_, alive := proc.StartTicks(t.WorkerPID)
		switch {
		case t.ClaimLock == "" || t.ClaimExpires == 0: // Other programs treat such a task as unclaimed, and may start a second worker.
			x.findings.Warning("lock", "%s is running without a claim; run: hinit kanban reclaim %s", t.ID, t.ID)
		case owner != x.host && t.ClaimExpires < now:
			x.findings.Warning("lock", "%s: its claim by %q has run out; the next pass releases it", t.ID, t.ClaimLock)
		case owner != x.host:
			x.findings.Warning("lock", "%s is claimed by another host, %q, until %s; if that host is gone: hinit kanban reclaim %s", t.ID, owner, formatTime(t.ClaimExpires), t.ID)
		case t.WorkerPID != 0 && !alive:
			x.findings.Warning("lock", "%s: its worker, process %d, is gone; the next pass releases it", t.ID, t.WorkerPID)
		case t.WorkerPID == 0 && t.ClaimExpires < now:
			x.findings.Warning("lock", "%s: its claim has run out, and it has no worker; the next pass releases it", t.ID)
		default:
			continue
		}
		sound = false
	}
	if sound {
		x.findings.OK("lock", "%d running, each with its worker", len(x.running))
	}
	return nil
}

// checkWorkers reports workers that are still alive although their attempt is over.
func (x *examination) checkWorkers(ctx context.Context) error {
	left, err := x.dispatcher(x.Store, kanban.Config{}, workerHost{}).DepartedWorkers(ctx, x.Now())
	for _, w := range left {
		x.findings.Warning("worker", "%s: its attempt %d is over since %s, and its worker, process %d, is alive; the dispatcher ends it at %s",
			w.Task, w.Run, w.AttemptEnd.Format(time.TimeOnly), w.PID, w.EndDeadline.Format(time.TimeOnly))
	}
	return err
}

// checkGuardedTasks reports ready tasks that the respawn guard holds back until an operator acts.
func (x *examination) checkGuardedTasks(ctx context.Context) error {
	for _, t := range x.ready {
		if t.LastFailureError == "" {
			continue
		}
		events, err := x.Events(ctx, t.ID, 0)
		if err != nil {
			return err
		}
		if n := len(events); n > 0 && events[n-1].Kind == "respawn_guarded" && strings.Contains(events[n-1].Payload, "blocker_auth") {
			x.findings.Failed("guard", "%s is held back because of its last failure (%s); mend that, then: hinit kanban block %s retry && hinit kanban unblock %s",
				t.ID, t.LastFailureError, t.ID, t.ID)
		}
	}
	return nil
}

// maxClaimAge limits how old an expired claim may be. Until then, the process that made the claim counts as a dispatcher.
const maxClaimAge = 10 * time.Minute

// checkDispatchers reports which processes dispatch this board's tasks.
func (x *examination) checkDispatchers(context.Context) error {
	pids, known := lockHolders(x.Paths().TickLock())
	if len(pids) == 0 { // No process holds the lock now, but a gateway holds it only during its passes.
		pids, _ = lockHolders(kanban.GatewayLock(x.boards().Root))
	}
	since := x.Now().Add(-maxClaimAge).Unix()
	for _, t := range x.running {
		owner, text, _ := strings.Cut(t.ClaimLock, ":")
		text, _, _ = strings.Cut(text, ".")
		pid, err := strconv.Atoi(text)
		if _, alive := proc.StartTicks(pid); err == nil && owner == x.host && alive && t.WorkerPID != pid && t.ClaimExpires >= since {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	pids = slices.Compact(pids)
	switch {
	case len(pids) > 1:
		numbers := strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", ", "), "[]")
		x.findings.Warning("dispatcher", "processes %s dispatch this board; nothing is started twice, but one is enough", numbers)
	case len(pids) == 1:
		x.findings.OK("dispatcher", "process %d", pids[0])
	case known && len(x.ready) > 0:
		x.findings.Failed("dispatcher", "%d tasks are ready, and no dispatcher runs; %s", len(x.ready), x.dispatcherAdvice())
	case known:
		x.findings.Warning("dispatcher", "no dispatcher runs; %s", x.dispatcherAdvice())
	}
	return nil
}

// dispatcherAdvice says how to start a dispatcher for the board.
func (x *examination) dispatcherAdvice() string {
	if !x.cfg.GatewaysDispatch(x.Terminal.Env) {
		return "start the container with HINIT_KANBAN=1, or: hinit kanban serve; the gateways are told not to"
	}
	return "start the container with HINIT_KANBAN=1, or: hermes gateway start"
}

// lockHolders returns the pids of the processes that hold a lock on a file (proc_locks(5)). known is false if the kernel does not
// show its locks.
func lockHolders(path string) (pids []int, known bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, errors.Is(err, unix.ENOENT)
	}
	suffix := fmt.Sprintf(":%d", st.Ino)
	err := procstat.EachLock(func(_ string, pid int, file string) {
		if strings.HasSuffix(file, suffix) && pid > 0 && !slices.Contains(pids, pid) { // An open file description lock belongs to no pid.
			pids = append(pids, pid)
		}
	})
	return pids, err == nil
}

// warnNoDispatcher prints a warning if a task is ready but no dispatcher runs. If it can't find out whether one runs, it prints
// nothing.
func (c *call) warnNoDispatcher() {
	paths, err := c.paths()
	if err != nil {
		return
	}
	for _, path := range []string{paths.TickLock(), kanban.GatewayLock(c.boards().Root)} {
		if holders, known := lockHolders(path); !known || len(holders) > 0 {
			return
		}
	}
	c.Fail(cmdline.ExitDone, "warning: no gateway is running that dispatches, nor the service kanban; the task waits until one does, or: hinit kanban dispatch")
}
