package archive

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func TestNextArchiveAlwaysAscends(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 11, 36, 303_286_084, time.UTC)
	names := []string{}
	var last time.Time
	for _, at := range []time.Time{now, now, now.Add(time.Nanosecond), now.Add(-time.Hour), now, now.Add(time.Hour)} {
		last = nextTime(last, at)
		names = append(names, NameAt(last))
	}
	if names[0] != "@400000006b00e1dd1213c744.s" { // The example in the contract of s6.
		t.Errorf("first name is %q", names[0])
	}
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("names don't ascend: %q", names)
	}
}

func TestArchives(t *testing.T) {
	dir := t.TempDir()
	want := []string{
		"@400000006b00e1dd1213c744.s", "@400000006b00e1de1213c744.u",
		"@400000006b00e1df1213c744.s", // Only a part of this archive's compressed file exists.
		"@400000006b00e1e01213c744.s.gz", "@400000006b00e1e11213c744.u.gz",
	}
	half := "@400000006b00e1df1213c744.s.gz" // This archive also exists uncompressed.
	others := []string{
		"current", "lock", "state", "current.gz", "@400000006b00e1dd1213c744.t", "@400000006b00e1dd1213c744.s.bz2",
		"@400000006b00e1dd1213c744.s.gz.tmp", "@400000006B00E1DD1213C744.s", "@400000006b00e1dd1213c74g.s",
	}
	for _, name := range slices.Concat(want, others, []string{half}) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Dir{Path: dir, Actor: fsutil.ProcessActor()}.Names()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range others {
		if isArchive(name) {
			t.Errorf("%q is taken for an archive", name)
		}
	}
}

func TestAFIFOInThePlaceOfALogDirectoryHoldsNobodyUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := (Dir{Path: path, Actor: fsutil.ProcessActor()}).Names(); err == nil {
		t.Error("it has archives")
	}
	if _, err := (Dir{Path: t.TempDir()}).Names(); err == nil {
		t.Error("a directory is read as an unknown user")
	}
}

// TestFilesOfTheAgentWithNamesOfArchivesAreRemovedInParts checks that an agent's many files with
// names of archives are removed in parts. Removing all at once would delay other logs.
func TestFilesOfTheAgentWithNamesOfArchivesAreRemovedInParts(t *testing.T) {
	testkit.SkipIfShort(t)
	l := List{Dir: t.TempDir()}
	begin := time.Unix(1e9, 0)
	const planted = maxListedArchives + 500
	for n := range planted {
		if err := os.WriteFile(filepath.Join(l.Dir, NameAt(begin.Add(time.Duration(n)*time.Second))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there := func() int {
		names, err := Dir{Path: l.Dir, Actor: fsutil.ProcessActor()}.Names()
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	if err := l.Read(); err != nil || len(l.names) != maxListedArchives {
		t.Fatalf("%d are listed, %v", len(l.names), err)
	}
	if err := l.Prune(3, -1, 0, begin); err != nil || there() != planted-maxRemovedAtOnce {
		t.Errorf("%d are left after one call, %v", there(), err)
	}
	for range 2 {
		for len(l.names) > 3 {
			if err := l.Prune(3, -1, 0, begin); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Read(); err != nil {
			t.Fatal(err)
		}
	}
	if n := there(); n != 3 {
		t.Errorf("%d are left at the end", n)
	}
}

// TestPartsOfCompressionsThatAnAgentPlantsAreRemovedInTurns checks that an agent's many partial
// compressed files are removed in parts.
func TestPartsOfCompressionsThatAnAgentPlantsAreRemovedInTurns(t *testing.T) {
	l := List{Dir: t.TempDir()}
	begin := time.Unix(1e9, 0)
	for n := range 2*maxRemovedAtOnce + 1 {
		if err := os.WriteFile(filepath.Join(l.Dir, NameAt(begin.Add(time.Duration(n)*time.Second))+PackedSuffix+PartialSuffix), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{maxRemovedAtOnce + 1, 1, 0} {
		err := l.Read()
		if left, readErr := os.ReadDir(l.Dir); err != nil || readErr != nil || len(left) != want || l.Len() != 0 {
			t.Fatalf("%d are left in place of %d, %v", len(left), want, errors.Join(err, readErr))
		}
	}
}

// TestFilesOfTheAgentWithTheNextNamesHoldUpNoRotation checks that a rotation tries only a limited
// number of names if an agent has taken the next ones.
func TestFilesOfTheAgentWithTheNextNamesHoldUpNoRotation(t *testing.T) {
	l := List{Dir: t.TempDir()}
	now, current := time.Unix(1e9, 0), filepath.Join(l.Dir, CurrentFile)
	for n := range maxRemovedAtOnce + 10 {
		if err := os.WriteFile(filepath.Join(l.Dir, NameAt(now.Add(time.Duration(n)))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(current, []byte("line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Add(current, now); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the first call returns %v", err)
	}
	if err := l.Add(current, now); err != nil || len(l.names) != 1 {
		t.Errorf("the next call returns %v and lists %q", err, l.names)
	}
}
