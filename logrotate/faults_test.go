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

// rulesFile returns the file with the fault rules. Package internal/faultinject reads its name only
// once.
var rulesFile = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "faults") // The directory outlives the test, because the whole process uses the file.
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "rules")
	return file, os.Setenv("HINIT_FAULTS", file)
})

// trouble installs fault rules until its next call or the test's end.
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

// TestEveryLineIsAccountedForWhenCallsFail checks that every line is written or counted as lost
// although file operations fail at random.
func TestEveryLineIsAccountedForWhenCallsFail(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	lines, lost := runGatewaysAndCountLines(t, t.TempDir(), Limits{Compress: true}, func(gateways []*gateway) {
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
		before := totalLosses(gateways)
		trouble(t, "write /current EIO") // The fault lasts until the memory for waiting lines is full.
		testkit.Until(t, "lines are lost", func() bool { return totalLosses(gateways) > before })
		trouble(t)
		awaitNoErrors(t, gateways)
	})
	if lost == 0 {
		t.Errorf("none of %d lines is lost: no write failed for long", lines)
	}
}

// TestHalfALineThatCannotBeCutOff checks that a half-written line is removed as soon as truncation
// works, before other lines follow.
func TestHalfALineThatCannotBeCutOff(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	path := filepath.Join(t.TempDir(), archive.CurrentFile)
	var warned warnings
	s := newSet(Options{Warn: warned.add})
	stdout, stderr := openPipes(t, s.Open("x", "x", path))
	stderr.Close()
	writeText(t, stdout, "first\n")
	testkit.Until(t, "the first line", func() bool { return len(fileLines(t, path)) == 1 })
	trouble(t, "write /current short=40", "truncate /current EIO")
	writeText(t, stdout, "a line that is torn\n")
	half := int64(stampLen + len("first\n") + 40)
	testkit.Until(t, "half a line", func() bool { return size(t, path) == half })
	writeText(t, stdout, "next\n")
	<-time.After(5 * s.opts.period) // Time for several retries.
	if n := size(t, path); n != half {
		t.Errorf("the file has %d bytes, want %d: something was written behind half a line", n, half)
	}
	trouble(t)
	testkit.Until(t, "all of them", func() bool { return len(warned.all()) == 2 })
	writeText(t, stdout, "last\n")
	stdout.Close()
	closeSet(t, s)
	checkLines(t, fileLines(t, path), "first", "a line that is torn", "next", "last")
	warned.checkContains(t, "short write", "no line was lost")
}

// TestEmptiedWhileHalfALineWaits checks that the file gets no hole if an operator truncates it
// while half a line waits for removal.
func TestEmptiedWhileHalfALineWaits(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	path := filepath.Join(t.TempDir(), archive.CurrentFile)
	s := newSet(Options{})
	stdout, stderr := openPipes(t, s.Open("x", "x", path))
	stderr.Close()
	writeText(t, stdout, strings.Repeat("old\n", 100))
	testkit.Until(t, "the first lines", func() bool { return len(fileLines(t, path)) == 100 })
	trouble(t, "write /current short=40", "truncate /current EIO")
	before := size(t, path)
	writeText(t, stdout, "a line that is torn\n")
	testkit.Until(t, "half a line", func() bool { return size(t, path) == before+40 })
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	trouble(t)
	writeText(t, stdout, "last\n")
	stdout.Close()
	closeSet(t, s)
	checkLines(t, fileLines(t, path), "a line that is torn", "last")
}

// TestEndWithHalfALine checks that Close removes half a line although writing fails.
func TestEndWithHalfALine(t *testing.T) {
	t.Cleanup(func() { trouble(t) })
	trouble(t)
	path := filepath.Join(t.TempDir(), archive.CurrentFile)
	s := newSet(Options{})
	stdout, stderr := openPipes(t, s.Open("x", "x", path))
	stderr.Close()
	writeText(t, stdout, "first\n")
	testkit.Until(t, "the first line", func() bool { return len(fileLines(t, path)) == 1 })
	// The write and its repetition stop in the middle of the line. The third truncation succeeds.
	trouble(t, "write /current short=40", "truncate /current EIO times=2")
	writeText(t, stdout, "a line that is torn\n")
	testkit.Until(t, "half a line", func() bool { return size(t, path) > int64(stampLen+len("first\n")) })
	stdout.Close()
	if err := s.Close(t.Context()); err == nil {
		t.Error("Close says that all was written")
	}
	checkLines(t, fileLines(t, path), "first")
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
