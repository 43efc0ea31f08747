package fsutil_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

func TestReplaceModes(t *testing.T) {
	base := t.TempDir()
	d := openDir(t, base, nil)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	mode := func() fs.FileMode {
		info, err := os.Lstat(base + "/f")
		must(t, err)
		return info.Mode().Perm()
	}

	must(t, d.Replace("f", []byte("1"), fsutil.ReplaceOptions{Mode: 0o644, KeepMode: true}))
	if got := mode(); got != 0o644 {
		t.Errorf("new file: mode %o, want 644 whatever the umask", got)
	}
	must(t, os.Chmod(base+"/f", 0o604))
	must(t, d.Replace("f", []byte("22"), fsutil.ReplaceOptions{Mode: 0o644, KeepMode: true}))
	if got := mode(); got != 0o604 {
		t.Errorf("KeepMode: mode %o, want 604", got)
	}
	must(t, d.Replace("f", []byte("3"), fsutil.ReplaceOptions{Mode: 0o640}))
	if got := mode(); got != 0o640 {
		t.Errorf("without KeepMode: mode %o, want 640", got)
	}
	if got := readFile(t, base+"/f"); got != "3" {
		t.Errorf("content %q", got)
	}
	must(t, d.Replace("f", nil, fsutil.ReplaceOptions{Mode: 0o640}))
	if got := readFile(t, base+"/f"); got != "" {
		t.Errorf("content %q", got)
	}
	if got := dirNames(t, base); got != "f" {
		t.Errorf("directory has %q", got)
	}
}

func TestReplaceMakesANewFile(t *testing.T) {
	base := t.TempDir()
	writeFile(t, base+"/f", "old")
	must(t, os.Link(base+"/f", base+"/other-name"))
	must(t, openDir(t, base, nil).Replace("f", []byte("new"), fsutil.ReplaceOptions{Mode: 0o600}))
	if got := readFile(t, base+"/other-name"); got != "old" {
		t.Errorf("the old file was written to: %q", got)
	}
}

func TestReplaceIsAtomicForReaders(t *testing.T) {
	base := t.TempDir()
	d := openDir(t, base, nil)
	contents := [][]byte{bytes.Repeat([]byte("a"), 100_000), bytes.Repeat([]byte("b"), 50_000)}
	must(t, d.Replace("f", contents[0], fsutil.ReplaceOptions{Mode: 0o600}))
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for i := range 100 {
			if err := d.Replace("f", contents[i%2], fsutil.ReplaceOptions{Mode: 0o600}); err != nil {
				t.Error(err)
			}
		}
	})
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		got, err := d.ReadFile("f", 1<<20)
		if err != nil || !bytes.Equal(got, contents[0]) && !bytes.Equal(got, contents[1]) {
			t.Fatalf("a reader saw %d bytes, %v", len(got), err)
		}
	}
	wg.Wait()
}

func TestReplaceTempName(t *testing.T) {
	base := t.TempDir()
	d := openDir(t, base, nil)
	for _, file := range []string{"f", "a*b"} {
		name, err := d.WriteTemp(file, []byte("x"), 0o600)
		must(t, err)
		if !strings.HasPrefix(name, "."+file+".") || !strings.HasSuffix(name, ".tmp") || len(name) < len(file)+len("..tmp")+5 {
			t.Errorf("the temporary file of %q is %q", file, name)
		}
		must(t, d.Remove(name))
	}
	must(t, d.Replace("f", []byte("x"), fsutil.ReplaceOptions{Mode: 0o600}))
	if got := dirNames(t, base); got != "f" {
		t.Errorf("directory has %q", got)
	}
}

func TestReplaceIsConfirmedWhenOnlyTheRenameIsLeft(t *testing.T) {
	base := t.TempDir()
	d := openDir(t, base, nil)
	no := errors.New("somebody was faster")
	asked := 0
	put := func(text string, confirm func(fs.FileInfo) error) error {
		return d.Replace("f", []byte(text), fsutil.ReplaceOptions{Mode: 0o600, BeforeRename: func(now fs.FileInfo) error {
			asked++
			temps, err := filepath.Glob(base + "/.f.*.tmp")
			if err != nil || len(temps) != 1 {
				t.Fatalf("asked with %q, %v", temps, err)
			}
			if data, err := os.ReadFile(temps[0]); err != nil || string(data) != text {
				t.Errorf("asked when %q, %v was written", data, err)
			}
			return confirm(now)
		}})
	}
	content := func(want string) {
		t.Helper()
		if data, err := os.ReadFile(base + "/f"); err != nil || string(data) != want || dirNames(t, base) != "f" {
			t.Errorf("the file is %q, %v; the directory has %q", data, err, dirNames(t, base))
		}
	}
	must(t, put("one", func(now fs.FileInfo) error {
		if now != nil {
			t.Errorf("there is a %v", now)
		}
		return nil
	}))
	content("one")
	err := put("two", func(now fs.FileInfo) error {
		if now == nil || now.Size() != int64(len("one")) {
			t.Errorf("asked about %v", now)
		}
		return no
	})
	if !errors.Is(err, no) {
		t.Errorf("refused: %v", err)
	}
	content("one")
	must(t, put("three", func(fs.FileInfo) error { return nil }))
	content("three")
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
}

func TestDiskFull(t *testing.T) {
	base := t.TempDir()
	mountTmpfs(t, base, "size=64k")
	d := openDir(t, base, nil)
	must(t, d.Replace("f", []byte("old"), fsutil.ReplaceOptions{Mode: 0o640}))
	before := treeListing(t, base)
	big := make([]byte, 1<<20)

	if err := d.Replace("f", big, fsutil.ReplaceOptions{Mode: 0o600}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Replace: %v, want ENOSPC", err)
	}
	if err := d.Replace("new", big, fsutil.ReplaceOptions{Mode: 0o600}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Replace of a new file: %v, want ENOSPC", err)
	}
	// Temporary files change the modification time of the directory, so only the file and the names are compared.
	if got := dirNames(t, base); got != "f" {
		t.Errorf("directory has %q", got)
	}
	if after := treeListing(t, base); after[strings.IndexByte(after, '\n'):] != before[strings.IndexByte(before, '\n'):] {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}

	if err := d.Append("log", big, 0o600); err == nil {
		t.Error("Append of 1 MiB to a disk of 64 KiB: no error")
	}
	if err := d.Append("log", []byte("more"), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Append to a full disk: %v, want ENOSPC", err)
	}
}

func TestReplaceInAReadOnlyDirectory(t *testing.T) {
	base := t.TempDir()
	mountTmpfs(t, base, "size=64k")
	writeFile(t, base+"/f", "old")
	d := openDir(t, base, nil)
	must(t, unix.Mount("", base, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if err := d.Replace("f", []byte("new"), fsutil.ReplaceOptions{Mode: 0o600}); !errors.Is(err, unix.EROFS) {
		t.Errorf("Replace: %v, want EROFS", err)
	}
	if got := readFile(t, base+"/f"); got != "old" {
		t.Errorf("content %q", got)
	}
}
