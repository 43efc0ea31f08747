package fsutil_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func threadCredentials(t *testing.T) string {
	t.Helper()
	var lines []string
	for line := range strings.SplitSeq(readFile(t, "/proc/thread-self/status"), "\n") {
		switch key, _, _ := strings.Cut(line, ":"); key {
		case "Uid", "Gid", "Groups", "CapEff", "CapPrm":
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func agentActor(t *testing.T, groups ...uint32) *fsutil.Actor {
	t.Helper()
	testkit.NeedRoot(t)
	a := fsutil.NewActor(fsutil.Identity{UID: agentUID, GID: agentGID, Groups: groups})
	if !a.SwitchesIdentity() {
		if os.Getenv("CI") == "true" {
			t.Fatal("the kernel doesn't let root switch identity")
		}
		t.Skip("the kernel doesn't let root switch identity")
	}
	return a
}

func makeWorldWritableDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		must(t, os.Chmod(p, 0o755))
	}
	return dir
}

func TestActorOwnsWhatItMakes(t *testing.T) {
	a := agentActor(t)
	dir := makeWorldWritableDir(t)
	must(t, os.Chown(dir, agentUID, agentGID))
	d := openDir(t, dir, a)
	must(t, d.Mkdir("sub", 0o755))
	must(t, d.Replace("sub/state", []byte("x"), fsutil.ReplaceOptions{Mode: 0o600}))
	if err := d.Append("sub/log", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sub", "sub/state", "sub/log"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		if st.Uid != agentUID || st.Gid != agentGID {
			t.Errorf("%s belongs to %d:%d, want %d:%d", name, st.Uid, st.Gid, agentUID, agentGID)
		}
	}
}

func TestActorHasNoPowerOfRoot(t *testing.T) {
	a := agentActor(t)
	dir := makeWorldWritableDir(t)
	writeFile(t, dir+"/secret", "s")
	must(t, os.Chmod(dir+"/secret", 0o600))
	d := openDir(t, dir, a)

	if _, err := d.ReadFile("secret", 10); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("ReadFile of root's file: %v", err)
	}
	if err := d.Append("secret", nil, 0o600); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Append to root's file: %v", err)
	}
	for name, err := range map[string]error{
		"Replace":   d.Replace("new", nil, fsutil.ReplaceOptions{Mode: 0o600}),
		"Mkdir":     d.Mkdir("new", 0o700),
		"Remove":    d.Remove("secret"),
		"RemoveAll": d.RemoveAll("secret"),
		"Rename":    d.Rename("secret", "mine"),
	} {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s in root's directory: %v", name, err)
		}
	}
	if got := dirNames(t, dir); got != "secret" {
		t.Errorf("root's directory now has %q", got)
	}

	must(t, os.Chmod(dir, 0o700))
	if _, err := fsutil.OpenDir(dir+"/.", a); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("OpenDir behind root's closed directory: %v", err)
	}
}

func TestActorSupplementaryGroups(t *testing.T) {
	const shared = 20001
	dir := makeWorldWritableDir(t)
	must(t, os.Mkdir(dir+"/shared", 0))
	if os.Geteuid() == 0 {
		must(t, os.Chown(dir+"/shared", 0, shared))
	}
	must(t, os.Chmod(dir+"/shared", 0o770))

	if err := openDir(t, dir, agentActor(t, agentGID, shared)).Mkdir("shared/a", 0o755); err != nil {
		t.Errorf("as a member: %v", err)
	}
	if err := openDir(t, dir, agentActor(t, agentGID)).Mkdir("shared/b", 0o755); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("as no member: %v", err)
	}
}

func TestDoRestoresTheThread(t *testing.T) {
	a := agentActor(t, 20001, 20002)
	b := fsutil.NewActor(fsutil.Identity{UID: agentUID + 5, GID: agentGID + 5})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadCredentials(t)

	boom := errors.New("boom")
	if err := a.Do(func() error {
		inside := threadCredentials(t)
		for _, want := range []string{"\t10000\n", "\t10001\n", "Groups:\t20001 20002"} {
			if !strings.Contains(inside, want) {
				t.Errorf("inside there is no %q in\n%s", want, inside)
			}
		}
		nested := b.Do(func() error {
			if got := fsutil.FSUID(); got != agentUID+5 {
				t.Errorf("fsuid in the nested Do: %d", got)
			}
			return boom
		})
		if after := threadCredentials(t); after != inside {
			t.Errorf("after the nested Do:\n%s\nwant\n%s", after, inside)
		}
		return nested
	}); !errors.Is(err, boom) {
		t.Errorf("Do returned %v, want fn's error itself", err)
	}
	if after := threadCredentials(t); after != before {
		t.Errorf("after Do:\n%s\nwant\n%s", after, before)
	}

	func() {
		defer func() {
			if got := recover(); got != "oops" {
				t.Errorf("recovered %v, want fn's panic", got)
			}
		}()
		_ = a.Do(func() error { panic("oops") })
	}()
	if after := threadCredentials(t); after != before {
		t.Errorf("after a panic:\n%s\nwant\n%s", after, before)
	}
}

func TestDoChangesNoOtherThread(t *testing.T) {
	a := agentActor(t)
	err := a.Do(func() error {
		other := make(chan uint32)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			other <- fsutil.FSUID()
		}()
		if got := <-other; got != 0 {
			return fmt.Errorf("another thread has fsuid %d", got)
		}
		if got := fsutil.FSUID(); got != agentUID {
			return fmt.Errorf("own thread has fsuid %d", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestActorThatNeedsNoSwitch(t *testing.T) {
	self := fsutil.ProcessActor()
	if self.SwitchesIdentity() {
		t.Error("Self switches")
	}
	if got := self.Identity().UID; got != uint32(os.Geteuid()) {
		t.Errorf("Self is uid %d", got)
	}
	same := fsutil.NewActor(fsutil.Identity{UID: uint32(os.Geteuid()), GID: 5})
	if same.SwitchesIdentity() {
		t.Error("an actor for the present uid switches")
	}
	called := false
	if err := same.Do(func() error { called = true; return nil }); err != nil || !called {
		t.Errorf("Do: %v, called %v", err, called)
	}
	want := fsutil.Identity{UID: 5, GID: 6, Groups: []uint32{7}}
	if got := fsutil.NewActor(want).Identity(); !reflect.DeepEqual(got, want) {
		t.Errorf("Identity is %+v, want %+v", got, want)
	}
}

var childChecks = map[string]func() error{"cannot switch": func() error {
	a := fsutil.NewActor(fsutil.Identity{UID: agentUID, GID: agentGID})
	if a.SwitchesIdentity() {
		return errors.New("the actor claims to switch")
	}
	before := fsutil.FSUID()
	return a.Do(func() error {
		if fsutil.FSUID() != before {
			return fmt.Errorf("fsuid went from %d to %d", before, fsutil.FSUID())
		}
		return nil
	})
}}

func TestActorWhereTheKernelRefuses(t *testing.T) {
	testkit.NeedRoot(t)
	t.Run("not root", func(t *testing.T) {
		runChild(t, "cannot switch", func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		})
	})
	for name, capability := range map[string]uintptr{"no CAP_SETUID": unix.CAP_SETUID, "no CAP_SETGID": unix.CAP_SETGID} {
		t.Run(name, func(t *testing.T) {
			// A process inherits the capability bounding set of the thread that forks it.
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread()
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
					t.Errorf("cannot drop the capability: %v", err)
					return
				}
				runChild(t, "cannot switch", func(*exec.Cmd) {})
			}()
			<-done
		})
	}
	only := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: agentUID + 10}}
	for name, maps := range map[string][2][]syscall.SysProcIDMap{
		"user namespace without the uid": {only, all},
		"user namespace without the gid": {all, only},
	} {
		t.Run(name, func(t *testing.T) {
			if exec.Command("unshare", "-U", "true").Run() != nil && os.Getenv("CI") != "true" {
				t.Skip("no user namespaces here")
			}
			runChild(t, "cannot switch", func(cmd *exec.Cmd) {
				cmd.SysProcAttr = &syscall.SysProcAttr{
					Cloneflags:  syscall.CLONE_NEWUSER,
					UidMappings: maps[0], GidMappings: maps[1], GidMappingsEnableSetgroups: true,
				}
			})
		})
	}
}

func TestActorWorksWhereRootCannotSwitch(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir, fsutil.ActorWithoutSwitch(fsutil.Identity{UID: agentUID}))
	must(t, d.Replace("f", []byte("x"), fsutil.ReplaceOptions{Mode: 0o600}))
	if got := readFile(t, dir+"/f"); got != "x" {
		t.Errorf("content %q", got)
	}
}
