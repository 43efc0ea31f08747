package kanban

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Create makes a task with the properties in n and returns its id. The task waits until all parents are finished. An empty
// WorkspaceKind means scratch. Status may be triage, blocked or scheduled; empty means ready, or todo while a parent is
// unfinished. Create ignores the fields of n that describe the task's life: its id, times, claim, failures, workflow and
// result.
//
// If an unarchived task already has n's idempotency key, Create makes no task and returns the id of the newest task with this
// key. So a caller can safely repeat a request whose answer was lost.
func (s *Store) Create(ctx context.Context, now time.Time, n Task, parents ...string) (string, error) {
	if err := s.validate(&n); err != nil {
		return "", err
	}
	var id string
	err := s.write(ctx, now, func(t *writeTx) error {
		if n.IdempotencyKey != "" {
			id = queryFirstInTx[string](t, `SELECT id FROM tasks WHERE idempotency_key = ? AND status <> 'archived'
				ORDER BY created_at DESC, rowid DESC LIMIT 1`, n.IdempotencyKey)
		}
		if id != "" {
			return errNothingToCommit
		}
		for id = newID(); queryFirstInTx[bool](t, "SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ?)", id); {
			id = newID()
		}
		return t.create(id, n, parents)
	})
	return id, err
}

func newID() string { return fmt.Sprintf("t_%08x", rand.Uint32()) }

// validate checks the fields of n and rewrites them in canonical form.
func (s *Store) validate(n *Task) error {
	n.Title = strings.TrimSpace(n.Title)
	if n.Title == "" {
		return fmt.Errorf("cannot create task: a title is required")
	}
	who, err := canonicalProfile(n.Assignee)
	if err != nil {
		return err
	}
	n.Assignee = who
	n.WorkspaceKind = cmp.Or(n.WorkspaceKind, WorkspaceScratch)
	if !slices.Contains([]string{WorkspaceScratch, WorkspaceWorktree, WorkspaceDir}, n.WorkspaceKind) {
		return invalidf("cannot create task: workspace kind %q is none of scratch, worktree, dir", n.WorkspaceKind)
	}
	n.Branch = strings.TrimSpace(n.Branch)
	if n.Branch != "" && n.WorkspaceKind != WorkspaceWorktree {
		return invalidf("cannot create task: a branch needs workspace kind worktree, not %s", n.WorkspaceKind)
	}
	if n.WorkspacePath == "" && n.WorkspaceKind != WorkspaceScratch {
		n.WorkspacePath = s.opt.Workdir
	}
	if !slices.Contains([]Status{"", Triage, Blocked, Scheduled}, n.Status) {
		return invalidf("cannot create task in status %q: only triage, blocked and scheduled can be asked for", n.Status)
	}
	if n.MaxRetries != nil && *n.MaxRetries < 1 {
		return invalidf("cannot create task: max_retries must be at least 1, not %d", *n.MaxRetries)
	}
	n.Skills, err = s.skills(n.Skills)
	return err
}

// canonicalProfile returns the canonical form of a profile's name. An empty name stays empty, but a name that consists of white
// space is an error.
func canonicalProfile(assignee string) (string, error) {
	who := strings.ToLower(strings.TrimSpace(assignee))
	if who == "" && assignee != "" {
		return "", fmt.Errorf("cannot use an assignee of blanks: name a profile, or none")
	}
	return who, nil
}

func (s *Store) skills(given []string) ([]string, error) {
	var list, toolsets []string
	for _, name := range given {
		name = strings.TrimSpace(name)
		switch {
		case strings.Contains(name, ","):
			return nil, fmt.Errorf("cannot use skill %q: one name each, without commas", name)
		case name == "" || slices.Contains(list, name):
		case slices.Contains(s.opt.Toolsets, name):
			toolsets = append(toolsets, name)
		default:
			list = append(list, name)
		}
	}
	if len(toolsets) > 0 {
		return nil, fmt.Errorf("cannot use skills %q: these are toolsets, which the profile's configuration turns on", toolsets)
	}
	return list, nil
}

func (t *writeTx) create(id string, n Task, parents []string) error {
	parents = append([]string{}, slices.Compact(slices.Sorted(slices.Values(parents)))...)
	list := encodeLikePython(parents)
	if unknown := queryAllInTx[string](t, "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM tasks)", list); len(unknown) > 0 {
		return fmt.Errorf("cannot create task: unknown parents %q", unknown)
	}
	status := cmp.Or(n.Status, queryFirstInTx[Status](t, `SELECT 'todo' FROM tasks
		WHERE id IN (SELECT value FROM json_each(?)) AND status NOT IN ('done', 'archived')`, list), Ready)
	var skills, named any
	if len(n.Skills) > 0 {
		skills, named = encodeLikePython(n.Skills), n.Skills
	}
	t.exec(`INSERT INTO tasks (id, title, body, assignee, status, priority, created_by, created_at, workspace_kind, workspace_path,
			branch_name, tenant, idempotency_key, max_runtime_seconds, skills, model_override, max_retries, goal_mode, goal_max_turns, session_id, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, n.Title, nilIfZero(n.Body), nilIfZero(n.Assignee), status, n.Priority, nilIfZero(n.CreatedBy), t.now, n.WorkspaceKind, nilIfZero(n.WorkspacePath),
		nilIfZero(n.Branch), nilIfZero(n.Tenant), nilIfZero(n.IdempotencyKey), n.MaxRuntimeSeconds, skills, nilIfZero(n.ModelOverride), n.MaxRetries,
		n.GoalMode, n.GoalMaxTurns, nilIfZero(n.SessionID), nilIfZero(n.DueAt))
	t.exec("INSERT INTO task_links (parent_id, child_id) SELECT value, ? FROM json_each(?)", id, list)
	t.addEvent(id, 0, "created", jsonObject{
		{"assignee", nilIfZero(n.Assignee)},
		{"status", string(status)},
		{"parents", parents},
		{"tenant", nilIfZero(n.Tenant)},
		{"branch_name", nilIfZero(n.Branch)},
		{"skills", named},
		{"goal_mode", n.GoalMode},
	})
	if status == Blocked {
		// The event makes the block sticky. Without it, the next promotion pass would make the task ready.
		t.addEvent(id, 0, "blocked", jsonObject{{"reason", "created blocked"}})
	}
	if n.DueAt != 0 {
		t.addEvent(id, 0, "due_set", jsonObject{{"due_at", n.DueAt}})
	}
	return nil
}

// unfinishedParentCondition is an SQL condition on tasks: the task has a parent that isn't finished. An archived parent counts as
// finished. All queries use this one condition, so that they always agree about whether a task may start.
const unfinishedParentCondition = `EXISTS (SELECT 1 FROM task_links l JOIN tasks p ON p.id = l.parent_id
	WHERE l.child_id = tasks.id AND p.status NOT IN ('done', 'archived'))`

// hasUnfinishedParent reports whether a task has an unfinished parent.
func (t *writeTx) hasUnfinishedParent(id string) bool {
	return queryFirstInTx[bool](t, "SELECT "+unfinishedParentCondition+" FROM tasks WHERE id = ?", id)
}

// Assign assigns a task to a profile, or to no profile if assignee is empty. It returns false if the task does not exist, and
// [ErrRunning] while a worker has the task.
func (s *Store) Assign(ctx context.Context, now time.Time, id, assignee string) (bool, error) {
	who, err := canonicalProfile(assignee)
	if err != nil {
		return false, err
	}
	return s.updateTask(ctx, now, id, func(t *writeTx, task Task) error {
		if task.Status == Running && task.ClaimLock != "" {
			return fmt.Errorf("cannot assign %s: %w; reclaim it first", id, ErrRunning)
		}
		set := "assignee = ?"
		if who != task.Assignee {
			set += ", consecutive_failures = 0, last_failure_error = NULL"
		}
		t.exec("UPDATE tasks SET "+set+" WHERE id = ?", nilIfZero(who), id)
		t.addEvent(id, 0, "assigned", jsonObject{{"assignee", nilIfZero(who)}})
		return nil
	})
}

// Link makes the task child wait until the task parent is finished. It returns an error if the tasks would then wait for each
// other.
func (s *Store) Link(ctx context.Context, now time.Time, parent, child string) error {
	if parent == child {
		return fmt.Errorf("cannot link %s to itself", parent)
	}
	return s.write(ctx, now, func(t *writeTx) error {
		for _, id := range []string{parent, child} {
			if _, err := readTask(ctx, t.conn, id, tasksWithoutBody); err != nil {
				return fmt.Errorf("cannot link %s to %s: %s: %w", child, parent, id, err)
			}
		}
		cycle := queryFirstInTx[bool](t, `WITH RECURSIVE below(id) AS (
				SELECT ? UNION SELECT l.child_id FROM task_links l JOIN below b ON l.parent_id = b.id)
			SELECT EXISTS (SELECT 1 FROM below WHERE id = ?)`, child, parent)
		if cycle {
			return fmt.Errorf("cannot link %s to %s: it would wait for itself in a cycle", child, parent)
		}
		if t.exec("INSERT OR IGNORE INTO task_links (parent_id, child_id) VALUES (?, ?)", parent, child) > 0 {
			t.exec("UPDATE tasks SET status = 'todo' WHERE id = ? AND status = 'ready' AND "+unfinishedParentCondition, child)
			t.addEvent(child, 0, "linked", jsonObject{{"parent", parent}, {"child", child}})
		}
		return nil
	})
}

// Unlink removes a link. The result was is true if the link existed.
func (s *Store) Unlink(ctx context.Context, now time.Time, parent, child string) (was bool, err error) {
	err = s.write(ctx, now, func(t *writeTx) error {
		if was = t.exec("DELETE FROM task_links WHERE parent_id = ? AND child_id = ?", parent, child) > 0; was {
			t.addEvent(child, 0, "unlinked", jsonObject{{"parent", parent}, {"child", child}})
			t.promote(DefaultFailureLimit, "id = ?", child) // The task becomes ready if it waited only for this parent.
		}
		return nil
	})
	return was && err == nil, err
}

// AddComment adds a comment to a task.
func (s *Store) AddComment(ctx context.Context, now time.Time, id, author, body string) error {
	author, body = strings.TrimSpace(author), strings.TrimSpace(body)
	if author == "" || body == "" {
		return fmt.Errorf("cannot comment on %s: author and body are required", id)
	}
	return s.write(ctx, now, func(t *writeTx) error {
		if _, err := readTask(ctx, t.conn, id, tasksWithoutBody); err != nil {
			return fmt.Errorf("cannot comment on %s: %w", id, err)
		}
		t.exec("INSERT INTO task_comments (task_id, author, body, created_at) VALUES (?, ?, ?, ?)", id, author, body, t.now)
		t.addEvent(id, 0, "commented", jsonObject{{"author", author}, {"len", utf8.RuneCountInString(body)}})
		return nil
	})
}

// TaskEdit holds new values for a task's fields. A nil field is not changed.
type TaskEdit struct {
	Title, Body               *string
	Result, Summary, Metadata *string // Results of the task, valid only with the status done.
	Priority                  *int64
}

// Edit changes the texts and the priority of a task, even while a worker has the task. It returns false if the task does not
// exist.
func (s *Store) Edit(ctx context.Context, now time.Time, id string, e TaskEdit) (bool, error) {
	if e.Title != nil {
		e.Title = new(strings.TrimSpace(*e.Title))
		if *e.Title == "" {
			return false, fmt.Errorf("cannot edit %s: a title is required", id)
		}
	}
	return s.updateTask(ctx, now, id, func(t *writeTx, task Task) error {
		if (e.Result != nil || e.Summary != nil || e.Metadata != nil) && task.Status != Done {
			return fmt.Errorf("cannot edit the result of %s: it is %s, and only a task that is done has one", id, task.Status)
		}
		const ofTask = "UPDATE tasks SET %s = ? WHERE id = ?"
		const ofRun = "UPDATE task_runs SET %s = ? WHERE id = (SELECT max(id) FROM task_runs WHERE task_id = ? AND outcome = 'completed')"
		var fields []string
		for _, f := range []struct {
			name, update string
			value        *string
		}{
			{"title", ofTask, e.Title}, {"body", ofTask, e.Body}, {"result", ofTask, e.Result}, {"summary", ofRun, e.Summary}, {"metadata", ofRun, e.Metadata},
		} {
			if f.value != nil {
				fields = append(fields, f.name)
				t.exec(fmt.Sprintf(f.update, f.name), nilIfZero(*f.value), id)
			}
		}
		if len(fields) > 0 {
			t.addEvent(id, 0, "edited", jsonObject{{"fields", fields}})
		}
		if e.Priority != nil {
			t.exec("UPDATE tasks SET priority = ? WHERE id = ?", *e.Priority, id)
			t.addEvent(id, 0, "reprioritized", jsonObject{{"priority", *e.Priority}})
		}
		return nil
	})
}

// Archive archives a task. It closes the task's open run, and promotes the tasks that waited for this one. It returns false
// if the task does not exist or is archived already.
func (s *Store) Archive(ctx context.Context, now time.Time, id string) (done bool, err error) {
	done, err = s.updateTask(ctx, now, id, func(t *writeTx, task Task) error {
		if task.Status == Archived {
			return errNothingToCommit
		}
		t.exec("UPDATE tasks SET status = 'archived', claim_lock = NULL, claim_expires = NULL, worker_pid = NULL, current_run_id = NULL WHERE id = ?", id)
		t.closeRun(task.CurrentRunID, runResult{outcome: "reclaimed", err: "archived"})
		t.addEvent(id, task.CurrentRunID, "archived", nil)
		t.promote(DefaultFailureLimit, childrenCondition, id)
		return nil
	})
	if done {
		s.removeScratchWorkspaces(ctx, id)
	}
	return done, err
}

// DeleteArchived deletes an archived task with its links, comments, events, runs, subscriptions and attachments. It returns false
// if the task doesn't exist, and an error if the task isn't archived.
func (s *Store) DeleteArchived(ctx context.Context, id string) (done bool, err error) {
	done, err = s.updateTask(ctx, time.Time{}, id, func(t *writeTx, task Task) error {
		if task.Status != Archived {
			return fmt.Errorf("cannot delete %s: it is %s; archive it first", id, task.Status)
		}
		t.exec("DELETE FROM task_links WHERE parent_id = ? OR child_id = ?", id, id)
		for _, table := range []string{"task_comments", "task_events", "task_runs", "kanban_notify_subs", "task_attachments"} {
			t.exec("DELETE FROM "+table+" WHERE task_id = ?", id)
		}
		t.exec("DELETE FROM tasks WHERE id = ?", id)
		return nil
	})
	if done {
		removeDirBelow(s.paths.Attachments, filepath.Join(s.paths.Attachments, id))
	}
	return done, err
}

// removeDirBelow removes the directory path, but only if it is below the directory managed. It follows no symbolic links, so an
// agent can't make it remove anything elsewhere.
func removeDirBelow(managed, path string) {
	rel, err := filepath.Rel(managed, path)
	if err != nil || rel == "." || !filepath.IsLocal(rel) {
		return
	}
	root, err := os.OpenRoot(managed)
	if err != nil {
		return
	}
	defer root.Close()
	_ = root.RemoveAll(rel)
}

// removeScratchWorkspaces removes the scratch workspaces of a finished task and of its parents. It keeps a workspace while a
// child of the workspace's task isn't finished, because the child may read it.
func (s *Store) removeScratchWorkspaces(ctx context.Context, id string) {
	paths, err := queryAll[string](ctx, s.db, `SELECT workspace_path FROM tasks
		WHERE (id = ? OR id IN (SELECT parent_id FROM task_links WHERE child_id = ?))
			AND status IN ('done', 'archived') AND workspace_kind = 'scratch' AND workspace_path IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM task_links l JOIN tasks c ON c.id = l.child_id
				WHERE l.parent_id = tasks.id AND c.status NOT IN ('done', 'archived'))`, id, id)
	if err != nil {
		s.opt.Log.Warn("cannot find workspaces to remove", "task", id, "error", err)
	}
	for _, path := range slices.Compact(paths) {
		removeDirBelow(s.paths.Workspaces, path)
	}
}
