package fsutil_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hinit/internal/fsutil"
)

func TestLinksAreRefusedEverywhere(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		ops := map[string]func(d *fsutil.Dir, rel string) error{
			"ReadFile": func(d *fsutil.Dir, rel string) error { _, err := d.ReadFile(rel, 100); return err },
			"ReadDir":  func(d *fsutil.Dir, rel string) error { _, err := d.ReadDir(rel); return err },
			"Append":   func(d *fsutil.Dir, rel string) error { return d.Append(rel, []byte("evil"), 0o600) },
			"Replace": func(d *fsutil.Dir, rel string) error {
				return d.Replace(rel, []byte("evil"), fsutil.ReplaceOptions{Mode: 0o600})
			},
			"Mkdir": func(d *fsutil.Dir, rel string) error { return d.Mkdir(rel, 0o700) },
			"Sub": func(d *fsutil.Dir, rel string) error {
				sub, err := d.OpenSubdir(rel)
				if err == nil {
					sub.Close()
				}
				return err
			},
			// These operations act on a link, not on its target. Another test checks that.
			"Lstat":      func(d *fsutil.Dir, rel string) error { _, err := d.Lstat(rel); return err },
			"Remove":     func(d *fsutil.Dir, rel string) error { return d.Remove(rel) },
			"RemoveAll":  func(d *fsutil.Dir, rel string) error { return d.RemoveAll(rel) },
			"RenameFrom": func(d *fsutil.Dir, rel string) error { return d.Rename(rel, "moved") },
			"RenameTo":   func(d *fsutil.Dir, rel string) error { return d.Rename("victim", rel) },
		}
		onTheLinkItself := []string{"Lstat", "Remove", "RemoveAll", "RenameFrom", "RenameTo"}
		places := map[string]string{ // maps the place of the link to the name that the operation gets
			"link":         "link",
			"a/link":       "a/link",
			"a/b/link":     "a/b/link",
			"link ":        "link /x",
			"a/link ":      "a/link /x",
			"a/link-first": "a/link-first/y/x",
		}
		for op, run := range ops {
			for _, kind := range []string{"outside", "inside", "dangling", "loop"} {
				t.Run(op+" "+kind, func(t *testing.T) {
					root := t.TempDir()
					base, outside := root+"/base", root+"/outside"
					for _, dir := range []string{outside, base + "/inside"} {
						writeFile(t, dir+"/x", "untouched")
						writeFile(t, dir+"/y/x", "untouched")
					}
					must(t, os.MkdirAll(base+"/a/b", 0o755))
					writeFile(t, base+"/victim", "untouched")
					for link := range places {
						must(t, os.Symlink(map[string]string{
							"outside": outside, "inside": base + "/inside", "dangling": root + "/nothing", "loop": base + "/" + link,
						}[kind], base+"/"+link))
					}
					before := treeListing(t, root)
					for link, rel := range places {
						if link == rel && slices.Contains(onTheLinkItself, op) {
							continue
						}
						err := run(open(base), rel)
						if !errors.Is(err, fsutil.ErrSymlink) {
							t.Errorf("%s: error %v, want ErrSymlink", rel, err)
						} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", base+"/"+rel)) ||
							!strings.Contains(err.Error(), fmt.Sprintf("%q", filepath.Base(link))) {
							t.Errorf("error %q names neither path nor link", err)
						}
						if after := treeListing(t, root); after != before {
							t.Fatalf("%s: the tree changed:\n%s\nwas\n%s", rel, after, before)
						}
					}
				})
			}
		}
	})
}

func treeListing(t *testing.T, root string) string {
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
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		root := t.TempDir()
		writeFile(t, root+"/outside/x", "untouched")
		before := treeListing(t, root+"/outside")
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
		if got := dirNames(t, base); got != "l4" {
			t.Errorf("left: %q", got)
		}
		writeFile(t, base+"/file", "f")
		must(t, d.Rename("file", "l4"))
		if got := readFile(t, base+"/l4"); got != "f" {
			t.Errorf("l4 is %q", got)
		}
		if after := treeListing(t, root+"/outside"); after != before {
			t.Errorf("outside changed:\n%s", after)
		}
	})
}

func TestNamesThatAreRefused(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		root := t.TempDir()
		writeFile(t, root+"/out", "untouched")
		must(t, os.MkdirAll(root+"/base/a", 0o755))
		before := treeListing(t, root)
		d := open(root + "/base")
		for _, rel := range []string{"..", "../out", "a/../../out", "a/..", "/etc/passwd", "/", root + "/out", "a\x00b"} {
			_, readErr := d.ReadFile(rel, 10)
			_, dirErr := d.ReadDir(rel)
			appendErr := d.Append(rel, nil, 0o600)
			_, statErr := d.Lstat(rel)
			_, subErr := d.OpenSubdir(rel)
			for op, err := range map[string]error{
				"ReadFile": readErr, "ReadDir": dirErr, "Append": appendErr, "Lstat": statErr, "Sub": subErr,
				"Mkdir": d.Mkdir(rel, 0o700), "Remove": d.Remove(rel), "RemoveAll": d.RemoveAll(rel),
				"Replace": d.Replace(rel, nil, fsutil.ReplaceOptions{}), "RenameFrom": d.Rename(rel, "x"), "RenameTo": d.Rename("a", rel),
			} {
				if !errors.Is(err, fs.ErrInvalid) {
					t.Errorf("%s %q: %v, want fs.ErrInvalid", op, rel, err)
				}
			}
		}
		for _, rel := range []string{"", ".", "./", ".//."} {
			for op, err := range map[string]error{
				"Remove": d.Remove(rel), "RemoveAll": d.RemoveAll(rel), "Rename": d.Rename(rel, "x"),
				"Replace": d.Replace(rel, nil, fsutil.ReplaceOptions{}),
			} {
				if !errors.Is(err, fs.ErrInvalid) {
					t.Errorf("%s %q: %v, want fs.ErrInvalid", op, rel, err)
				}
			}
			if _, err := d.ReadFile(rel, 10); !errors.Is(err, fsutil.ErrNotRegular) {
				t.Errorf("ReadFile %q: %v", rel, err)
			}
			must(t, d.Mkdir(rel, 0o700))
			info, err := d.Lstat(rel)
			must(t, err)
			if !info.IsDir() || info.Name() != "base" {
				t.Errorf("Lstat %q: %v", rel, info)
			}
		}
		if after := treeListing(t, root); after != before {
			t.Errorf("the tree changed:\n%s", after)
		}
	})
}
