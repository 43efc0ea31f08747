package fsutil_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

func TestReadFile(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		writeFile(t, base+"/a/f", "12345")
		writeFile(t, base+"/empty", "")
		big := bytes.Repeat([]byte("x"), 3<<20)
		writeFile(t, base+"/big", string(big))

		for _, rel := range []string{"a/f", "a//f", "./a/./f"} {
			if got, err := d.ReadFile(rel, 5); err != nil || string(got) != "12345" {
				t.Errorf("%q: %q, %v", rel, got, err)
			}
		}
		if got, err := d.ReadFile("a/f", 4); !errors.Is(err, fsutil.ErrTooLarge) || got != nil {
			t.Errorf("limit of 4: %q, %v", got, err)
		}
		if got, err := d.ReadFile("big", 1<<63-1); err != nil || !bytes.Equal(got, big) {
			t.Errorf("big: %d bytes, %v", len(got), err)
		}
		if got, err := d.ReadFile("empty", 0); err != nil || len(got) != 0 {
			t.Errorf("empty: %q, %v", got, err)
		}
		if _, err := d.ReadFile("none", 9); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing: %v", err)
		}
		if _, err := d.ReadFile("a/f/g", 9); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("beneath a file: %v", err)
		}

		proc := open("/proc/self")
		status, err := proc.ReadFile("status", 1<<20)
		if err != nil || !strings.HasPrefix(string(status), "Name:") {
			t.Errorf("status: %q, %v", status, err)
		}
		if _, err := proc.ReadFile("status", 10); !errors.Is(err, fsutil.ErrTooLarge) {
			t.Errorf("status with a limit of 10: %v", err)
		}
		for _, magic := range []string{"exe", "root/etc/passwd", "cwd/x"} {
			if _, err := proc.ReadFile(magic, 1<<20); !errors.Is(err, fsutil.ErrSymlink) {
				t.Errorf("magic link %s: %v", magic, err)
			}
		}
	})
}

func TestOnlyRegularFiles(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		must(t, unix.Mkfifo(base+"/fifo", 0o600))
		must(t, os.Mkdir(base+"/dir", 0o700))
		l, err := net.Listen("unix", base+"/socket")
		must(t, err)
		defer l.Close()
		for _, name := range []string{"fifo", "dir", "socket"} {
			// without O_NONBLOCK the call would hang on the FIFO
			if _, err := d.ReadFile(name, 10); !errors.Is(err, fsutil.ErrNotRegular) {
				t.Errorf("ReadFile %s: %v", name, err)
			}
			if err := d.Append(name, []byte("x"), 0o600); !errors.Is(err, fsutil.ErrNotRegular) {
				t.Errorf("Append %s: %v", name, err)
			}
			if err := d.Replace(name, []byte("x"), fsutil.ReplaceOptions{Mode: 0o600}); !errors.Is(err, fsutil.ErrNotRegular) {
				t.Errorf("Replace %s: %v", name, err)
			}
		}
		reader, err := os.OpenFile(base+"/fifo", os.O_RDWR, 0)
		must(t, err)
		defer reader.Close()
		if err := d.Append("fifo", []byte("x"), 0o600); !errors.Is(err, fsutil.ErrNotRegular) {
			t.Errorf("Append to a FIFO that has a reader: %v", err)
		}
		if got := dirNames(t, base); got != "dir fifo socket" {
			t.Errorf("directory now has %q", got)
		}
	})
}

func TestCheckExists(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(path string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		writeFile(t, base+"/d/file", "")
		must(t, unix.Mkfifo(base+"/d/fifo", 0))
		must(t, os.Symlink("nowhere", base+"/d/link"))
		must(t, os.Symlink("d", base+"/dirlink"))
		for _, rel := range []string{"", "d", "d/file", "d/fifo", "d/link", "dirlink"} {
			if err := d.CheckExists(rel); err != nil {
				t.Errorf("%q: %v", rel, err)
			}
		}
		for rel, want := range map[string]error{"d/none": fs.ErrNotExist, "none/file": fs.ErrNotExist, "d/file/x": unix.ENOTDIR, "dirlink/file": fsutil.ErrSymlink} {
			if err := d.CheckExists(rel); !errors.Is(err, want) {
				t.Errorf("%q: got %v, want %v", rel, err, want)
			}
		}
	})
}

func TestReadDir(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		var want []string
		for i := range 300 { // more names than fit into one buffer of getdents64
			name := fmt.Sprintf("file-%03d-%s", i, strings.Repeat("n", 60))
			writeFile(t, base+"/many/"+name, "")
			want = append(want, name)
		}
		some, more, err := d.ReadAtMost("many", 299)
		if err != nil || !more || len(some) != 299 || !slices.IsSortedFunc(some, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) }) {
			t.Errorf("of 300 names, 299 of which are to be looked at: %d, others: %v, %v", len(some), more, err)
		}
		if all, more, err := d.ReadAtMost("many", 300); err != nil || more || len(all) != 300 {
			t.Errorf("of 300 names: %d, others: %v, %v", len(all), more, err)
		}
		entries, err := d.ReadDir("many")
		must(t, err)
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %d names, want %d sorted", len(got), len(want))
		}

		must(t, os.Remove(base+"/many/"+want[0]))
		if _, err := entries[0].Info(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Info of a removed file: %v", err)
		}

		writeFile(t, base+"/k/Z", "zz")
		must(t, os.Mkdir(base+"/k/a", 0o700))
		must(t, os.Symlink("Z", base+"/k/l"))
		must(t, unix.Mkfifo(base+"/k/\xff", 0o600))
		sub, err := d.OpenSubdir("k")
		must(t, err)
		defer sub.Close()
		if sub.Path() != base+"/k" {
			t.Errorf("Path is %q", sub.Path())
		}
		for _, rel := range []string{"", "."} {
			entries, err = sub.ReadDir(rel)
			must(t, err)
			var shown []string
			for _, e := range entries {
				info, err := e.Info()
				must(t, err)
				if info.Mode().Type() != e.Type() || info.Name() != e.Name() || e.IsDir() != info.IsDir() {
					t.Errorf("%s: entry %v, info %v", e.Name(), e.Type(), info.Mode())
				}
				shown = append(shown, fs.FormatDirEntry(e))
			}
			if got := strings.Join(shown, ","); got != "- Z,d a/,L l,p \xff" {
				t.Errorf("ReadDir(%q): %q", rel, got)
			}
		}
		if _, err := d.ReadDir("k/Z"); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("ReadDir of a file: %v", err)
		}
		if _, err := d.ReadDir("none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("ReadDir of nothing: %v", err)
		}
	})
}

func TestMkdir(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		must(t, d.Mkdir("a/b/c", 0o750))
		must(t, os.Chmod(base+"/a/b", 0o711))
		must(t, d.Mkdir("a/b/c", 0o700))
		for name, want := range map[string]fs.FileMode{"a": 0o750, "a/b": 0o711, "a/b/c": 0o750} {
			info, err := d.Lstat(name)
			must(t, err)
			if info.Mode().Perm() != want {
				t.Errorf("%s has mode %o, want %o", name, info.Mode().Perm(), want)
			}
		}
		writeFile(t, base+"/f", "")
		for _, rel := range []string{"f", "f/x"} {
			if err := d.Mkdir(rel, 0o700); !errors.Is(err, unix.ENOTDIR) {
				t.Errorf("Mkdir %s with a file in the way: %v", rel, err)
			}
		}
	})
}

func TestAppend(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		for range 3 {
			must(t, d.Append("log", []byte("ab\n"), 0o640))
		}
		info, err := os.Stat(base + "/log")
		must(t, err)
		if info.Size() != 9 || info.Mode().Perm() != 0o640 {
			t.Errorf("size %d, mode %o", info.Size(), info.Mode().Perm())
		}
		if err := d.Append("none/log", nil, 0o640); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("in a missing directory: %v", err)
		}

		const writers, lines = 4, 50
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				line := bytes.Repeat([]byte{byte('A' + w)}, 2000)
				for range lines {
					if err := d.Append("many", append(line, '\n'), 0o600); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		got := strings.Split(strings.TrimSuffix(readFile(t, base+"/many"), "\n"), "\n")
		if len(got) != writers*lines {
			t.Errorf("%d lines, want %d", len(got), writers*lines)
		}
		for _, line := range got {
			if len(line) != 2000 || strings.Trim(line, line[:1]) != "" {
				t.Fatalf("a mixed line of %d bytes", len(line))
			}
		}
	})
}

func TestRemove(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		writeFile(t, base+"/a/f", "")
		if err := d.Remove("a"); !errors.Is(err, unix.ENOTEMPTY) {
			t.Errorf("full directory: %v", err)
		}
		must(t, d.Remove("a/f"))
		must(t, d.Remove("a"))
		for _, rel := range []string{"a", "a/f"} {
			if err := d.Remove(rel); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Remove of missing %s: %v", rel, err)
			}
			if err := d.RemoveAll(rel); err != nil {
				t.Errorf("RemoveAll of missing %s: %v", rel, err)
			}
		}
	})
}

func TestRename(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		d := open(base)
		writeFile(t, base+"/a/f", "new")
		writeFile(t, base+"/b/g", "old")
		must(t, d.Rename("a/f", "b/g"))
		if got := readFile(t, base+"/b/g"); got != "new" {
			t.Errorf("content %q", got)
		}
		if err := d.Rename("a/f", "b/g"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing source: %v", err)
		}
		if err := d.Rename("b/g", "none/g"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), base+"/none/g") {
			t.Errorf("missing target directory: %v", err)
		}
	})
}

func TestMountsBeneathAreCrossed(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		base := t.TempDir()
		must(t, os.MkdirAll(base+"/volume", 0o755))
		mountTmpfs(t, base+"/volume", "size=64k")
		d := open(base)
		must(t, d.Replace("volume/f", []byte("x"), fsutil.ReplaceOptions{Mode: 0o600}))
		if got, err := d.ReadFile("volume/f", 9); err != nil || string(got) != "x" {
			t.Errorf("%q, %v", got, err)
		}
		if err := d.RemoveAll("volume"); !errors.Is(err, unix.EBUSY) {
			t.Errorf("RemoveAll of a mount point: %v", err)
		}
	})
}

func TestOpenDir(t *testing.T) {
	base := t.TempDir()
	must(t, os.Mkdir(base+"/real", 0o755))
	must(t, os.Symlink("real", base+"/link"))
	writeFile(t, base+"/real/f", "x")
	d := openDir(t, base+"/link", nil)
	if _, err := d.ReadFile("f", 9); err != nil || d.Path() != base+"/link" {
		t.Errorf("through a link in the path: %v, Path %q", err, d.Path())
	}
	must(t, os.Rename(base+"/real", base+"/moved"))
	if _, err := d.ReadFile("f", 9); err != nil {
		t.Errorf("after the directory moved: %v", err)
	}
	if _, err := fsutil.OpenDir(base+"/none", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := fsutil.OpenDir(base+"/moved/f", nil); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
}

func TestClose(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base+"/f", "x")
	d, err := fsutil.OpenDir(base, nil)
	must(t, err)
	sub, err := d.OpenSubdir("")
	must(t, err)
	defer sub.Close()

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				if _, err := d.ReadFile("f", 9); err != nil {
					if !errors.Is(err, fs.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	must(t, d.Close())
	wg.Wait()
	if err := d.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := sub.ReadFile("f", 9); err != nil {
		t.Errorf("Sub after Close of its parent: %v", err)
	}
}

func TestWalkIsChosenForGood(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base+"/a/f", "x")
	d := openDir(t, base, nil)
	sub, err := d.OpenSubdir("a")
	must(t, err)
	defer sub.Close()
	sub.SetNoOpenat2(true)
	if !d.LacksOpenat2() {
		t.Error("a Sub doesn't share what was learned about openat2")
	}
	if got, err := d.ReadFile("a/f", 9); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}
