package kanban

import (
	"path/filepath"
	"strings"
)

// Env answers what an environment variable holds, empty when it isn't set. os.Getenv is one.
type Env func(name string) string

// trimmed is a variable without the blanks around it: a blank one is as good as none.
func (e Env) trimmed(name string) string { return strings.TrimSpace(e(name)) }

// Root is the directory that all profiles of an installation share: HERMES_KANBAN_HOME if set, else what HERMES_HOME resolves to.
// home is the user's home directory.
func Root(env Env, home string) string {
	if dir := env.trimmed("HERMES_KANBAN_HOME"); dir != "" {
		return expand(dir, home)
	}
	own := filepath.Join(home, ".hermes")
	dir := env.trimmed("HERMES_HOME")
	if dir == "" {
		return own
	}
	dir = expand(dir, home)
	if dir == own || strings.HasPrefix(dir, own+"/") {
		return own
	}
	if parent := filepath.Dir(dir); filepath.Base(parent) == "profiles" {
		return filepath.Dir(parent)
	}
	return dir
}

func expand(path, home string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = filepath.Join(home, path[1:])
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}

// Paths are the places of one board.
type Paths struct {
	Board       string // slug
	DB          string
	Workspaces  string
	Logs        string
	Attachments string
	Tip         string // says that the hint about scratch workspaces was given; empty: it isn't given
}

// Log is where the output of a task's workers goes.
func (p Paths) Log(task string) string { return filepath.Join(p.Logs, task+".log") }

// TickLock is the file whose lock the dispatcher of this board holds during a pass.
func (p Paths) TickLock() string { return p.DB + ".dispatch.lock" }

// initLock is the file whose lock is held while the board is checked and brought up to date.
func (p Paths) initLock() string { return p.DB + ".init.lock" }

// ledger is where a dispatcher remembers which processes it started.
func (p Paths) ledger() string { return p.DB + ".workers" }

// GatewayLock is the file whose lock the one dispatching gateway of an installation holds.
func GatewayLock(root string) string { return filepath.Join(root, "kanban", ".dispatcher.lock") }

// Paths are the places of a board, pins applied. An empty slug means the current board.
func (b *Boards) Paths(slug string) (Paths, error) {
	slug, err := Slug(slug)
	if err != nil {
		return Paths{}, err
	}
	if slug == "" {
		slug = b.Current()
	}
	dir := b.dir(slug)
	p := Paths{Board: slug, Tip: filepath.Join(b.Root, ".scratch_tip_shown")}
	if slug == DefaultBoard {
		dir = filepath.Join(b.Root, "kanban")
	}
	p.DB = b.db(slug)
	p.Workspaces = filepath.Join(dir, "workspaces")
	p.Logs = filepath.Join(dir, "logs")
	p.Attachments = filepath.Join(dir, "attachments")
	for name, place := range map[string]*string{
		"HERMES_KANBAN_DB":               &p.DB,
		"HERMES_KANBAN_WORKSPACES_ROOT":  &p.Workspaces,
		"HERMES_KANBAN_ATTACHMENTS_ROOT": &p.Attachments,
	} {
		if pin := b.Env.trimmed(name); pin != "" {
			*place = expand(pin, b.Env("HOME"))
		}
	}
	return p, nil
}
