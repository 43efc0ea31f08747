package scandir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func TestTheDirectoriesOfS6AreMadeAfresh(t *testing.T) {
	g := newLayout(t)
	g.Env = []string{"PLAIN=value", "EMPTY=", "TWO=one\nmore\n", "no equals sign", ".dot=x", "a/b=x", "=x", "PLAIN=again", strings.Repeat("n", 300) + "=x"}
	must(t, writeServiceDir(filepath.Join(g.ScanDir, "old/deep/er"), map[string]string{"run": "#!/bin/sh\n"}))
	must(t, writeServiceDir(filepath.Join(g.ScanDir, ".s6-svscan"), map[string]string{"lock": ""}))
	must(t, writeServiceDir(g.BaseDir, map[string]string{"container_environment/STALE": "x"}))
	outside := filepath.Join(filepath.Dir(g.BaseDir), "outside")
	must(t, writeServiceDir(outside, map[string]string{"precious": "x"}))
	must(t, os.Symlink(outside, filepath.Join(g.ScanDir, "link")))
	openScanner(t, newHost(), g)

	entries, err := os.ReadDir(g.ScanDir)
	if err != nil || len(entries) != 1 || entries[0].Name() != ".s6-svscan" {
		t.Errorf("the scan directory holds %v, %v", entries, err)
	}
	waitUntil(t, "what was moved aside is removed", func() bool { return countLeftovers(g) == 0 })
	if _, err := os.Stat(outside + "/precious"); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	for name, mode := range map[string]fs.FileMode{
		g.ScanDir: fs.ModeDir | 0o755, g.BaseDir + "/basedir": fs.ModeDir | 0o755, g.BaseDir + "/container_environment": fs.ModeDir | 0o755,
		g.ScanDir + "/.s6-svscan": fs.ModeDir | 0o755, g.ScanDir + "/.s6-svscan/control": fs.ModeNamedPipe | 0o600, g.ScanDir + "/.s6-svscan/lock": 0o600,
	} {
		info, err := os.Lstat(name)
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", name, info, err, mode)
			continue
		}
		owner := info.Sys().(*syscall.Stat_t).Uid
		if agents := strings.HasPrefix(name, g.ScanDir); os.Geteuid() == 0 && (owner == agentUID) != agents {
			t.Errorf("%s belongs to %d", name, owner)
		}
	}
	want := map[string]string{"PLAIN": "again", "EMPTY": "\n", "TWO": "one\nmore\n\n"}
	vars, err := os.ReadDir(g.BaseDir + "/container_environment")
	if err != nil || len(vars) != len(want) {
		t.Errorf("container_environment holds %v, %v", vars, err)
	}
	for name, value := range want {
		if got, err := os.ReadFile(g.BaseDir + "/container_environment/" + name); string(got) != value {
			t.Errorf("%s is %q, %v; want %q", name, got, err, value)
		}
	}
}

// A scan directory of the image must be used as it is. Even a user who may not write in its parent can act as s6.
func TestTheDirectoryOfTheImageIsUsed(t *testing.T) {
	g := newLayout(t)
	must(t, os.MkdirAll(g.ScanDir, 0o755))
	must(t, os.Chmod(g.ScanDir, 0o700))
	must(t, os.Lchown(g.ScanDir, int(g.Agent.Identity().UID), int(g.Agent.Identity().GID)))
	before, err := os.Stat(g.ScanDir)
	must(t, err)
	openScanner(t, newHost(), g)
	after, err := os.Stat(g.ScanDir)
	if err != nil || !os.SameFile(before, after) || after.Mode().Perm() != 0o755 {
		t.Errorf("it is another one, or has mode %v: %v", after.Mode(), err)
	}
}

// A scan directory in /var/run, a link to /run, must be used as it is.
func TestAScanDirectoryBelowALinkOfRootIsUsed(t *testing.T) {
	testkit.NeedRoot(t)
	g := newLayout(t)
	must(t, os.MkdirAll(g.ScanDir, 0o755))
	must(t, os.Lchown(g.ScanDir, agentUID, agentGID))
	must(t, os.Symlink("run", filepath.Join(filepath.Dir(g.BaseDir), "../var-run")))
	g.ScanDir = filepath.Join(filepath.Dir(g.BaseDir), "../var-run/service")
	openScanner(t, newHost(), g)
}

func TestADirectoryThatIsNoScanDirectoryIsNotWiped(t *testing.T) {
	for name, lay := range map[string]func(g *Layout) error{
		"it holds other things":                   func(g *Layout) error { return writeServiceDir(g.ScanDir, map[string]string{"precious": "x"}) },
		"expected an absolute path":               func(g *Layout) error { g.ScanDir = "service"; return nil },
		"expected an absolute path with two":      func(g *Layout) error { g.ScanDir = "/hinit-test-service"; return nil },
		"cannot use \"/proc/self\" as the scan d": func(g *Layout) error { g.ScanDir = "/proc/self"; return nil },
	} {
		g := newLayout(t)
		must(t, lay(&g))
		if s, err := Open(context.Background(), newHost(), g); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
		if _, err := os.Stat(g.BaseDir); err == nil {
			t.Errorf("%s: %s was made all the same", name, g.BaseDir)
		}
	}
}

func TestASecondScannerLeavesTheFirstAlone(t *testing.T) {
	g := newLayout(t)
	first := openScanner(t, newHost(), g)
	must(t, first.Publish(t.Context(), "gateway-a", Files{Run: "#!/bin/sh\n"}, false))
	if _, err := Open(t.Context(), newHost(), g); err == nil || !strings.Contains(err.Error(), errScanDirLocked.Error()) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := os.Stat(g.ScanDir + "/gateway-a/run"); err != nil {
		t.Errorf("the first one's slot: %v", err)
	}
}

// The container must start although the agent has filled a scan directory that can't be moved aside and takes long to empty.
func TestAScanDirectoryThatTheAgentHasFilledDoesNotKeepTheContainerFromStarting(t *testing.T) {
	g := newLayout(t)
	for i := range 2000 {
		must(t, os.MkdirAll(filepath.Join(g.ScanDir, "x", strconv.Itoa(i)), 0o755))
	}
	g.ScanDir = filepath.Join(g.ScanDir, "x")
	must(t, os.Mkdir(filepath.Join(g.ScanDir, ".s6-svscan"), 0o755))
	g.clearTimeout = time.Millisecond
	parent, err := g.withLimits().openParent(g.ScanDir)
	must(t, err)
	answer := make(chan struct{})
	for blocking.HasFreeTurn(blocking.Runtime) {
		holds := make(chan struct{})
		go blocking.Run(blocking.Runtime, func() { close(holds); <-answer })
		<-holds
	}
	_, err = g.withLimits().recreateDir(parent, "x", fsutil.ProcessActor())
	close(answer)
	if err == nil || !strings.Contains(err.Error(), "cannot empty") {
		t.Errorf("it was waited for: %v", err)
	}
	waitUntil(t, "it is removed in the background", func() bool {
		entries, err := os.ReadDir(filepath.Dir(g.ScanDir))
		return err == nil && len(entries) == 0
	})
	g.clearTimeout = 0
	openScanner(t, newHost(), g)
}

// Root must not remove a directory because of its name. The agent owns the directory around the scan directory, and can give
// root's directory the name of an old scan directory.
func TestRootRemovesNothingThatTheAgentHasRenamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	g := newLayout(t)
	home := filepath.Join(filepath.Dir(g.BaseDir), "home")
	g.ScanDir = filepath.Join(home, "svc")
	kept := filepath.Join(home, oldDirPrefix+"svc-1")
	must(t, writeServiceDir(kept, map[string]string{"secret": "x"}))
	must(t, os.Chmod(kept, 0o700))
	must(t, os.Chown(home, agentUID, agentGID))
	parent, err := g.withLimits().openParent(g.ScanDir)
	must(t, err)
	d, err := g.withLimits().recreateDir(parent, "svc", fsutil.ProcessActor())
	must(t, err)
	must(t, d.Close())
	parent, err = g.withLimits().openParent(g.ScanDir)
	must(t, err)
	g.withLimits().removeOld(parent, "svc")
	if _, err := os.Stat(kept + "/secret"); err != nil {
		t.Errorf("root's file: %v", err)
	}
	info, err := os.Stat(g.ScanDir)
	must(t, err)
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != agentUID {
		t.Errorf("the scan directory belongs to %d", uid)
	}
}

// Root must not remove root's directory in the scan directory. The agent can move such a directory into the scan directory,
// although it can't remove it.
func TestRootRemovesNothingThatTheAgentHasMovedIntoTheScanDirectory(t *testing.T) {
	testkit.NeedRoot(t)
	g := newLayout(t)
	must(t, writeServiceDir(filepath.Join(g.ScanDir, scannerDir), map[string]string{"lock": ""}))
	must(t, writeServiceDir(filepath.Join(g.ScanDir, "gateway-a"), map[string]string{"run": "#!/bin/sh\n"}))
	moved := filepath.Join(g.ScanDir, "moved", "rootsub")
	must(t, writeServiceDir(moved, map[string]string{"secret": "x"}))
	must(t, os.Chmod(moved, 0o700))
	for _, name := range []string{g.ScanDir, filepath.Dir(moved), filepath.Join(g.ScanDir, scannerDir), filepath.Join(g.ScanDir, "gateway-a")} {
		must(t, os.Chown(name, agentUID, agentGID))
	}
	dir, lock, err := g.withLimits().prepare()
	must(t, err)
	must(t, errors.Join(dir.Close(), lock.Close()))
	waitUntil(t, "the rest of what the agent had there is removed", func() bool {
		kept, _ := filepath.Glob(filepath.Join(filepath.Dir(g.ScanDir), oldDirPrefix+"*", "*"))
		return len(kept) == 1 && filepath.Base(kept[0]) == "moved"
	})
	if entries, err := os.ReadDir(g.ScanDir); err != nil || len(entries) != 1 {
		t.Errorf("the new scan directory has %v, %v", entries, err)
	}
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(g.ScanDir), oldDirPrefix+"*", "moved", "rootsub", "secret"))
	if len(found) != 1 {
		t.Error("root's file is gone")
	}
}
