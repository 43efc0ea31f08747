package fsutil_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/testkit"
	"hinit/internal/wholefile"
)

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Uid
}

func TestChown(t *testing.T) {
	testkit.NeedRoot(t)
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		writeFile(t, base+"/d/file", "")
		must(t, os.Symlink("file", base+"/d/link"))
		must(t, os.Symlink("d", base+"/dirlink"))
		must(t, os.Link(base+"/d/file", base+"/d/second"))
		must(t, unix.Mkfifo(base+"/fifo", 0o600))
		d := open(base)
		to := fsutil.Owner{UID: agentUID, GID: agentGID}
		if _, _, err := d.Chown("d/file", fsutil.Owner{UID: agentUID, GID: agentGID, RefuseHardLinked: true}); !errors.Is(err, fsutil.ErrHardLink) {
			t.Errorf("a file with two names: %v", err)
		}
		for _, rel := range []string{"", "d", "d/file", "fifo"} {
			if was, changed, err := d.Chown(rel, to); err != nil || !changed || was != 0 {
				t.Errorf("%q: was %d, changed %v, %v", rel, was, changed, err)
			}
			if was, changed, err := d.Chown(rel, to); err != nil || changed || was != agentUID {
				t.Errorf("%q again: was %d, changed %v, %v", rel, was, changed, err)
			}
			if got := ownerOf(t, base+"/"+rel); got != agentUID {
				t.Errorf("%q is uid %d's", rel, got)
			}
		}
		// Only root's files are refused because of a second name.
		if _, changed, err := d.Chown("d/second", fsutil.Owner{UID: 1, GID: 1, RefuseHardLinked: true}); err != nil || !changed {
			t.Errorf("another user's file with two names: %v", err)
		}
		for rel, want := range map[string]error{
			"d/link": fsutil.ErrSymlink, "dirlink/file": fsutil.ErrSymlink, "dirlink": fsutil.ErrSymlink, "nothing": fs.ErrNotExist, "../x": fs.ErrInvalid,
		} {
			if _, changed, err := d.Chown(rel, to); changed || !errors.Is(err, want) {
				t.Errorf("%q: changed %v, %v, want %v", rel, changed, err, want)
			}
		}
		if ownerOf(t, base+"/d/link") != 0 || ownerOf(t, base+"/dirlink") != 0 {
			t.Error("a link was changed")
		}
	})
}

func TestChmod(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		writeFile(t, base+"/file", "")
		must(t, os.Symlink("file", base+"/link"))
		must(t, unix.Mkfifo(base+"/fifo", 0o600))
		d := open(base)
		for range 2 {
			must(t, d.Chmod("file", 0o600))
		}
		info, err := os.Stat(base + "/file")
		must(t, err)
		if info.Mode() != 0o600 {
			t.Errorf("mode is %v", info.Mode())
		}
		for rel, want := range map[string]error{"link": fsutil.ErrSymlink, "fifo": fsutil.ErrNotRegular, "none": fs.ErrNotExist} {
			if err := d.Chmod(rel, 0o644); !errors.Is(err, want) {
				t.Errorf("%q: %v", rel, err)
			}
		}
	})
}

func TestChmodByProc(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base+"/file", "")
	fd, err := unix.Open(base+"/file", unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o640))
	info, err := os.Stat(base + "/file")
	must(t, err)
	if info.Mode() != 0o640 {
		t.Errorf("mode is %v", info.Mode())
	}
}

func TestCreate(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		must(t, os.Mkdir(base+"/d", 0o755))
		must(t, os.Symlink("nowhere", base+"/d/link"))
		d := open(base)
		must(t, d.Create("d/new", []byte("one"), 0o640))
		for rel, want := range map[string]error{"d/new": fs.ErrExist, "d": fs.ErrExist, "d/link": fsutil.ErrSymlink, "x/y": fs.ErrNotExist} {
			if err := d.Create(rel, []byte("two"), 0o640); !errors.Is(err, want) {
				t.Errorf("%q: %v", rel, err)
			}
		}
		if got := readFile(t, base+"/d/new"); got != "one" {
			t.Errorf("content is %q", got)
		}
		info, err := os.Stat(base + "/d/new")
		must(t, err)
		if info.Mode() != 0o640 || dirNames(t, base+"/d") != "link new" {
			t.Errorf("mode %v, files %s", info.Mode(), dirNames(t, base+"/d"))
		}
	})
}

func TestMakeReal(t *testing.T) {
	base := t.TempDir()
	for i, want := range []bool{true, false} {
		d, made, err := fsutil.MakeNoLink(base+"/a/b/c", 0o750, nil)
		must(t, err)
		d.Close()
		if made != want {
			t.Errorf("call %d: made is %v", i, made)
		}
	}
	must(t, os.Symlink("b", base+"/a/link"))
	writeFile(t, base+"/a/file", "")
	for path, want := range map[string]error{
		base + "/a/link": fsutil.ErrSymlink, base + "/a/file": unix.ENOTDIR, base + "/a/none": fs.ErrNotExist, "relative": fs.ErrInvalid,
	} {
		if _, err := fsutil.OpenNoLink(path, nil); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", path, err, want)
		}
	}
	d, err := fsutil.OpenNoLink("/", nil)
	must(t, err)
	d.Close()
}

func TestRealFollowsRootsLinksOnly(t *testing.T) {
	testkit.NeedRoot(t)
	mnt := t.TempDir()
	mountTmpfs(t, mnt, "mode=755")
	for _, dir := range []string{"/real/data", "/agent/real/data"} {
		must(t, os.MkdirAll(mnt+dir, 0o755))
	}
	must(t, os.Symlink("real", mnt+"/link"))
	must(t, os.Symlink("real", mnt+"/agent/link"))
	must(t, os.Chown(mnt+"/agent", agentUID, agentGID))
	d, err := fsutil.OpenNoLink(mnt+"/link/data", nil)
	if err != nil {
		t.Errorf("root's link: %v", err)
	} else {
		d.Close()
	}
	if _, err := fsutil.OpenNoLink(mnt+"/agent/link/data", nil); !errors.Is(err, fsutil.ErrSymlink) {
		t.Errorf("the agent's link: %v", err)
	}
	// A link that root made may lead through the agent's directory, where the agent can put a link into the path.
	must(t, os.Symlink(mnt+"/agent/link", mnt+"/far"))
	must(t, os.Symlink("agent/../agent/real", mnt+"/near"))
	must(t, os.Symlink("loop", mnt+"/loop"))
	for path, want := range map[string]error{"/far/data": fsutil.ErrSymlink, "/near/data": nil, "/near": fsutil.ErrSymlink, "/loop/data": unix.ELOOP} {
		d, err := fsutil.OpenNoLink(mnt+path, nil)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err == nil {
			d.Close()
		}
	}
	for path, want := range map[string]error{"/far": fsutil.ErrSymlink, "/near": nil, "/near/data/": nil, "/agent/link": fsutil.ErrSymlink, "/none": fs.ErrNotExist} {
		fd, err := wholefile.OpenForRoot(mnt + path)
		if !errors.Is(err, want) {
			t.Errorf("for root, %s: %v, want %v", path, err, want)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
	must(t, os.Chmod(mnt, 0o777))
	if _, err := fsutil.OpenNoLink(mnt+"/link/data", nil); !errors.Is(err, fsutil.ErrSymlink) {
		t.Errorf("anybody's link: %v", err)
	}
}

func TestOwnTree(t *testing.T) {
	testkit.NeedRoot(t)
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		for _, name := range []string{"t/a", "t/sub/b", "t/mine", "outside/secret", "u/m/n"} {
			writeFile(t, base+"/"+name, "")
		}
		must(t, os.Chown(base+"/t/mine", agentUID, agentGID))
		must(t, os.Symlink(base+"/outside", base+"/t/link"))
		must(t, os.Symlink("t", base+"/top"))
		mountTmpfs(t, base+"/t/sub", "mode=755")
		writeFile(t, base+"/t/sub/mounted", "")
		d := open(base)
		var found []string
		w := owntree.Walk{NewOwner: fsutil.Owner{UID: agentUID, GID: agentGID}, OnFound: func(path string, was uint32, err error) {
			found = append(found, fmt.Sprintf("%s %d %v", strings.TrimPrefix(path, base), was, err))
		}}
		must(t, w.ChangeOwners(d, "t", false))
		if w.Examined != 4 || w.Changed != 3 || w.SkippedMounts != 1 || w.Failed+w.Refused != 0 || len(found) != 3 || found[0] != "/t 0 <nil>" {
			t.Errorf("walk is %+v, found %q", w, found)
		}
		for name, uid := range map[string]uint32{"t": agentUID, "t/a": agentUID, "t/link": agentUID, "t/sub": 0, "t/sub/mounted": 0, "outside": 0, "outside/secret": 0} {
			if got := ownerOf(t, base+"/"+name); got != uid {
				t.Errorf("%s is uid %d's, want %d", name, got, uid)
			}
		}
		for rel, want := range map[string]error{"top": fsutil.ErrSymlink, "t/sub": fsutil.ErrMount, "t/a": unix.ENOTDIR, "none": fs.ErrNotExist} {
			if err := w.ChangeOwners(d, rel, false); !errors.Is(err, want) {
				t.Errorf("%q: %v, want %v", rel, err, want)
			}
		}
		if _, err := d.OpenSubdirSameMount("t/sub"); !errors.Is(err, fsutil.ErrMount) {
			t.Errorf("SubOnSameMount: %v", err)
		}
		must(t, w.ChangeOwners(d, "t/sub", true))
		if ownerOf(t, base+"/t/sub/mounted") != agentUID {
			t.Error("a mount at the top was not walked")
		}
		stop := errors.New("stop")
		for i := range 2 * owntree.BatchSize {
			writeFile(t, fmt.Sprintf("%s/u/m/%d", base, i), "")
		}
		w = owntree.Walk{NewOwner: w.NewOwner, BetweenBatches: func() error { return stop }}
		if err := w.ChangeOwners(d, "u", false); !errors.Is(err, stop) || w.Examined != owntree.BatchSize {
			t.Errorf("stopped with %v after %d", err, w.Examined)
		}
	})
}

// A change of owner must remove set-user-id and set-group-id bits and capabilities, for each kind of change.
func TestAFileThatIsGivenAwayGivesNoPower(t *testing.T) {
	testkit.NeedRoot(t)
	// vfs_cap_data, revision 2: cap_setuid is effective and permitted.
	capability := []byte{1, 0, 0, 2, 1 << 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	base := t.TempDir()
	modes := []uint32{0o4755, 0o2755, 0o6755, 0o2640, 0o4640, 0o6777}
	plant := func(name string, mode uint32) {
		writeFile(t, base+"/"+name, "")
		if err := unix.Setxattr(base+"/"+name, "security.capability", capability, 0); err != nil {
			t.Logf("this file system has no capabilities: %v", err)
		}
		must(t, unix.Chmod(base+"/"+name, mode))
	}
	to := fsutil.Owner{UID: agentUID, GID: agentGID}
	ways := map[string]func(d *fsutil.Dir, name string) error{
		"chown": func(d *fsutil.Dir, name string) error { _, _, err := d.Chown(name, to); return err },
		"own tree": func(d *fsutil.Dir, name string) error {
			return (&owntree.Walk{NewOwner: to}).ChangeOwners(d, "", false)
		},
		"replace, keeping the mode": func(d *fsutil.Dir, name string) error {
			return d.Replace(name, []byte("x"), fsutil.ReplaceOptions{KeepMode: true})
		},
		"replace with such a mode": func(d *fsutil.Dir, name string) error {
			return d.Replace(name, []byte("x"), fsutil.ReplaceOptions{Mode: fs.ModeSetuid | fs.ModeSetgid | 0o4755})
		},
		"create": func(d *fsutil.Dir, name string) error {
			return d.Create(name+".new", []byte("x"), fs.ModeSetuid|fs.ModeSetgid|0o4755)
		},
	}
	for way, give := range ways {
		for _, mode := range modes {
			dir, name := strings.ReplaceAll(way, " ", "_")+fmt.Sprintf("%o", mode), "file"
			plant(dir+"/"+name, mode)
			d := openDir(t, base+"/"+dir, fsutil.ProcessActor())
			must(t, give(d, name))
			if way == "create" {
				name += ".new"
			}
			var st unix.Stat_t
			must(t, unix.Lstat(base+"/"+dir+"/"+name, &st))
			if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
				t.Errorf("%s of %o: the file has mode %o", way, mode, st.Mode&0o7777)
			}
			if n, err := unix.Getxattr(base+"/"+dir+"/"+name, "security.capability", nil); n > 0 {
				t.Errorf("%s of %o: the file keeps a capability (%d bytes, %v)", way, mode, n, err)
			}
		}
	}
	d := openDir(t, base, fsutil.ProcessActor())
	must(t, d.MakeTree("tree", 0o4755|fs.ModeSetuid, []fsutil.TreeNode{{Name: "x", Mode: 0o755 | fs.ModeSetuid | fs.ModeSetgid}}, nil))
	var st unix.Stat_t
	must(t, unix.Lstat(base+"/tree/x", &st))
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		t.Errorf("a file of a tree has mode %o", st.Mode&0o7777)
	}
}
