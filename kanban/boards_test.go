package kanban

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestRoot checks that two variables select the directory of the boards, as in the agent (contract
// 28.11).
func TestRoot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ hermes, kanban, want string }{
		{"", "", "/home/u/.hermes"},
		{"  ", " ", "/home/u/.hermes"},
		{"/home/u/.hermes", "", "/home/u/.hermes"},
		{"/home/u/.hermes/profiles/coder", "", "/home/u/.hermes"},
		{"/opt/data/profiles/coder", "", "/opt/data"},
		{"/opt/data", "", "/opt/data"},
		{"/opt/data/", "", "/opt/data"},
		{"~/elsewhere", "", "/home/u/elsewhere"},
		{"/opt/data/profiles/coder", " ~/board ", "/home/u/board"},
		{"/home/u/.hermesx", "", "/home/u/.hermesx"},
	} {
		got := Root(testEnv{"HERMES_HOME": c.hermes, "HERMES_KANBAN_HOME": c.kanban}.get, "/home/u")
		if got != c.want {
			t.Errorf("%q %q: %s, not %s", c.hermes, c.kanban, got, c.want)
		}
	}
}

func TestPins(t *testing.T) {
	t.Parallel()
	e := testEnv{}
	b := &Boards{Root: "/r", Env: e.get}
	plain, err := b.Paths("")
	must(t, err)
	if plain != (Paths{
		Board: "default", DB: "/r/kanban.db", Workspaces: "/r/kanban/workspaces", Logs: "/r/kanban/logs", Attachments: "/r/kanban/attachments",
		ScratchHintFile: "/r/.scratch_tip_shown",
	}) {
		t.Errorf("%+v", plain)
	}
	for name, change := range map[string]func(*Paths){
		"HERMES_KANBAN_DB":               func(p *Paths) { p.DB = "/pin" },
		"HERMES_KANBAN_WORKSPACES_ROOT":  func(p *Paths) { p.Workspaces = "/pin" },
		"HERMES_KANBAN_ATTACHMENTS_ROOT": func(p *Paths) { p.Attachments = "/pin" },
	} {
		clear(e)
		e[name] = " /pin "
		got, err := b.Paths("default")
		must(t, err)
		want := plain
		if change(&want); got != want {
			t.Errorf("%s: %+v", name, got)
		}
		e[name] = "  "
		if got, _ := b.Paths("default"); got != plain {
			t.Errorf("%s blank: %+v", name, got)
		}
	}
	if plain.TickLock() != "/r/kanban.db.dispatch.lock" || GatewayLock("/r") != "/r/kanban/.dispatcher.lock" || plain.initLock() != "/r/kanban.db.init.lock" {
		t.Error("names of locks")
	}
}

func TestSlug(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"Default": "default", " a ": "a", "a-b_c9": "a-b_c9", "": "", "  ": "", strings.Repeat("x", 64): strings.Repeat("x", 64)} {
		if got, err := CanonicalSlug(in); got != want || err != nil {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
	for _, bad := range []string{"-a", "_a", "a/b", "a b", "a.b", "..", ".", "a\x00", "ä", strings.Repeat("x", 65), "a\nb"} {
		if got, err := CanonicalSlug(bad); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestCurrentBoard(t *testing.T) {
	t.Parallel()
	e := testEnv{}
	b := &Boards{Root: t.TempDir(), Env: e.get}
	want := func(what, slug string) {
		t.Helper()
		if got := b.Current(); got != slug {
			t.Errorf("%s: %s, not %s", what, got, slug)
		}
	}
	want("nothing", "default")
	for _, slug := range []string{"one", "two"} {
		_, err := b.Create(t.Context(), time.Unix(1, 0), BoardMeta{Slug: slug})
		must(t, err)
	}
	must(t, b.Switch("One"))
	want("the pointer", "one")
	e["HERMES_KANBAN_BOARD"] = "Two"
	want("the variable", "two")
	for _, bad := range []string{"three", "../x", "  "} {
		e["HERMES_KANBAN_BOARD"] = bad
		want("falls through "+bad, "one")
	}
	must(t, os.MkdirAll(b.boardDir("empty"), 0o755))
	must(t, os.WriteFile(b.currentBoardFile(), []byte("empty\n"), 0o644))
	want("an empty directory is no board", "default")
	if err := b.Switch("three"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("%v", err)
	}
}

func TestBoards(t *testing.T) {
	t.Parallel()
	e := testEnv{}
	b := &Boards{Root: t.TempDir(), Env: e.get}
	now := time.Unix(1000, 0)
	for _, slug := range []string{"zeta", "alpha-team_two", "zeta"} {
		m, err := b.Create(t.Context(), now, BoardMeta{Slug: slug, Icon: "*"})
		must(t, err)
		if !isFile(b.dbPath(m.Slug)) || m.CreatedAt != 1000 {
			t.Errorf("%+v", m)
		}
		now = now.Add(0)
	}
	must(t, os.MkdirAll(b.boardDir("empty"), 0o755))
	list, err := b.List()
	must(t, err)
	var names []string
	for _, m := range list {
		names = append(names, m.Slug+"="+m.Name)
	}
	checkEqual(t, "boards", names, "default=Default", "alpha-team_two=Alpha Team Two", "zeta=Zeta")

	must(t, os.WriteFile(filepath.Join(b.boardDir("zeta"), "board.json"), []byte("{"), 0o644))
	if m := b.Meta("zeta"); m.Name != "Zeta" || m.Slug != "zeta" {
		t.Errorf("%+v", m)
	}
	must(t, os.WriteFile(filepath.Join(b.boardDir("zeta"), "board.json"), []byte(`{"slug":"other","name":"Z","default_workdir":"/w"}`), 0o644))
	if m := b.Meta("zeta"); m.Name != "Z" || m.Slug != "zeta" || m.DefaultWorkdir != "/w" {
		t.Errorf("%+v", m)
	}
	must(t, b.Update("zeta", func(m *BoardMeta) { m.Name, m.Slug = "New", "x" }))
	if m := b.Meta("zeta"); m.Name != "New" || m.DefaultWorkdir != "/w" {
		t.Errorf("%+v", m)
	}

	must(t, b.Switch("zeta"))
	for _, bad := range []string{"default", "nothing", ""} {
		if _, err := b.Remove(now, bad, false); err == nil {
			t.Errorf("%q was removed", bad)
		}
	}
	moved, err := b.Remove(now, "zeta", false)
	must(t, err)
	if moved != filepath.Join(b.boardsDir(), "_archived", "zeta-1000") || !isFile(filepath.Join(moved, "kanban.db")) || b.Exists("zeta") || b.Current() != "default" {
		t.Errorf("moved to %s", moved)
	}
	_, err = b.Create(t.Context(), now, BoardMeta{Slug: "zeta"}) // A new file gets its schema.
	must(t, err)
	p, err := b.Paths("zeta")
	must(t, err)
	s, err := Open(t.Context(), p, Options{Env: e.get})
	must(t, err)
	_, err = s.Create(t.Context(), now, Task{Title: "x"})
	must(t, err)
	must(t, s.Close())
	moved, err = b.Remove(now, "zeta", false)
	if must(t, err); !strings.HasSuffix(moved, "zeta-1000-1") {
		t.Errorf("moved to %s", moved)
	}
	_, err = b.Remove(now, "alpha-team_two", true)
	if must(t, err); b.Exists("alpha-team_two") {
		t.Error("it is still there")
	}
}

func TestBoardsAreApart(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	e := testEnv{}
	boards := &Boards{Root: root, Env: e.get}
	_, err := boards.Create(t.Context(), time.Unix(1, 0), BoardMeta{Slug: "other"})
	must(t, err)
	b := openBoard(t, root, e)
	p, err := boards.Paths("other")
	must(t, err)
	other, err := Open(t.Context(), p, Options{Env: e.get})
	must(t, err)
	defer other.Close()
	id := b.createReady("alpha")
	if err := other.Link(t.Context(), b.now, id, id+"x"); err == nil {
		t.Error("linked across boards")
	}
	list, err := other.Tasks(t.Context(), TaskFilter{})
	if must(t, err); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

func TestProfileDirs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := ProfileDirs(root)
	must(t, os.MkdirAll(filepath.Join(root, "profiles", "coder"), 0o755))
	writeTestFile(t, filepath.Join(root, "profiles", "file"), nil)
	for name, want := range map[string]bool{"default": true, "Default": true, "coder": true, "Coder": false, "file": false, "ghost": false, "..": false, "": false, "../profiles": false} {
		if ok, err := p.Exists(name); ok != want || err != nil {
			t.Errorf("%q: %v %v", name, ok, err)
		}
	}
	checkEqual(t, "profiles", p.List(), "default", "coder")
	if p.Dir("coder") != filepath.Join(root, "profiles", "coder") || p.Dir("ghost") != "" || p.Dir("default") != root {
		t.Error("homes")
	}
}

// TestABoardIsDeletedWhileItIsWritten checks that a deleted board does not reappear although a
// service writes files beside it.
func TestABoardIsDeletedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	b := &Boards{Root: t.TempDir(), Env: testEnv{}.get}
	for range 5 {
		_, err := b.Create(t.Context(), time.Now(), BoardMeta{Slug: "gone"})
		must(t, err)
		paths, err := b.Paths("gone")
		must(t, err)
		written, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for n := 0; os.WriteFile(paths.DB+strconv.Itoa(n), nil, 0o644) == nil; n++ {
				if n == 100 {
					close(written)
				}
			}
		}()
		<-written
		_, err = b.Remove(time.Now(), "gone", true)
		must(t, err)
		<-over
		if b.Exists("gone") {
			t.Fatal("it is there")
		}
	}
}
