package logrotate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Current is the base name of the file that is being written.
const Current = "current"

// archiveLayout is the time in an archive's name, UTC, in the form lumberjack gives it.
const archiveLayout = "2006-01-02T15-04-05.000"

// Archives returns the paths of the archives in dir, oldest first.
//
// An archive is named "current-2006-01-02T15-04-05.000", the UTC time of its rotation. Files that s6-log left behind, "@"
// with 24 hexadecimal digits and ".s" or ".u" (contract of s6-log, section 7), are archives too, older than all others.
// Names are compared, nothing is opened. A directory that doesn't exist is an error that wraps fs.ErrNotExist.
func Archives(dir string) ([]string, error) {
	names, err := archiveNames(dir, Current)
	if err != nil {
		return nil, fmt.Errorf("cannot list log archives in %q: %w", dir, err)
	}
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names, nil
}

// IsArchive reports whether a file of that base name is an archive of [Current], as [Archives] finds them.
func IsArchive(name string) bool { return isArchive(name, Current) }

func isArchive(name, base string) bool {
	if _, ok := archiveTime(name, base); ok {
		return true
	}
	hex, ok := strings.CutPrefix(name, "@")
	if !ok || len(hex) != 24+2 || !strings.HasSuffix(hex, ".s") && !strings.HasSuffix(hex, ".u") {
		return false
	}
	return strings.Trim(hex[:24], "0123456789abcdef") == ""
}

// archiveTime returns the time of rotation that is in name, an archive of base.
func archiveTime(name, base string) (time.Time, bool) {
	text, ok := strings.CutPrefix(name, base+"-")
	if !ok || len(text) != len(archiveLayout) {
		return time.Time{}, false
	}
	t, err := time.Parse(archiveLayout, text)
	return t, err == nil
}

func archiveName(base string, t time.Time) string { return base + "-" + t.UTC().Format(archiveLayout) }

// archiveNames returns the base names of base's archives in dir, oldest first. The names of s6-log begin with "@", which
// sorts before any letter, as it should.
func archiveNames(dir, base string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(all, func(name string) bool { return !isArchive(name, base) })
	slices.Sort(names)
	return names, nil
}

// nextArchive returns the time for the name of an archive that is made at now, when the newest one that exists has the time
// last: always later than that, whatever the clock does.
func nextArchive(last, now time.Time) time.Time {
	t := now.UTC().Truncate(time.Millisecond)
	if !t.After(last) {
		t = last.Add(time.Millisecond)
	}
	return t
}
