package kanban

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// NewTask is a task to be created.
type NewTask struct {
	Title, Body, Assignee, CreatedBy string
	WorkspaceKind                    string // empty: scratch
	WorkspacePath, Branch            string
	Tenant                           string
	Priority                         int64
	Parents                          []string
	Status                           Status // empty: ready or todo; else triage, blocked or scheduled
	IdempotencyKey                   string
	MaxRuntimeSeconds                *int64
	Skills                           []string
	MaxRetries                       *int64
	GoalMode                         bool
	GoalMaxTurns                     *int64
	ModelOverride                    string
	SessionID                        string
	DueAt                            int64
}

// Create makes a task and returns its id. If tasks have the same idempotency key, it returns the newest one's id instead.
func (s *Store) Create(ctx context.Context, now time.Time, n NewTask) (string, error) {
	if err := s.tidy(&n); err != nil {
		return "", err
	}
	if n.IdempotencyKey != "" {
		id, err := first[string](ctx, s.db, `SELECT id FROM tasks WHERE idempotency_key = ? AND status <> 'archived'
			ORDER BY created_at DESC, rowid DESC LIMIT 1`, n.IdempotencyKey)
		if id != "" || err != nil {
			return id, err
		}
	}
	for again := true; ; again = false {
		id := newID()
		err := s.write(ctx, now, func(t *tx) error { return t.create(id, n) })
		if err == nil {
			return id, nil
		}
		if !again || !taken(err) {
			return "", err
		}
	}
}

func newID() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return "t_" + hex.EncodeToString(b[:])
}

func taken(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

// tidy checks what was given and makes it canonical.
func (s *Store) tidy(n *NewTask) error {
	if n.Title = strings.TrimSpace(n.Title); n.Title == "" {
		return refuse("cannot create task: a title is required")
	}
	who, err := canonical(n.Assignee)
	if err != nil {
		return err
	}
	n.Assignee = who
	if n.WorkspaceKind == "" {
		n.WorkspaceKind = Scratch
	}
	if !slices.Contains([]string{Scratch, Worktree, Dir}, n.WorkspaceKind) {
		return refuse("cannot create task: workspace kind %q is none of scratch, worktree, dir", n.WorkspaceKind)
	}
	if n.Branch = strings.TrimSpace(n.Branch); n.Branch != "" && n.WorkspaceKind != Worktree {
		return refuse("cannot create task: a branch needs workspace kind worktree, not %s", n.WorkspaceKind)
	}
	if n.WorkspacePath == "" && n.WorkspaceKind != Scratch {
		n.WorkspacePath = s.opt.Workdir
	}
	if !slices.Contains([]Status{"", Triage, Blocked, Scheduled}, n.Status) {
		return refuse("cannot create task in status %q: only triage, blocked and scheduled can be asked for", n.Status)
	}
	if n.MaxRetries != nil && *n.MaxRetries < 1 {
		return refuse("cannot create task: max_retries must be at least 1, not %d", *n.MaxRetries)
	}
	n.Skills, err = s.skills(n.Skills)
	return err
}

// canonical makes a profile's name canonical. One of blanks only is an error, none at all is not.
func canonical(assignee string) (string, error) {
	who := strings.ToLower(strings.TrimSpace(assignee))
	if who == "" && assignee != "" {
		return "", refuse("cannot use an assignee of blanks: name a profile, or none")
	}
	return who, nil
}

func (s *Store) skills(given []string) ([]string, error) {
	var list, toolsets []string
	for _, name := range given {
		name = strings.TrimSpace(name)
		switch {
		case strings.Contains(name, ","):
			return nil, refuse("cannot use skill %q: one name each, without commas", name)
		case name == "" || slices.Contains(list, name):
		case slices.Contains(s.opt.Toolsets, name):
			toolsets = append(toolsets, name)
		default:
			list = append(list, name)
		}
	}
	if len(toolsets) > 0 {
		return nil, refuse("cannot use skills %q: these are toolsets, which the profile's configuration turns on", toolsets)
	}
	return list, nil
}

func (t *tx) create(id string, n NewTask) error {
	parents := append([]string{}, slices.Compact(slices.Sorted(slices.Values(n.Parents)))...)
	status := Ready
	var unknown []string
	for _, parent := range parents {
		switch is := one[Status](t, "SELECT status FROM tasks WHERE id = ?", parent); {
		case is == "":
			unknown = append(unknown, parent)
		case !finished(is):
			status = Todo
		}
	}
	if len(unknown) > 0 {
		return refuse("cannot create task: unknown parents %q", unknown)
	}
	if n.Status != "" {
		status = n.Status
	}
	var skills, named any
	if len(n.Skills) > 0 {
		skills, named = encode(n.Skills), n.Skills
	}
	t.exec(`INSERT INTO tasks (id, title, body, assignee, status, priority, created_by, created_at, workspace_kind, workspace_path,
			branch_name, tenant, idempotency_key, max_runtime_seconds, skills, model_override, max_retries, goal_mode, goal_max_turns, session_id, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, n.Title, orNull(n.Body), orNull(n.Assignee), status, n.Priority, orNull(n.CreatedBy), t.now, n.WorkspaceKind, orNull(n.WorkspacePath),
		orNull(n.Branch), orNull(n.Tenant), orNull(n.IdempotencyKey), n.MaxRuntimeSeconds, skills, orNull(n.ModelOverride), n.MaxRetries,
		n.GoalMode, n.GoalMaxTurns, orNull(n.SessionID), orNull(n.DueAt))
	for _, parent := range parents {
		t.exec("INSERT INTO task_links (parent_id, child_id) VALUES (?, ?)", parent, id)
	}
	t.event(id, 0, "created", object{
		{"assignee", orNull(n.Assignee)},
		{"status", string(status)},
		{"parents", parents},
		{"tenant", orNull(n.Tenant)},
		{"branch_name", orNull(n.Branch)},
		{"skills", named},
		{"goal_mode", n.GoalMode},
	})
	if status == Blocked {
		// Without this event the block would not be sticky and the next pass would undo it.
		t.event(id, 0, "blocked", object{{"reason", "created blocked"}})
	}
	if n.DueAt != 0 {
		t.event(id, 0, "due_set", object{{"due_at", n.DueAt}})
	}
	return nil
}

// finished says whether a parent in this status lets its children go on. Archived counts everywhere, so that no two operations
// disagree about the same child.
func finished(s Status) bool { return s == Done || s == Archived }

// unfinishedParents is a condition on tasks: it has a parent that isn't finished.
const unfinishedParents = `EXISTS (SELECT 1 FROM task_links l JOIN tasks p ON p.id = l.parent_id
	WHERE l.child_id = tasks.id AND p.status NOT IN ('done', 'archived'))`

// waits says whether a task has an unfinished parent.
func (t *tx) waits(id string) bool {
	return one[bool](t, "SELECT "+unfinishedParents+" FROM tasks WHERE id = ?", id)
}
