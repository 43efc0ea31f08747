package logrotate

import (
	"bytes"
	"compress/gzip"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
	"hinit/logrotate/reader"
)

// packedArchive makes a compressed archive that contains text as many times as times says.
func packedArchive(t *testing.T, dir string, at time.Time, text string, times int) (name string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for range times {
		if _, err := z.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	name = archive.NameAt(at)
	if err := os.WriteFile(filepath.Join(dir, name+archive.PackedSuffix), b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// readAll returns the lines that Read emits.
func readAll(t *testing.T, o reader.Options) (lines []string, err error) {
	t.Helper()
	err = reader.Read(t.Context(), fsutil.ProcessActor(), o, func(line []byte) error {
		lines = append(lines, string(line))
		return nil
	})
	return lines, err
}

func TestAnArchiveThatIsABombHidesNoOtherLine(t *testing.T) {
	dir, first := createHistory(t)
	all, err := readAll(t, reader.Options{Dir: dir, LastLines: -1, Previous: true})
	if err != nil {
		t.Fatal(err)
	}
	end := first.Add(time.Hour)
	name := packedArchive(t, dir, end, "bomb\n", 100_000)
	o := reader.Options{Dir: dir, LastLines: len(all), MaxArchive: 1000}
	lines, err := readAll(t, o)
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("nothing is said: %v", err)
	}
	mark := 0
	for i, line := range lines {
		if strings.HasPrefix(line, "[hinit] lines are missing here: "+name) {
			mark = i
		}
	}
	if mark == 0 || len(lines) != len(all)+1 {
		t.Fatalf("%d lines, the mark is at %d: %q", len(lines), mark, lines)
	}
	checkLines(t, append(lines[:mark:mark], lines[mark+1:]...), all...)
	// The file current has enough lines, so the archive must not be read.
	o.LastLines = 1
	if lines, err = readAll(t, o); err != nil {
		t.Errorf("%v", err)
	}
	checkLines(t, lines, all[len(all)-1])
	// Without a limit from the end, Read must return lines up to the limit of an archive.
	o.LastLines, o.Previous = -1, true
	if lines, err = readAll(t, o); err == nil || len(lines) > len(all)+1+1000/len("bomb\n") || len(lines) < len(all)+1 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

func TestTheLastLinesOfAnArchiveOfEmptyLinesNeedNoMemory(t *testing.T) {
	dir := t.TempDir()
	packedArchive(t, dir, time.Now(), strings.Repeat("\n", 1<<20), 8)
	before := allocatedBytes()
	n := 0
	stop := errors.New("enough")
	err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: 7 << 20}, func([]byte) error {
		if n++; n == 1 {
			return nil
		}
		return stop
	})
	grown := allocatedBytes() - before
	if !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	if grown > 4<<20 {
		t.Errorf("%d bytes were allocated for 7 million empty lines", grown)
	}
	if lines, err := readAll(t, reader.Options{Dir: dir, LastLines: 3}); err != nil || len(lines) != 3 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

func TestALineWithoutEndComesInPieces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, archive.CurrentFile)
	if err := os.WriteFile(path, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const size = 32 << 20
	if err := os.Truncate(path, size); err != nil { // The rest of the file is NUL bytes.
		t.Fatal(err)
	}
	o := reader.Options{Dir: dir, LastLines: -1, MaxLine: 1 << 20}
	longest, total := 0, 0
	count := func(line []byte) error {
		longest, total = max(longest, len(line)), total+len(line)
		return nil
	}
	if err := reader.Read(t.Context(), fsutil.ProcessActor(), o, count); err != nil {
		t.Fatal(err)
	}
	if longest > 2<<20 || total != size-1 {
		t.Errorf("%d bytes, the longest line has %d", total, longest)
	}
	o.LastLines, total = 3, 0
	if err := reader.Read(t.Context(), fsutil.ProcessActor(), o, count); err != nil || total > 5<<20 || total == 0 {
		t.Errorf("of the last 3 lines %d bytes, %v", total, err)
	}
	o.LastLines, total = math.MaxInt, 0
	if err := reader.Read(t.Context(), fsutil.ProcessActor(), o, count); err != nil || total != size-1 {
		t.Errorf("of all lines %d bytes, %v", total, err)
	}
}

// allocatedBytes returns how many bytes this process has ever allocated.
func allocatedBytes() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
