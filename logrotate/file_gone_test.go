package logrotate

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

func TestRemoved(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for name, remove := range map[string]func(dir string) error{
		"file":      func(dir string) error { return os.Remove(filepath.Join(dir, archive.CurrentFile)) },
		"directory": os.RemoveAll,
		"parent":    func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
		"moved file": func(dir string) error {
			return os.Rename(filepath.Join(dir, archive.CurrentFile), filepath.Join(dir, "aside"))
		},
		"moved directory":  func(dir string) error { return os.Rename(dir, dir+"-aside") },
		"moved parent":     func(dir string) error { return os.Rename(filepath.Dir(dir), filepath.Dir(dir)+"-aside") },
		"replaced by file": func(dir string) error { return replaceFile(filepath.Join(dir, archive.CurrentFile), "") },
		"truncated":        func(dir string) error { return os.Truncate(filepath.Join(dir, archive.CurrentFile), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(base, name, "logs", "coder")
			v := newService(t, dir, Options{})
			v.printLine("before")
			v.wantInFile("before")
			// If the file were removed at this moment, the line would be written again.
			testkit.Until(t, "the pump is done", func() bool { return v.log.Stats().Lines == 1 })
			if err := remove(dir); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "moved") || strings.HasPrefix(name, "replaced") {
				// hinit checks the path only from time to time, and until then writes to the moved file.
				n := 0
				testkit.Until(t, "the file is made again", func() bool {
					n++
					v.printLine(fmt.Sprintf("line %d", n))
					data, _ := os.ReadFile(filepath.Join(dir, archive.CurrentFile))
					return len(data) > 0
				})
			}
			v.printLine("after")
			v.wantInFile("after")
			v.closeOutputs()
			for _, line := range fileLines(t, filepath.Join(dir, archive.CurrentFile)) {
				if line == "before" {
					t.Error("what was removed is back")
				}
			}
			v.warn.checkContains(t)
			if strings.HasPrefix(name, "moved") {
				aside := map[string]string{
					"moved file": filepath.Join(dir, "aside"), "moved directory": filepath.Join(dir+"-aside", archive.CurrentFile),
					"moved parent": filepath.Join(base, name, "logs-aside", "coder", archive.CurrentFile),
				}[name]
				checkLines(t, append(fileLines(t, aside), fileLines(t, filepath.Join(dir, archive.CurrentFile))...), v.written...)
			}
		})
	}
}

// replaceFile replaces the file at path by a new one with text.
func replaceFile(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// TestUnlinkedWhileWriting unlinks the file at random moments. Every line must be in the next file
// or have been readable in the removed one.
func TestUnlinkedWhileWriting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, archive.CurrentFile)
	s := newSet(Options{limits: Limits{MaxSize: 1 << 30}})
	stdout, stderr := openPipes(t, s.Open("x", "x", path))
	stderr.Close()
	const lines = 20000
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer stdout.Close()
		for i := range lines {
			fmt.Fprintf(stdout, "%d\n", i)
		}
	}()
	seen := make(map[string]int)
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(5 * time.Millisecond):
			f, err := os.Open(path)
			if err != nil {
				continue
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			// Lines in the file now were readable, or are written again to the next file.
			text, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range completeLines(t, path, text[:bytes.LastIndexByte(text, '\n')+1]) {
				seen[line]++
			}
			f.Close()
		}
	}
	closeSet(t, s)
	for _, line := range fileLines(t, path) {
		seen[line]++
	}
	for i := range lines {
		if seen[strconv.Itoa(i)] == 0 {
			t.Fatalf("line %d is lost", i)
		}
	}
}

// TestAProcessThatRemovesTheLogAllTheTimeHoldsUpNoOtherLog checks that hinit pauses when each new
// file is removed at once, instead of trying for ever.
func TestAProcessThatRemovesTheLogAllTheTimeHoldsUpNoOtherLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, archive.CurrentFile)
	v := newService(t, dir, Options{})
	var stop atomic.Bool
	var attack sync.WaitGroup
	attack.Go(func() {
		for !stop.Load() {
			_ = unix.Unlink(path)
		}
	})
	t.Cleanup(func() { stop.Store(true) })
	testkit.Until(t, "hinit gives up for a while", func() bool {
		writeText(t, v.stdout, "during\n")
		return strings.Contains(fmt.Sprint(v.warn.all()), "remove or fill it all the time")
	})
	stop.Store(true)
	attack.Wait()
	v.printLine("after")
	v.wantInFile("after")
	v.closeOutputs()
}

// TestLinkSwappedIn checks that hinit does not write through a link that replaces an open file.
func TestLinkSwappedIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := newService(t, dir, Options{limits: Limits{MaxSize: 300}})
	v.printLine("before")
	v.wantInFile("before")
	path := filepath.Join(dir, archive.CurrentFile)
	if err := os.Symlink(victim, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	for i := 0; len(v.warn.all()) == 0; i++ {
		v.printLine(fmt.Sprintf("line %d %s", i, strings.Repeat("l", 100)))
	}
	v.warn.checkContains(t, "symbolic link refused")
	if data, _ := os.ReadFile(victim); string(data) != "precious" {
		t.Errorf("the victim is %q", data)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	v.printLine("after")
	v.wantInFile("after")
	v.closeOutputs()
}

func TestRotationThatCannotHappenLosesNothing(t *testing.T) {
	t.Parallel()
	actor, dir := newAgentDir(t)
	v := newService(t, dir, Options{limits: Limits{MaxSize: 1000}, Actor: actor})
	v.printLine("first")
	v.wantInFile("first")
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		v.printLine(fmt.Sprintf("line %d %s", i, strings.Repeat("r", 100)))
	}
	v.wantInFile(v.written[30])
	v.warn.checkContains(t, "cannot rotate")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := 0; len(v.warn.all()) == 1; i++ {
		v.printLine(fmt.Sprintf("more %d", i))
	}
	v.closeOutputs()
	v.warn.checkContains(t, "cannot rotate", "is rotated again")
	checkLines(t, storedLines(t, dir), v.written...)
	if paths, _ := archivePaths(dir); len(paths) != 1 {
		t.Errorf("archives: %q", paths)
	}
}
