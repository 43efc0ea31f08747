// Package archive names, lists and removes the rotated files of a log. It also knows how a line of a log begins. Package
// logrotate writes these files, and package reader reads them.
//
// An archive is named after the time of its rotation, for example "@400000006b00e1dd1213c744.s", as with s6-log. The suffix is
// ".u" if s6-log left it unfinished, and ".gz" follows if it is compressed. While an archive is being compressed, both forms
// exist and count as one archive. A newer archive always has a greater name, even if the clock was set back.
//
// All functions may wait for a disk. None starts a goroutine.
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
	// StampLayout is the layout of the local time at the beginning of a line. Two spaces follow it.
	StampLayout = time.DateTime + ".000000000"
	// StampLen is the length of the timestamp and the two spaces.
	StampLen = len(StampLayout) + 2
)

const (
	// labelLen is the length of a TAI64N label in a name: "@" and 24 hexadecimal digits.
	labelLen = 1 + 24

	completeSuffix = ".s" // suffix of an archive
	foreign        = ".u" // suffix of an archive that s6-log left unfinished

	// Packed is added to the name of an archive that is compressed.
	Packed = ".gz"
	// Partial is added after Packed while the compressed archive is being written.
	Partial = ".tmp"
)

// Time returns the time of rotation from the name of an archive, which must be without [Packed]. The second result is false if
// name is not the name of an archive.
func Time(name string) (time.Time, bool) {
	if len(name) != labelLen+len(completeSuffix) || name[0] != '@' || name[labelLen:] != completeSuffix && name[labelLen:] != foreign {
		return time.Time{}, false
	}
	if strings.Trim(name[1:labelLen], "0123456789abcdef") != "" {
		return time.Time{}, false
	}
	t, _, _ := formats.ParseTAI64N(name) // an invalid label gives the zero time, which counts as old
	return t, true
}

// Name returns the name of an archive that was rotated at t.
func Name(t time.Time) string { return formats.TAI64N(t) + completeSuffix }

// next returns the time that names an archive rotated at now. It is always later than last, the time of the newest archive.
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

// archivesIn returns the archives in names, oldest first, each archive once.
func archivesIn(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !isArchive(name) })
	slices.Sort(names) // the compressed form sorts after the other one
	return slices.CompactFunc(names, func(a, b string) bool {
		return strings.TrimSuffix(a, Packed) == strings.TrimSuffix(b, Packed)
	})
}

// Plain removes [Packed] from names, in place. Sorted by name, the archives are then sorted by time.
func Plain(names []string) []string {
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, Packed)
	}
	return names
}

// Forms returns the two possible file names of an archive, the uncompressed one first. Both exist while it is being compressed.
func Forms(name string) [2]string { return [2]string{name, name + Packed} }
