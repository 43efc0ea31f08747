// Package archive names, lists and removes rotated log files, and defines the timestamp at the beginning of a log line. Package
// logrotate writes these files, and package reader reads them.
//
// An archive is named like the files of s6-log, after the time of its rotation: for example "@400000006b00e1dd1213c744.s". The
// suffix is ".u" if s6-log left it unfinished, and ".gz" follows if it is compressed. While an archive is being compressed, both
// forms exist and count as one archive. Sorted by name, archives are sorted by age, even if the clock was set back.
//
// All functions may block on disk I/O. None starts a goroutine.
package archive

import (
	"slices"
	"strings"
	"time"

	"hinit/internal/s6/formats"
)

const (
	// Current is the base name of the log file that is being written.
	Current = "current"
	// StampLayout is the time layout of a line's timestamp, which is in local time. Two spaces follow it.
	StampLayout = time.DateTime + ".000000000"
	// StampLen is the length of the timestamp and the two spaces.
	StampLen = len(StampLayout) + 2
)

const (
	// labelLen is the length of a TAI64N label in a name: "@" and 24 hexadecimal digits.
	labelLen = 1 + 24

	completeSuffix   = ".s" // suffix of an archive
	unfinishedSuffix = ".u" // suffix of an archive that s6-log left unfinished

	// Packed is the suffix that a compressed archive has after its other suffix.
	Packed = ".gz"
	// Partial is the suffix after Packed while the compressed archive is being written.
	Partial = ".tmp"
)

// Time returns the rotation time from the name of an archive. The name must not end with [Packed]. The second result is false if
// name is not the name of an archive.
func Time(name string) (time.Time, bool) {
	if len(name) != labelLen+len(completeSuffix) || name[0] != '@' || name[labelLen:] != completeSuffix && name[labelLen:] != unfinishedSuffix {
		return time.Time{}, false
	}
	if strings.Trim(name[1:labelLen], "0123456789abcdef") != "" {
		return time.Time{}, false
	}
	t, _, _ := formats.ParseTAI64N(name) // an invalid label yields the zero time, so the archive is treated as old
	return t, true
}

// Name returns the name of an archive that was rotated at t.
func Name(t time.Time) string { return formats.TAI64N(t) + completeSuffix }

// next returns the time for the name of an archive that is rotated at the time now. The result is always later than last, which
// is the time of the newest archive.
func next(last, now time.Time) time.Time {
	if !now.After(last) {
		return last.Add(time.Nanosecond)
	}
	return now
}

// isArchive reports whether name is the name of an archive, compressed or not.
func isArchive(name string) bool {
	_, ok := Time(strings.TrimSuffix(name, Packed))
	return ok
}

// archivesIn returns the archives in the list names, oldest first, each archive once.
func archivesIn(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !isArchive(name) })
	slices.Sort(names) // the compressed form of an archive sorts after the uncompressed form
	return slices.CompactFunc(names, func(a, b string) bool {
		return strings.TrimSuffix(a, Packed) == strings.TrimSuffix(b, Packed)
	})
}

// TrimPacked removes [Packed] from names, in place. A sort of the result by name sorts the archives by time.
func TrimPacked(names []string) []string {
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, Packed)
	}
	return names
}

// Forms returns the two possible file names of an archive, the uncompressed one first. Both exist while it is being compressed.
func Forms(name string) [2]string { return [2]string{name, name + Packed} }
