//go:build faults

package logrotate

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// rulesFile is where the rules of internal/faultinject are, which looks for its name once.
var rulesFile = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "faults") // for the whole process, which is why it isn't a test's
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "rules")
	return file, os.Setenv("HINIT_FAULTS", file)
})

// trouble makes the calls fail that rules say, until it is called again or the test is over.
func trouble(t *testing.T, rules ...string) {
	t.Helper()
	file, err := rulesFile()
	if err == nil {
		err = os.WriteFile(file+".new", []byte(strings.Join(rules, "\n")+"\n"), 0o644)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestEveryLineIsAccountedForWhenCallsFail makes calls fail at random, while gateways are killed and their files rotate. Writes
// fail, whole or in the middle of a line, then the truncation of that line fails, and all other calls of a log.
func TestEveryLineIsAccountedForWhenCallsFail(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	lines, lost := account(t, t.TempDir(), Limits{Compress: true}, func(gateways []*gateway) {
		effects := []string{"EIO", "ENOSPC", "EROFS", "short=1", "short=57", "short=4099"}
		for i := range 120 {
			name := "/" + gateways[rand.IntN(len(gateways))].name + "/current"
			if i%6 == 0 {
				name = "/current"
			}
			rules := []string{fmt.Sprintf("write %s %s times=%d", name, effects[rand.IntN(len(effects))], 1+rand.IntN(20))}
			for _, rule := range []string{
				"truncate /current EIO times=9", "rename /current EIO times=5", "open current EMFILE times=3",
				"open @4 EIO times=2", "write .gz ENOSPC times=2", "sync .gz EIO times=2", "rename .gz EIO times=2", "remove @4 EIO times=2",
			} {
				if rand.IntN(2) == 0 {
					rules = append(rules, rule)
				}
			}
			trouble(t, rules...)
			<-time.After(time.Duration(rand.IntN(100)) * time.Millisecond)
		}
		before := losses(gateways)
		trouble(t, "write /current EIO") // for longer than the memory for waiting lines lasts
		testkit.Until(t, "lines are lost", func() bool { return losses(gateways) > before })
		trouble(t)
		writtenAgain(t, gateways)
	})
	if lost == 0 {
		t.Errorf("none of %d lines is lost: no write failed for long", lines)
	}
}

// TestHalfALineThatCannotBeCutOff stays until it can, and is never followed by another line.
func TestHalfALineThatCannotBeCutOff(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	path := filepath.Join(t.TempDir(), archive.Current)
	var warned warnings
	s := newSet(Options{Warn: warned.add})
	stdout, stderr := pipes(t, s.Open("x", "x", path))
	stderr.Close()
	put(t, stdout, "first\n")
	testkit.Until(t, "the first line", func() bool { return len(fileLines(t, path)) == 1 })
	trouble(t, "write /current short=40", "truncate /current EIO")
	put(t, stdout, "a line that is torn\n")
	half := int64(stampLen + len("first\n") + 40)
	testkit.Until(t, "half a line", func() bool { return size(t, path) == half })
	put(t, stdout, "next\n")
	<-time.After(5 * s.opts.period) // time for tries
	if n := size(t, path); n != half {
		t.Errorf("the file has %d bytes, want %d: something was written behind half a line", n, half)
	}
	trouble(t)
	testkit.Until(t, "all of them", func() bool { return len(warned.all()) == 2 })
	put(t, stdout, "last\n")
	stdout.Close()
	closeSet(t, s)
	wantLines(t, fileLines(t, path), "first", "a line that is torn", "next", "last")
	warned.want(t, "short write", "no line was lost")
}

// TestEmptiedWhileHalfALineWaits is what an operator does about a full disk. The file must not get a hole by it.
func TestEmptiedWhileHalfALineWaits(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	path := filepath.Join(t.TempDir(), archive.Current)
	s := newSet(Options{})
	stdout, stderr := pipes(t, s.Open("x", "x", path))
	stderr.Close()
	put(t, stdout, strings.Repeat("old\n", 100))
	testkit.Until(t, "the first lines", func() bool { return len(fileLines(t, path)) == 100 })
	trouble(t, "write /current short=40", "truncate /current EIO")
	before := size(t, path)
	put(t, stdout, "a line that is torn\n")
	testkit.Until(t, "half a line", func() bool { return size(t, path) == before+40 })
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	trouble(t)
	put(t, stdout, "last\n")
	stdout.Close()
	closeSet(t, s)
	wantLines(t, fileLines(t, path), "a line that is torn", "last")
}

// TestEndWithHalfALine closes a log while writing fails: what can be cut off then is.
func TestEndWithHalfALine(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	path := filepath.Join(t.TempDir(), archive.Current)
	s := newSet(Options{})
	stdout, stderr := pipes(t, s.Open("x", "x", path))
	stderr.Close()
	put(t, stdout, "first\n")
	testkit.Until(t, "the first line", func() bool { return len(fileLines(t, path)) == 1 })
	// The write is torn, and so is its repetition at the end; the third try to cut it off succeeds.
	trouble(t, "write /current short=40", "truncate /current EIO times=2")
	put(t, stdout, "a line that is torn\n")
	testkit.Until(t, "half a line", func() bool { return size(t, path) > int64(stampLen+len("first\n")) })
	stdout.Close()
	if err := s.Close(t.Context()); err == nil {
		t.Error("Close says that all was written")
	}
	wantLines(t, fileLines(t, path), "first")
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
