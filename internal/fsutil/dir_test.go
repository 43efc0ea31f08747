package fsutil

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLinksAreRefusedEverywhere(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
		ops := map[string]func(d *Dir, rel string) error{
			"ReadFile": func(d *Dir, rel string) error { _, err := d.ReadFile(rel, 100); return err },
			"ReadDir":  func(d *Dir, rel string) error { _, err := d.ReadDir(rel); return err },
			"Append":   func(d *Dir, rel string) error { _, err := d.Append(rel, []byte("evil"), 0o600); return err },
			"Replace": func(d *Dir, rel string) error {
				return d.Replace(rel, []byte("evil"), ReplaceOptions{Mode: 0o600})
			},
			"Mkdir": func(d *Dir, rel string) error { return d.Mkdir(rel, 0o700) },
			"Sub": func(d *Dir, rel string) error {
				sub, err := d.Sub(rel)
				if err == nil {
					sub.Close()
				}
				return err
			},
			// These act on a link at the end itself, which is asserted elsewhere.
			"Lstat":      func(d *Dir, rel string) error { _, err := d.Lstat(rel); return err },
			"Remove":     func(d *Dir, rel string) error { return d.Remove(rel) },
			"RemoveAll":  func(d *Dir, rel string) error { return d.RemoveAll(rel) },
			"RenameFrom": func(d *Dir, rel string) error { return d.Rename(rel, "moved") },
			"RenameTo":   func(d *Dir, rel string) error { return d.Rename("victim", rel) },
		}
		onTheLinkItself := []string{"Lstat", "Remove", "RemoveAll", "RenameFrom", "RenameTo"}
		places := map[string]string{ // where the link is → the name asked for
			"link":         "link",
			"a/link":       "a/link",
			"a/b/link":     "a/b/link",
			"link ":        "link /x",
			"a/link ":      "a/link /x",
			"a/link-first": "a/link-first/y/x",
		}
		for op, run := range ops {
			for link, rel := range places {
				if link == rel && slices.Contains(onTheLinkItself, op) {
					continue
				}
				for _, kind := range []string{"outside", "inside", "dangling", "loop"} {
					t.Run(fmt.Sprintf("%s %q %s", op, rel, kind), func(t *testing.T) {
						root := t.TempDir()
						base, outside := root+"/base", root+"/outside"
						for _, dir := range []string{outside, base + "/inside"} {
							writeFile(t, dir+"/x", "untouched")
							writeFile(t, dir+"/y/x", "untouched")
						}
						must(t, os.MkdirAll(base+"/a/b", 0o755))
						writeFile(t, base+"/victim", "untouched")
						target := map[string]string{
							"outside": outside, "inside": base + "/inside", "dangling": root + "/nothing", "loop": base + "/" + link,
						}[kind]
						must(t, os.Symlink(target, base+"/"+link))
						before := snapshot(t, root)

						err := run(open(base), rel)
						if !errors.Is(err, ErrSymlink) {
							t.Errorf("error %v, want ErrSymlink", err)
						} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", base+"/"+rel)) ||
							!strings.Contains(err.Error(), fmt.Sprintf("%q", filepath.Base(link))) {
							t.Errorf("error %q names neither path nor link", err)
						}
						if after := snapshot(t, root); after != before {
							t.Errorf("the tree changed:\n%s\nwas\n%s", after, before)
						}
					})
				}
			}
		}
	})
}

// snapshot describes everything beneath a directory.
func snapshot(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %s %d %d ", path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%q", data)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			b.WriteString(target)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

func TestActingOnALinkItself(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
		root := t.TempDir()
		writeFile(t, root+"/outside/x", "untouched")
		before := snapshot(t, root+"/outside")
		base := root + "/base"
		must(t, os.Mkdir(base, 0o755))
		d := open(base)
		for _, name := range []string{"l1", "l2", "l3"} {
			must(t, os.Symlink(root+"/outside", base+"/"+name))
		}
		info, err := d.Lstat("l1")
		must(t, err)
		if info.Mode()&fs.ModeSymlink == 0 || info.Name() != "l1" {
			t.Errorf("Lstat: %v", info)
		}
		must(t, d.Remove("l1"))
		must(t, d.RemoveAll("l2"))
		must(t, d.Rename("l3", "l4"))
		if got := names(t, base); got != "l4" {
			t.Errorf("left: %q", got)
		}
		writeFile(t, base+"/file", "f")
		must(t, d.Rename("file", "l4"))
		if got := readFile(t, base+"/l4"); got != "f" {
			t.Errorf("l4 is %q", got)
		}
		if after := snapshot(t, root+"/outside"); after != before {
			t.Errorf("outside changed:\n%s", after)
		}
	})
}

func TestNamesThatAreRefused(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
		root := t.TempDir()
		writeFile(t, root+"/out", "untouched")
		must(t, os.MkdirAll(root+"/base/a", 0o755))
		before := snapshot(t, root)
		d := open(root + "/base")
		for _, rel := range []string{"..", "../out", "a/../../out", "a/..", "/etc/passwd", "/", root + "/out", "a\x00b"} {
			_, readErr := d.ReadFile(rel, 10)
			_, dirErr := d.ReadDir(rel)
			_, appendErr := d.Append(rel, nil, 0o600)
			_, statErr := d.Lstat(rel)
			_, subErr := d.Sub(rel)
			for op, err := range map[string]error{
				"ReadFile": readErr, "ReadDir": dirErr, "Append": appendErr, "Lstat": statErr, "Sub": subErr,
				"Mkdir": d.Mkdir(rel, 0o700), "Remove": d.Remove(rel), "RemoveAll": d.RemoveAll(rel),
				"Replace": d.Replace(rel, nil, ReplaceOptions{}), "RenameFrom": d.Rename(rel, "x"), "RenameTo": d.Rename("a", rel),
			} {
				if !errors.Is(err, fs.ErrInvalid) {
					t.Errorf("%s %q: %v, want fs.ErrInvalid", op, rel, err)
				}
			}
		}
		for _, rel := range []string{"", ".", "./", ".//."} {
			for op, err := range map[string]error{
				"Remove": d.Remove(rel), "RemoveAll": d.RemoveAll(rel), "Rename": d.Rename(rel, "x"),
				"Replace": d.Replace(rel, nil, ReplaceOptions{}),
			} {
				if !errors.Is(err, fs.ErrInvalid) {
					t.Errorf("%s %q: %v, want fs.ErrInvalid", op, rel, err)
				}
			}
			if _, err := d.ReadFile(rel, 10); !errors.Is(err, ErrNotRegular) {
				t.Errorf("ReadFile %q: %v", rel, err)
			}
			must(t, d.Mkdir(rel, 0o700))
			info, err := d.Lstat(rel)
			must(t, err)
			if !info.IsDir() || info.Name() != "base" {
				t.Errorf("Lstat %q: %v", rel, info)
			}
		}
		if after := snapshot(t, root); after != before {
			t.Errorf("the tree changed:\n%s", after)
		}
	})
}

func TestReadFile(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
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
		if got, err := d.ReadFile("a/f", 4); !errors.Is(err, ErrTooLarge) || got != nil {
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
		status, err := proc.ReadFile("status", 1<<20) // its size is 0 for stat(2)
		if err != nil || !strings.HasPrefix(string(status), "Name:") {
			t.Errorf("status: %q, %v", status, err)
		}
		if _, err := proc.ReadFile("status", 10); !errors.Is(err, ErrTooLarge) {
			t.Errorf("status with a limit of 10: %v", err)
		}
		for _, magic := range []string{"exe", "root/etc/passwd", "cwd/x"} {
			if _, err := proc.ReadFile(magic, 1<<20); !errors.Is(err, ErrSymlink) {
				t.Errorf("magic link %s: %v", magic, err)
			}
		}
	})
}

func TestOnlyRegularFiles(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
		base := t.TempDir()
		d := open(base)
		must(t, unix.Mkfifo(base+"/fifo", 0o600))
		must(t, os.Mkdir(base+"/dir", 0o700))
		l, err := net.Listen("unix", base+"/socket")
		must(t, err)
		defer l.Close()
		for _, name := range []string{"fifo", "dir", "socket"} {
			if _, err := d.ReadFile(name, 10); !errors.Is(err, ErrNotRegular) { // would hang on the FIFO without O_NONBLOCK
				t.Errorf("ReadFile %s: %v", name, err)
			}
			if _, err := d.Append(name, []byte("x"), 0o600); !errors.Is(err, ErrNotRegular) {
				t.Errorf("Append %s: %v", name, err)
			}
			if err := d.Replace(name, []byte("x"), ReplaceOptions{Mode: 0o600}); !errors.Is(err, ErrNotRegular) {
				t.Errorf("Replace %s: %v", name, err)
			}
		}
		reader, err := os.OpenFile(base+"/fifo", os.O_RDWR, 0)
		must(t, err)
		defer reader.Close()
		if _, err := d.Append("fifo", []byte("x"), 0o600); !errors.Is(err, ErrNotRegular) {
			t.Errorf("Append to a FIFO that has a reader: %v", err)
		}
		if got := names(t, base); got != "dir fifo socket" {
			t.Errorf("directory now has %q", got)
		}
	})
}

func TestReadDir(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
		base := t.TempDir()
		d := open(base)
		var want []string
		for i := range 300 { // more than one buffer of getdents64
			name := fmt.Sprintf("file-%03d-%s", i, strings.Repeat("n", 60))
			writeFile(t, base+"/many/"+name, "")
			want = append(want, name)
		}
		some, more, err := d.ReadSome("many", 299)
		if err != nil || !more || len(some) != 299 || !slices.IsSortedFunc(some, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) }) {
			t.Errorf("of 300 names, 299 of which are to be looked at: %d, others: %v, %v", len(some), more, err)
		}
		if all, more, err := d.ReadSome("many", 300); err != nil || more || len(all) != 300 {
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
		sub, err := d.Sub("k")
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
				shown = append(shown, fmt.Sprintf("%v", e))
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
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
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
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
		base := t.TempDir()
		d := open(base)
		for i, want := range []int64{3, 6, 9} {
			if size, err := d.Append("log", []byte("ab\n"), 0o640); err != nil || size != want {
				t.Errorf("Append %d: size %d, %v", i, size, err)
			}
		}
		info, err := os.Stat(base + "/log")
		must(t, err)
		if info.Mode().Perm() != 0o640 {
			t.Errorf("mode %o", info.Mode().Perm())
		}
		if _, err := d.Append("none/log", nil, 0o640); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("in a missing directory: %v", err)
		}

		const writers, lines = 4, 50
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				line := bytes.Repeat([]byte{byte('A' + w)}, 2000)
				for range lines {
					if _, err := d.Append("many", append(line, '\n'), 0o600); err != nil {
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
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
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
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
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
	bothWays(t, func(t *testing.T, open func(string) *Dir) {
		base := t.TempDir()
		must(t, os.MkdirAll(base+"/volume", 0o755))
		mountTmpfs(t, base+"/volume", "size=64k")
		d := open(base)
		must(t, d.Replace("volume/f", []byte("x"), ReplaceOptions{Mode: 0o600}))
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
	if _, err := OpenDir(base+"/none", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := OpenDir(base+"/moved/f", nil); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
}

func TestClose(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base+"/f", "x")
	d, err := OpenDir(base, nil)
	must(t, err)
	sub, err := d.Sub("")
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
	sub, err := d.Sub("a")
	must(t, err)
	defer sub.Close()
	sub.walk.Store(true)
	if !d.walk.Load() {
		t.Error("a Sub doesn't share what was learned about openat2")
	}
	if got, err := d.ReadFile("a/f", 9); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}
