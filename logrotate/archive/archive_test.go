package archive

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

func TestNextArchiveAlwaysAscends(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 11, 36, 303_286_084, time.UTC)
	names := []string{}
	var last time.Time
	for _, at := range []time.Time{now, now, now.Add(time.Nanosecond), now.Add(-time.Hour), now, now.Add(time.Hour)} {
		last = next(last, at)
		names = append(names, Name(last))
	}
	if names[0] != "@400000006b00e1dd1213c744.s" { // the example of the contract
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
		"@400000006b00e1df1213c744.s", // and half compressed
		"@400000006b00e1e01213c744.s.gz", "@400000006b00e1e11213c744.u.gz",
	}
	half := "@400000006b00e1df1213c744.s.gz" // and whole, too
	others := []string{
		"current", "lock", "state", "current.gz", "@400000006b00e1dd1213c744.t", "@400000006b00e1dd1213c744.s.bz2",
		"@400000006b00e1dd1213c744.s.gz.tmp", "@400000006B00E1DD1213C744.s", "@400000006b00e1dd1213c74g.s",
	}
	for _, name := range slices.Concat(want, others, []string{half}) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Dir{Path: dir, Actor: fsutil.Self()}.Names()
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
	if _, err := (Dir{Path: path, Actor: fsutil.Self()}).Names(); err == nil {
		t.Error("it has archives")
	}
	if _, err := (Dir{Path: t.TempDir()}).Names(); err == nil {
		t.Error("a directory is read as an unknown user")
	}
}
