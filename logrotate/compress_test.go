package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/logrotate/archive"
	"hinit/logrotate/reader"
)

// allCompressed reports whether every archive in dir is compressed, without partial files.
func allCompressed(t *testing.T, dir string) bool {
	t.Helper()
	names, err := dirNames(dir)
	if err != nil {
		t.Fatal(err)
	}
	archives := 0
	for _, name := range names {
		if name == archive.CurrentFile {
			continue
		}
		if !strings.HasSuffix(name, archive.PackedSuffix) {
			return false
		}
		archives++
	}
	return archives > 0
}

// compressibleLines returns lines that compress well.
func compressibleLines(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %d of a log that repeats itself: connected, disconnected, connected again", i)
	}
	return lines
}

func TestArchivesAreCompressed(t *testing.T) {
	t.Parallel()
	actor, base := newAgentDir(t)
	dir := filepath.Join(base, "coder")
	s := newSet(Options{limits: Limits{MaxSize: 10_000, Archives: 1000}, Actor: actor})
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	setLimits(l, Limits{Compress: true})
	lines := compressibleLines(1000)
	writeRun(t, l, lines...)
	testkit.Until(t, "all archives are compressed", func() bool { return allCompressed(t, dir) })
	checkLines(t, storedLines(t, dir), lines...)
	paths, err := archivePaths(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st.Size() > 3000 {
			t.Errorf("%s has %d bytes: it is not compressed", path, st.Size())
		}
		owner := st.Sys().(*syscall.Stat_t)
		if id := actor.Identity(); actor.SwitchesIdentity() && (owner.Uid != id.UID || owner.Gid != id.GID) || st.Mode() != 0o644 {
			t.Errorf("%s is %d:%d's, mode %v", path, owner.Uid, owner.Gid, st.Mode())
		}
	}
	// The compression of one archive ends, and the next begins.
	s.compressor.work.Wait()
	more := compressibleLines(300)
	writeRun(t, l, more...)
	testkit.Until(t, "the new archives are compressed", func() bool { return allCompressed(t, dir) })
	closeSet(t, s)
	checkLines(t, storedLines(t, dir), append(lines, more...)...)
}

func TestAHugeFileThatSomebodyCallsAnArchiveHoldsNoCompressionUp(t *testing.T) {
	t.Parallel()
	actor, base := newAgentDir(t)
	dir := filepath.Join(base, "coder")
	s := newSet(Options{limits: Limits{MaxSize: 10_000, Archives: 1000}, Actor: actor})
	defer closeSet(t, s)
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	huge := filepath.Join(dir, archive.NameAt(time.Now().Add(-time.Hour)))
	if err := actor.Do(func() error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(huge, nil, 0o600); err != nil {
			return err
		}
		return os.Truncate(huge, 1<<40)
	}); err != nil {
		t.Fatal(err)
	}
	setLimits(l, Limits{Compress: true})
	writeRun(t, l, compressibleLines(1000)...)
	testkit.Until(t, "all other archives are compressed", func() bool {
		names, err := archive.Dir{Path: dir, Actor: fsutil.ProcessActor()}.Names()
		if err != nil {
			t.Fatal(err)
		}
		plain := slices.DeleteFunc(names[1:], func(name string) bool { return strings.HasSuffix(name, archive.PackedSuffix) })
		return len(names) > 5 && len(plain) == 0
	})
	if _, err := os.Stat(huge); err != nil {
		t.Error(err)
	}
}

// TestLimitsCountCompressedArchives checks that archives are pruned by number and by compressed
// size.
func TestLimitsCountCompressedArchives(t *testing.T) {
	t.Parallel()
	s, l, dir := newSetWithLog(t, Options{limits: Limits{MaxSize: 10_000}}, Limits{Compress: true, Archives: 50, Quota: 35_000})
	for range 5 {
		writeRun(t, l, compressibleLines(100)...)
		testkit.Until(t, "the archives are compressed", func() bool { return allCompressed(t, dir) })
	}
	setLimits(l, Limits{Compress: true, Archives: 3})
	paths, err := archivePaths(dir)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		total += st.Size()
	}
	// Without compression, only two archives would fit into the quota.
	if len(paths) < 4 || total > 25_000 {
		t.Errorf("%d archives of %d bytes are kept", len(paths), total)
	}
	writeRun(t, l, compressibleLines(100)...)
	closeSet(t, s)
	if paths, err = archivePaths(dir); err != nil || len(paths) != 3 {
		t.Errorf("%d archives are kept (%v)", len(paths), err)
	}
}

// TestCompressingGoesOnAfterACrash checks that compression continues after a crash of hinit.
func TestCompressingGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	dir, first := createHistory(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	names, err := archive.Dir{Path: dir, Actor: fsutil.ProcessActor()}.Names()
	if err != nil {
		t.Fatal(err)
	}
	// The first archive is compressed completely, the second partly, and only a partial file is left of
	// the third.
	whole, err := os.ReadFile(at(names[0]))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(at(names[0] + archive.PackedSuffix))
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	_, err = z.Write(whole)
	if err := errors.Join(err, z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	gone := archive.NameAt(first.Add(-time.Hour))
	for _, name := range []string{names[1], gone} {
		if err := os.WriteFile(at(name+archive.PackedSuffix+archive.PartialSuffix), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := storedLines(t, dir)
	if len(before) != 20 {
		t.Fatalf("%d lines are there", len(before))
	}
	s := newSet(Options{})
	l := s.Open("gateway-coder", "coder", at(archive.CurrentFile))
	setLimits(l, Limits{Compress: true})
	writeRun(t, l, "next")
	testkit.Until(t, "all archives are compressed", func() bool { return allCompressed(t, dir) })
	closeSet(t, s)
	checkLines(t, storedLines(t, dir), append(before, "next")...)
	if left, _ := dirNames(dir); len(left) != 4 {
		t.Errorf("there are %q", left)
	}
}

// TestCompressingFollowsNoLink checks that compression follows no link that the agent puts in place
// of a file.
func TestCompressingFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("root's own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	linked, target := archive.NameAt(time.Now().Add(-time.Hour)), archive.NameAt(time.Now().Add(-2*time.Hour))
	if err := errors.Join(
		os.Symlink(secret, filepath.Join(dir, linked)),
		os.WriteFile(filepath.Join(dir, target), []byte("2026-11-21 00:08:34.292924624  one\n"), 0o600),
		os.Symlink(secret, filepath.Join(dir, target+archive.PackedSuffix+archive.PartialSuffix)),
		os.Symlink(secret, filepath.Join(dir, target+archive.PackedSuffix)),
	); err != nil {
		t.Fatal(err)
	}
	var w warnings
	s := newSet(Options{Warn: w.add})
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	setLimits(l, Limits{Compress: true})
	writeRun(t, l, "two")
	testkit.Until(t, "the link is refused", func() bool { return len(w.all()) > 0 })
	testkit.Until(t, "the other archive is compressed", func() bool {
		st, err := os.Lstat(filepath.Join(dir, target+archive.PackedSuffix))
		return err == nil && st.Mode().IsRegular()
	})
	closeSet(t, s)
	w.checkContains(t, linked)
	if text, err := os.ReadFile(secret); err != nil || string(text) != "root's own\n" {
		t.Errorf("behind the link is now %q, %v", text, err)
	}
	if st, err := os.Lstat(filepath.Join(dir, target+archive.PackedSuffix)); err != nil || !st.Mode().IsRegular() {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, linked+archive.PackedSuffix)); err == nil {
		t.Error("what the link led to is an archive now")
	}
}

// TestReadCompressedHistory checks that Read emits the same lines from compressed and plain
// archives, with every combination of options.
func TestReadCompressedHistory(t *testing.T) {
	t.Parallel()
	dir, first := createHistory(t)
	plain := map[string]string{}
	options := []reader.Options{{LastLines: -1}, {LastLines: -1, Previous: true}, {LastLines: -1, Since: first.Add(7 * time.Minute)}, {LastLines: 3, Since: first}}
	for n := range 23 {
		options = append(options, reader.Options{LastLines: n})
	}
	read := func(o reader.Options) string {
		var b strings.Builder
		o.Dir = dir
		if err := reader.Read(t.Context(), fsutil.ProcessActor(), o, func(line []byte) error { b.Write(line); b.WriteByte('\n'); return nil }); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, o := range options {
		plain[fmt.Sprint(o)] = read(o)
	}
	names, err := archive.Dir{Path: dir, Actor: fsutil.ProcessActor()}.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{1, 0, 2} {
		text, err := os.ReadFile(filepath.Join(dir, names[i]))
		if err := errors.Join(err, os.Remove(filepath.Join(dir, names[i]))); err != nil {
			t.Fatal(err)
		}
		at, _ := archive.RotationTime(names[i])
		packedArchive(t, dir, at, string(text), 1)
		for _, o := range options {
			if got := read(o); got != plain[fmt.Sprint(o)] {
				t.Fatalf("%+v: got %s, want %s", o, got, plain[fmt.Sprint(o)])
			}
		}
	}
	if !allCompressed(t, dir) {
		t.Error("not all archives are compressed")
	}
	// A damaged archive must cause an error, although its first half is readable.
	path := filepath.Join(dir, names[1]+archive.PackedSuffix)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-6], 0o600); err != nil {
		t.Fatal(err)
	}
	err = reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: 20}, func([]byte) error { return nil })
	if err == nil || !strings.Contains(err.Error(), names[1]) {
		t.Errorf("got %v", err)
	}
}

// TestASlowFollowerKnowsACompressedArchive checks that a follower misses no line although the files
// that it reads are compressed.
func TestASlowFollowerKnowsACompressedArchive(t *testing.T) {
	t.Parallel()
	s, l, dir := newSetWithLog(t, Options{limits: Limits{MaxSize: 10_000, Archives: 1000}}, Limits{Compress: true})
	all := compressibleLines(1000)
	writeRun(t, l, all[:50]...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hold, ended := make(chan struct{}), make(chan error, 1)
	var got []string
	var n atomic.Int64
	go func() {
		ended <- reader.Read(ctx, fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: -1, Follow: true}, func(line []byte) error {
			got = append(got, string(line[stampLen:]))
			if n.Add(1) == 10 {
				<-hold
			}
			return nil
		})
	}()
	testkit.Until(t, "it reads", func() bool { return n.Load() == 10 })
	writeRun(t, l, all[50:]...)
	testkit.Until(t, "all archives are compressed", func() bool { return allCompressed(t, dir) })
	close(hold)
	testkit.Until(t, "it has read all", func() bool { return n.Load() >= int64(len(all)) })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	closeSet(t, s)
	checkLines(t, got, all...)
}

// TestCloseDoesNotWaitForCompression checks that Close returns in the middle of a compression.
func TestCloseDoesNotWaitForCompression(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := make([]string, 20)
	for i := range names {
		names[i] = archive.NameAt(time.Now().Add(time.Duration(i-100) * time.Minute))
		if err := os.WriteFile(filepath.Join(dir, names[i]), []byte(strings.Repeat(strings.Join(compressibleLines(100), "\n"), 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newSet(Options{limits: Limits{Archives: 100}})
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	setLimits(l, Limits{Compress: true})
	testkit.Until(t, "it has begun", func() bool {
		left, err := dirNames(dir)
		return err == nil && slices.ContainsFunc(left, func(name string) bool { return strings.HasSuffix(name, archive.PartialSuffix) })
	})
	closeSet(t, s)
	left, err := dirNames(dir)
	if err != nil || len(left) != len(names) {
		t.Errorf("%q, %v", left, err)
	}
	if !slices.ContainsFunc(left, func(name string) bool { return !strings.HasSuffix(name, archive.PackedSuffix) }) {
		t.Error("it waited until all was compressed")
	}
}

// TestCompressionThatIsTurnedOffLeavesQueuedArchivesAlone checks that a queued log is not
// compressed after its compression is turned off.
func TestCompressionThatIsTurnedOffLeavesQueuedArchivesAlone(t *testing.T) {
	t.Parallel()
	on, off := new(file), new(file)
	on.limits.Store(&Limits{Compress: true})
	off.limits.Store(&Limits{})
	c := compressor{queue: []*file{off, on}}
	if got := c.takeQueue(); !slices.Equal(got, []*file{on}) {
		t.Errorf("%d files, not the one file with compression", len(got))
	}
}
