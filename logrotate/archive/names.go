// Package archive knows the files of a log: their names, how a line begins, which rotated files are in a directory, and how their number is
// bounded. Package logrotate writes these files, and package reader reads them.
//
// An archive is named "@400000006b00e1dd1213c744.s" after the time of its rotation, as s6-log does it. The suffix is ".u" when
// s6-log left it unfinished, and ".gz" follows when it is compressed. An archive in both forms is being compressed, and counts
// once. Names ascend, also after a step back of the clock.
//
// Everything here may wait for a disk and starts no goroutine.
package archive

import (
	"slices"
	"strings"
	"time"

	"hinit/internal/s6/formats"
)

const (
	// Current is the base name of the file that is being written.
	Current = "current"
	// StampLayout is the time at the beginning of a line, local time. Two spaces follow.
	StampLayout = time.DateTime + ".000000000"
	// StampLen is the length of everything before the line itself.
	StampLen = len(StampLayout) + 2
)

const (
	// labelLen is the length of a TAI64N label in a name: "@" and 24 hexadecimal digits.
	labelLen = 1 + 24

	ours    = ".s" // ends the name of an archive
	foreign = ".u" // of one that s6-log left unfinished

	// Packed is behind that when the archive is compressed.
	Packed = ".gz"
	// Partial is behind that while it is being compressed.
	Partial = ".tmp"
)

// Time returns the time of rotation that is in the name of an archive, without [Packed].
func Time(name string) (time.Time, bool) {
	if len(name) != labelLen+len(ours) || name[0] != '@' || name[labelLen:] != ours && name[labelLen:] != foreign {
		return time.Time{}, false
	}
	if strings.Trim(name[1:labelLen], "0123456789abcdef") != "" {
		return time.Time{}, false
	}
	t, _, _ := formats.ParseTAI64N(name) // one that is no time is old
	return t, true
}

// Name returns the name of an archive that was made at t.
func Name(t time.Time) string { return formats.TAI64N(t) + ours }

// next returns the time for the name of an archive that is made at now: always later than last, the time of the newest archive.
func next(last, now time.Time) time.Time {
	if !now.After(last) {
		return last.Add(time.Nanosecond)
	}
	return now
}

// is reports whether a file of that name is an archive, in one of its forms.
func is(name string) bool {
	_, ok := Time(strings.TrimSuffix(name, Packed))
	return ok
}

// among returns the archives among names, oldest first, each once.
func among(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !is(name) })
	slices.Sort(names) // what is compressed comes behind what is not
	return slices.CompactFunc(names, func(a, b string) bool {
		return strings.TrimSuffix(a, Packed) == strings.TrimSuffix(b, Packed)
	})
}

// Plain takes [Packed] off names, in place. The remaining names sort by time.
func Plain(names []string) []string {
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, Packed)
	}
	return names
}

// forms are the names that an archive may have, in the order in which to look for it: while it is compressed it has both.
func forms(name string) [2]string { return [2]string{name, name + Packed} }
