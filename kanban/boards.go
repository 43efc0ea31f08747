package kanban

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/wholefile"
	"hinit/internal/yamltext"
)

// DefaultBoard is the slug of the board that always exists.
const DefaultBoard = "default"

// Boards gives access to the boards of one installation. The zero value isn't usable.
type Boards struct {
	Root string // Directory that all profiles share, see [Root].
	Env  Env    // Environment variables, which can override paths, see [Boards.Paths].
}

// BoardMeta describes a board. It is stored in the file board.json in the board's directory.
type BoardMeta struct {
	Slug           string `json:"slug"`
	Name           string `json:"name"`
	Description    string `json:"description"`
	Icon           string `json:"icon"`
	Color          string `json:"color"`
	DefaultWorkdir string `json:"default_workdir,omitempty"`
	CreatedAt      int64  `json:"created_at"`
	Archived       bool   `json:"archived"`
}

var slugPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9\-_]{0,63}$`)

// CanonicalSlug returns the canonical form of a board's name: trimmed and in lower case. An empty name stays empty. An invalid
// name is an error.
func CanonicalSlug(name string) (string, error) {
	s := strings.ToLower(strings.TrimSpace(name))
	if s != "" && !slugPattern.MatchString(s) {
		return "", invalidf("cannot use board name %q: it must begin with a letter or digit and hold only a-z, 0-9, - and _, at most 64", name)
	}
	return s, nil
}

func (b *Boards) boardsDir() string           { return filepath.Join(b.Root, "kanban", "boards") }
func (b *Boards) boardDir(slug string) string { return filepath.Join(b.boardsDir(), slug) }
func (b *Boards) currentBoardFile() string    { return filepath.Join(b.Root, "kanban", "current") }

func (b *Boards) dbPath(slug string) string {
	if slug == DefaultBoard {
		return filepath.Join(b.Root, "kanban.db")
	}
	return filepath.Join(b.boardDir(slug), "kanban.db")
}

// Current returns the slug of the board that a command without --board uses: the board in HERMES_KANBAN_BOARD, otherwise the
// board that [Boards.Switch] has chosen, otherwise the default board.
func (b *Boards) Current() string {
	line, _ := wholefile.Read(b.currentBoardFile(), maxFileSize)
	for _, name := range []string{b.Env("HERMES_KANBAN_BOARD"), string(line)} {
		if slug, err := CanonicalSlug(name); err == nil && slug != "" && b.Exists(slug) {
			return slug
		}
	}
	return DefaultBoard
}

// Exists reports whether a board has a database or a board.json. The default board always exists.
func (b *Boards) Exists(slug string) bool {
	return slug == DefaultBoard || isFile(b.dbPath(slug)) || isFile(filepath.Join(b.boardDir(slug), "board.json"))
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir()
}

// List returns all boards: first the default board, then the others sorted by name.
func (b *Boards) List() ([]BoardMeta, error) {
	entries, err := os.ReadDir(b.boardsDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list boards: %w", err)
	}
	list := []BoardMeta{b.Meta(DefaultBoard)}
	for _, e := range entries { // The entries are sorted by name.
		if slug := e.Name(); slug != DefaultBoard && slugPattern.MatchString(slug) && b.Exists(slug) {
			list = append(list, b.Meta(slug))
		}
	}
	return list, nil
}

// Meta reads a board's board.json. If the file is missing or malformed, Meta returns only the slug and a display name made
// from the slug.
func (b *Boards) Meta(slug string) BoardMeta {
	var m BoardMeta
	data, err := wholefile.Read(filepath.Join(b.boardDir(slug), "board.json"), maxFileSize)
	if err != nil || json.Unmarshal(data, &m) != nil {
		m = BoardMeta{}
	}
	m.Slug = slug
	if m.Name == "" {
		words := strings.FieldsFunc(slug, func(r rune) bool { return r == '-' || r == '_' })
		m.Name = strings.Join(lo.Map(words, func(w string, _ int) string { return strings.ToUpper(w[:1]) + w[1:] }), " ")
	}
	return m
}

// Create makes a board, with its file board.json and its database. It keeps files that already exist.
func (b *Boards) Create(ctx context.Context, now time.Time, m BoardMeta) (BoardMeta, error) {
	slug, err := CanonicalSlug(m.Slug)
	if err != nil {
		return BoardMeta{}, err
	}
	if slug == "" {
		return BoardMeta{}, fmt.Errorf("cannot create board: it needs a name")
	}
	if isFile(filepath.Join(b.boardDir(slug), "board.json")) {
		m = b.Meta(slug)
	} else {
		m.Slug, m.CreatedAt = slug, now.Unix()
		m.Name = cmp.Or(m.Name, b.Meta(slug).Name)
		if err := b.save(m); err != nil {
			return m, fmt.Errorf("cannot create board %s: %w", slug, err)
		}
	}
	store, err := Open(ctx, Paths{Board: slug, DB: b.dbPath(slug)}, Options{Env: b.Env})
	if err != nil {
		return m, err
	}
	return m, store.Close()
}

// Update changes a board's metadata. It reads board.json, lets the function change modify the metadata, and saves them.
func (b *Boards) Update(slug string, change func(*BoardMeta)) error {
	slug, err := b.existingSlug(slug)
	if err != nil {
		return err
	}
	m := b.Meta(slug)
	change(&m)
	m.Slug = slug
	return b.save(m)
}

func (b *Boards) existingSlug(name string) (string, error) {
	slug, err := CanonicalSlug(name)
	if err != nil {
		return "", err
	}
	if slug == "" || !b.Exists(slug) {
		return "", fmt.Errorf("board %q does not exist", name)
	}
	return slug, nil
}

func (b *Boards) save(m BoardMeta) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(b.boardDir(m.Slug), "board.json"), append(data, '\n'))
}

// Switch makes a board the current board: the one that commands without --board use, see [Boards.Current].
func (b *Boards) Switch(slug string) error {
	slug, err := b.existingSlug(slug)
	if err != nil {
		return err
	}
	return replaceFile(b.currentBoardFile(), []byte(slug+"\n"))
}

// Remove moves a board to the archive and returns its new path. If hard is set, it deletes the board instead. The default board
// can't be removed.
func (b *Boards) Remove(now time.Time, slug string, hard bool) (movedTo string, err error) {
	slug, err = b.existingSlug(slug)
	if err != nil {
		return "", err
	}
	if slug == DefaultBoard {
		return "", fmt.Errorf("cannot remove board default: it is the one that always exists")
	}
	movedTo, err = b.archive(now, slug) // Rename the directory first, so that no program opens a partly removed board.
	if err == nil && hard {
		// Another program has just created a file in the directory.
		if err = os.RemoveAll(movedTo); errors.Is(err, unix.ENOTEMPTY) {
			err = os.RemoveAll(movedTo)
		}
		movedTo = ""
	}
	if err != nil {
		return "", fmt.Errorf("cannot remove board %s: %w", slug, err)
	}
	if line, _ := wholefile.Read(b.currentBoardFile(), maxFileSize); strings.TrimSpace(string(line)) == slug {
		_ = os.Remove(b.currentBoardFile())
	}
	return movedTo, nil
}

func (b *Boards) archive(now time.Time, slug string) (string, error) {
	dir := filepath.Join(b.boardsDir(), "_archived")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	base := filepath.Join(dir, fmt.Sprintf("%s-%d", slug, now.Unix()))
	to := base
	for n := 1; statError(to) == nil; n++ {
		to = fmt.Sprintf("%s-%d", base, n)
	}
	return to, os.Rename(b.boardDir(slug), to)
}

// ProfileDirs is the root directory of an installation, see [Root]. It implements [Profiles]: each directory of a profile
// below the root is a profile. The profile `default` always exists.
type ProfileDirs string

// homeDir returns the home directory of a profile, or "" if the name is invalid.
func (p ProfileDirs) homeDir(name string) string {
	switch {
	case strings.EqualFold(name, "default"):
		return string(p)
	case slugPattern.MatchString(name): // A profile's name has the same form as a board's slug.
		return filepath.Join(string(p), "profiles", name)
	}
	return ""
}

// Exists implements [Profiles].
func (p ProfileDirs) Exists(name string) (bool, error) {
	st, err := os.Stat(p.homeDir(name))
	if strings.EqualFold(name, "default") || errors.Is(err, fs.ErrNotExist) {
		return strings.EqualFold(name, "default"), nil
	}
	return err == nil && st.IsDir(), err
}

// Dir returns a profile's home directory, or "" if the profile doesn't exist.
func (p ProfileDirs) Dir(name string) string {
	if st, err := os.Stat(p.homeDir(name)); err != nil || !st.IsDir() {
		return ""
	}
	return p.homeDir(name)
}

// List returns the names of all profiles, `default` first.
func (p ProfileDirs) List() []string {
	entries, _ := os.ReadDir(filepath.Join(string(p), "profiles"))
	return append([]string{"default"}, lo.FilterMap(entries, func(e os.DirEntry, _ int) (string, bool) {
		exists, _ := p.Exists(e.Name())
		return e.Name(), exists && !strings.EqualFold(e.Name(), "default")
	})...)
}

// Toolsets returns the toolsets that a profile's config.yaml enables for a worker. These are platform_toolsets.cli, the
// board's own toolset and the profile's MCP servers, without the toolsets in agent.disabled_toolsets. If the file enables
// none, Toolsets returns nil, and the worker uses the agent's defaults.
func (p ProfileDirs) Toolsets(name string) []string {
	var file struct {
		Platform struct {
			CLI []string `yaml:"cli"`
		} `yaml:"platform_toolsets"`
		Servers map[string]struct {
			Enabled *bool `yaml:"enabled"`
		} `yaml:"mcp_servers"`
		Agent struct {
			Disabled []string `yaml:"disabled_toolsets"`
		} `yaml:"agent"`
	}
	data, err := wholefile.Read(filepath.Join(p.Dir(name), "config.yaml"), maxFileSize)
	// Yamltext limits the size of the result: an agent can write this file, and a huge one would stop the dispatcher of all
	// profiles.
	doc, faults := yamltext.Parse(data)
	if err != nil || p.Dir(name) == "" || doc == nil || len(faults) > 0 || doc.Decode(&file) != nil || len(file.Platform.CLI) == 0 {
		return nil
	}
	const noServers = "no_mcp"
	sets := file.Platform.CLI
	named := slices.ContainsFunc(sets, func(set string) bool { _, is := file.Servers[set]; return is || set == noServers })
	for server, s := range file.Servers {
		if !named && (s.Enabled == nil || *s.Enabled) {
			sets = append(sets, server)
		}
	}
	sets = slices.Compact(slices.Sorted(slices.Values(append(sets, "kanban"))))
	return slices.DeleteFunc(sets, func(set string) bool { return set == noServers || slices.Contains(file.Agent.Disabled, set) })
}

// Env returns the value of an environment variable, or "" if the variable is unset. Programs use os.Getenv; tests supply
// their own function.
type Env func(name string) string

// trimmed returns the value of a variable without surrounding white space. A variable that contains only white space counts as
// unset.
func (e Env) trimmed(name string) string { return strings.TrimSpace(e(name)) }

// Root returns the directory that all profiles of an installation share. This is HERMES_KANBAN_HOME if that variable is set.
// Otherwise Root derives it from HERMES_HOME, which may be the home directory of a single profile. home is the user's home
// directory.
func Root(env Env, home string) string {
	if dir := env.trimmed("HERMES_KANBAN_HOME"); dir != "" {
		return expandHome(dir, home)
	}
	own := filepath.Join(home, ".hermes")
	dir := env.trimmed("HERMES_HOME")
	if dir == "" {
		return own
	}
	dir = expandHome(dir, home)
	if dir == own || strings.HasPrefix(dir, own+"/") {
		return own
	}
	if parent := filepath.Dir(dir); filepath.Base(parent) == "profiles" {
		return filepath.Dir(parent)
	}
	return dir
}

func expandHome(path, home string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = filepath.Join(home, path[1:])
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}

// Paths holds the paths of one board's files.
type Paths struct {
	Board       string // Slug of the board.
	DB          string
	Workspaces  string
	Logs        string
	Attachments string
	// File that exists once the hint about scratch workspaces was given; "": never give the hint.
	ScratchHintFile string
}

// Log returns the path of the log with the output of a task's workers.
func (p Paths) Log(task string) string { return filepath.Join(p.Logs, task+".log") }

// TickLock returns the path of the lock file for passes over this board. A dispatcher holds the lock during each pass, so
// that two dispatchers never work on one board at the same time.
func (p Paths) TickLock() string { return p.DB + ".dispatch.lock" }

// initLock returns the path of the lock file that a program holds while it checks the board's database and migrates it.
func (p Paths) initLock() string { return p.DB + ".init.lock" }

// ledgerPath returns the path of the ledger, a file in which the dispatcher records the workers that it has started, see
// [workerLedger].
func (p Paths) ledgerPath() string { return p.DB + ".workers" }

// GatewayLock returns the path of the lock file that the gateways of an installation compete for. Only the gateway that holds the
// lock dispatches tasks.
func GatewayLock(root string) string { return filepath.Join(root, "kanban", ".dispatcher.lock") }

// Paths returns the paths of a board's files. An empty slug means the current board. Variables such as HERMES_KANBAN_DB override
// single paths.
func (b *Boards) Paths(slug string) (Paths, error) {
	slug, err := CanonicalSlug(slug)
	if err != nil {
		return Paths{}, err
	}
	slug = cmp.Or(slug, b.Current())
	dir := lo.Ternary(slug == DefaultBoard, filepath.Join(b.Root, "kanban"), b.boardDir(slug))
	p := Paths{
		Board: slug, DB: b.dbPath(slug), Workspaces: filepath.Join(dir, "workspaces"), Logs: filepath.Join(dir, "logs"),
		Attachments: filepath.Join(dir, "attachments"), ScratchHintFile: filepath.Join(b.Root, ".scratch_tip_shown"),
	}
	for name, place := range map[string]*string{
		"HERMES_KANBAN_DB":               &p.DB,
		"HERMES_KANBAN_WORKSPACES_ROOT":  &p.Workspaces,
		"HERMES_KANBAN_ATTACHMENTS_ROOT": &p.Attachments,
	} {
		if pin := b.Env.trimmed(name); pin != "" {
			*place = expandHome(pin, b.Env("HOME"))
		}
	}
	return p, nil
}
