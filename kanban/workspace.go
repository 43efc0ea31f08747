package kanban

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Git runs git in a directory and returns its output. The context carries the time limit.
type Git func(ctx context.Context, dir string, args ...string) (string, error)

// gitLimit is how long a worktree may take to be made.
const gitLimit = 60 * time.Second

// Claim is [Store.Claim] for a caller that works on the task itself: it makes the workspace, too.
func (d *Dispatcher) Claim(ctx context.Context, now time.Time, id string, ttl time.Duration) (Task, bool, error) {
	task, won, err := d.Store.Claim(ctx, now, id, ttl)
	if !won || err != nil {
		return task, false, err
	}
	p := &pass{Dispatcher: d, ctx: ctx, now: now.Unix()}
	why, err := p.place(&task)
	return task, true, errors.Join(why, err)
}

// place makes the workspace of a claimed task and writes it down. The first result is why it can't be made.
func (p *pass) place(task *Task) (why, err error) {
	workspace, branch, why := p.workspace(*task)
	if why != nil {
		return fmt.Errorf("workspace: %w", why), nil
	}
	if workspace == task.WorkspacePath && branch == task.Branch {
		return nil, nil
	}
	task.WorkspacePath, task.Branch = workspace, branch
	return nil, p.write(func(t *tx) error {
		t.exec("UPDATE tasks SET workspace_path = ?, branch_name = ? WHERE id = ? AND current_run_id = ?",
			workspace, orNull(branch), task.ID, task.CurrentRunID)
		return nil
	})
}

// workspace makes the directory that a worker begins in, and says which branch it has.
func (p *pass) workspace(task Task) (path, branch string, err error) {
	path = task.WorkspacePath
	switch task.WorkspaceKind {
	case Scratch:
		if path == "" {
			path = filepath.Join(p.Store.paths.Workspaces, task.ID)
		}
	case Dir:
		if path == "" {
			return "", "", errors.New("a task with workspace kind dir needs a path")
		}
	case Worktree:
		if path == "" {
			path = p.Store.opt.Workdir
		}
		if path == "" {
			return "", "", errors.New("a task with workspace kind worktree needs a path, or the board a default_workdir")
		}
	default:
		return "", "", fmt.Errorf("workspace kind %q is unknown", task.WorkspaceKind)
	}
	if !filepath.IsAbs(path) {
		return "", "", fmt.Errorf("path %q is relative", path)
	}
	path = filepath.Clean(path) // which PID 1 asks for
	if task.WorkspaceKind == Worktree {
		return p.worktree(task, path)
	}
	return path, task.Branch, os.MkdirAll(path, 0o755)
}

// worktree makes a linked worktree of a repository: below it if the path is the repository's, else at the path.
func (p *pass) worktree(task Task, path string) (string, string, error) {
	if p.Git == nil {
		return "", "", errors.New("git is not available")
	}
	ctx, cancel := context.WithTimeout(p.ctx, gitLimit)
	defer cancel()
	branch := task.Branch
	if branch == "" {
		branch = "wt/" + task.ID
	}
	repo, target := path, path
	if st, err := os.Lstat(filepath.Join(path, ".git")); err == nil && st.IsDir() {
		target = filepath.Join(path, ".worktrees", task.ID) // the path is the repository
	} else {
		if err == nil { // a linked worktree has a file there
			return path, branch, nil
		}
		repo = filepath.Dir(path)
		for errors.Is(exists(repo), fs.ErrNotExist) {
			repo = filepath.Dir(repo)
		}
	}
	if _, err := os.Lstat(filepath.Join(target, ".git")); err == nil {
		return target, branch, nil
	}
	args := []string{"worktree", "add", "-b", branch, target}
	if _, err := p.Git(ctx, repo, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
		args = []string{"worktree", "add", target, branch}
	}
	if out, err := p.Git(ctx, repo, args...); err != nil {
		return "", "", fmt.Errorf("git worktree add %s: %w: %s", target, err, clip(strings.TrimSpace(out), 300))
	}
	return target, branch, nil
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

// tip tells once in an installation that scratch workspaces are removed when their task is done.
func (p *pass) tip(task Task) {
	file := p.Store.paths.Tip
	if task.WorkspaceKind != Scratch || file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return // given already, or nowhere to remember that it was
	}
	_ = f.Close()
	err = p.write(func(t *tx) error {
		t.event(task.ID, task.CurrentRunID, "tip_scratch_workspace", object{{
			"message", "this task works in a scratch directory, which is removed when it is done; " +
				"keep files with workspace kind dir or worktree",
		}})
		return nil
	})
	if err != nil {
		p.log().Debug("cannot write the hint about scratch workspaces", "error", err)
	}
}
