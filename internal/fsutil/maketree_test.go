package fsutil_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

func slotNodes() []fsutil.TreeNode {
	return []fsutil.TreeNode{
		{Name: "run", Mode: 0o755, Data: []byte("#!/bin/sh\n")},
		{Name: "down"},
		{Name: "event", Mode: fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o730},
		{Name: "log", Mode: fs.ModeDir | 0o755},
		{Name: "log/supervise", Mode: fs.ModeDir | 0o711},
		{Name: "log/supervise/control", Mode: fs.ModeNamedPipe | 0o660},
	}
}

func TestMakeTreeMakesEverythingExactlyAsAsked(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := t.TempDir()
	d := openDir(t, dir, nil)
	if err := d.MakeTree("slot", 0o755, slotNodes(), nil); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{
		"slot": fs.ModeDir | 0o755, "slot/run": 0o755, "slot/down": 0, "slot/event": fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o730,
		"slot/log/supervise": fs.ModeDir | 0o711, "slot/log/supervise/control": fs.ModeNamedPipe | 0o660,
	} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", name, info, err, mode)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "slot/run")); string(data) != "#!/bin/sh\n" {
		t.Errorf("run holds %q, %v", data, err)
	}
	checkOnlyEntry(t, dir, "slot")
}

func TestMakeTreeTakesNothingsPlaceAndLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir, nil)
	must(t, os.Mkdir(filepath.Join(dir, "slot"), 0o755))
	if err := d.MakeTree("slot", 0o755, slotNodes(), nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an empty directory: %v", err)
	}
	for name, bad := range map[string]fsutil.TreeNode{
		"a device":       {Name: "x", Mode: fs.ModeDevice},
		"a way out":      {Name: "../x"},
		"a missing room": {Name: "no/x"},
		"twice the same": {Name: "run"},
	} {
		if err := d.MakeTree("other", 0o755, append(slotNodes(), bad), nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	checkOnlyEntry(t, dir, "slot")
}

func TestMakeTreeBelongsToTheActor(t *testing.T) {
	actor := agentActor(t)
	dir := makeWorldWritableDir(t)
	must(t, os.Chown(dir, agentUID, agentGID))
	d := openDir(t, dir, actor)
	if err := d.MakeTree("slot", 0o755, slotNodes(), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"slot", "slot/run", "slot/event", "slot/log/supervise/control"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != actor.Identity().UID {
			t.Errorf("%s belongs to %d", name, owner)
		}
	}
}

func TestMakeTreeAsksBeforeItGivesTheName(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir, nil)
	refused := errors.New("refused")
	err := d.WithIdentity(func(d *fsutil.Dir) error {
		return d.MakeTree("slot", 0o755, slotNodes(), func() error {
			if err := d.CheckExists("slot"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it has its name already: %v", err)
			}
			return refused
		})
	})
	if !errors.Is(err, refused) {
		t.Errorf("it was made all the same: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestGrowAddsWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir, nil)
	must(t, os.WriteFile(filepath.Join(dir, "run"), []byte("mine"), 0o600))
	for range 2 {
		if err := d.AddNodes(slotNodes()); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "run")); string(data) != "mine" {
		t.Errorf("what was there holds %q, %v", data, err)
	}
	info, err := os.Lstat(filepath.Join(dir, "log/supervise/control"))
	if err != nil || info.Mode() != fs.ModeNamedPipe|0o660 {
		t.Errorf("what was missing: %v, %v", info, err)
	}
	must(t, os.RemoveAll(filepath.Join(dir, "log")))
	must(t, os.Symlink(t.TempDir(), filepath.Join(dir, "log")))
	if err := d.AddNodes(slotNodes()); err == nil {
		t.Error("a link was followed")
	}
}

func checkOnlyEntry(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("%s holds %v, %v; want only %s", dir, entries, err, name)
	}
}
