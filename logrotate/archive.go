package logrotate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fault"
	"hinit/internal/s6/formats"
)

// Current is the base name of the file that is being written.
const Current = "current"

const (
	// labelLen is the length of a TAI64N label in a name: "@" and 24 hexadecimal digits.
	labelLen = 1 + 24

	ours    = ".s"   // ends the name of an archive
	foreign = ".u"   // of one that s6-log left unfinished
	packed  = ".gz"  // is behind that when the archive is compressed
	partial = ".tmp" // is behind that while it is being compressed
)

// Archives returns the paths of the archives in dir, oldest first.
//
// An archive is named "@400000006b00e1dd1213c744.s" after the time of its rotation, as s6-log does it, with ".u" in place of ".s"
// when s6-log left it unfinished, and with ".gz" behind it when it is compressed. One that is there in both forms is being
// compressed, and counts once, uncompressed. A directory that doesn't exist is an error that wraps fs.ErrNotExist.
func Archives(dir string) ([]string, error) {
	names, err := archiveFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list log archives in %q: %w", dir, err)
	}
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names, nil
}

// IsArchive reports whether a file of that base name is an archive, as [Archives] finds them.
func IsArchive(name string) bool {
	_, ok := archiveTime(strings.TrimSuffix(name, packed))
	return ok
}

// archiveTime returns the time of rotation that is in the name of an archive.
func archiveTime(name string) (time.Time, bool) {
	if len(name) != labelLen+len(ours) || name[0] != '@' || name[labelLen:] != ours && name[labelLen:] != foreign {
		return time.Time{}, false
	}
	if strings.Trim(name[1:labelLen], "0123456789abcdef") != "" {
		return time.Time{}, false
	}
	t, _, _ := formats.ParseTAI64N(name) // one that is no time is old
	return t, true
}

func archiveName(t time.Time) string { return formats.TAI64N(t) + ours }

// archiveFiles returns the base names of the archives in dir, oldest first, each once.
func archiveFiles(dir string) ([]string, error) {
	names, err := dirNames(dir)
	return archivesOf(names), err
}

// maxNames is how many names of a log directory are looked at. Others can put any number there. Pruning never leaves behind for the
// next time what is to stay.
const maxNames = 64 << 10

// dirNames returns the names in a directory, in no order. It waits for no FIFO that somebody has put in its place.
func dirNames(dir string) ([]string, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxNames)
	if errors.Is(err, io.EOF) { // an empty directory
		err = nil
	}
	return names, err
}

// archivesOf returns the archives among names, oldest first, each once.
func archivesOf(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !IsArchive(name) })
	slices.Sort(names) // what is compressed comes behind what is not
	return slices.CompactFunc(names, func(a, b string) bool {
		return strings.TrimSuffix(a, packed) == strings.TrimSuffix(b, packed)
	})
}

// plain takes the mark of compressed archives off names, in place. What is left orders them.
func plain(names []string) []string {
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, packed)
	}
	return names
}

// forms are the names that an archive may have, in the order in which to look for it: while it is compressed it has both.
func forms(name string) [2]string { return [2]string{name, name + packed} }

// removeArchive removes an archive in the directory of that path, which ends with a slash. That one is gone is no error.
func removeArchive(dir, name string) error {
	for _, form := range forms(name) {
		err := fault.Before(fault.Remove, dir+form)
		if err == nil {
			err = unix.Unlink(dir + form)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "remove archive", Path: dir + form, Err: err}
		}
	}
	return nil
}

// archiveSize is how many bytes an archive takes.
func archiveSize(dir, name string) (size int64) {
	for _, form := range forms(name) {
		var st unix.Stat_t
		if unix.Lstat(dir+form, &st) == nil {
			size += st.Size
		}
	}
	return size
}

// nextArchive returns the time for the name of an archive that is made at now: always later than last, that of the newest archive.
func nextArchive(last, now time.Time) time.Time {
	if !now.After(last) {
		return last.Add(time.Nanosecond)
	}
	return now
}
