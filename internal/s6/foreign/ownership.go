package foreign

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

const (
	// Limits for a service directory whose service may run as root: number of files, and depth of directories.
	maxFiles = 4096
	maxDepth = 16
)

// findWritableByOthers searches a service directory for files that users other than root may have written. The result what
// describes the first such file; "" without such a file. It checks all files, because programs also read files in the
// subdirectories env and data. owned reports whether the directory itself belongs to root.
func findWritableByOthers(d *fsutil.Dir) (what string, owned bool) {
	info, err := d.Lstat("")
	if err != nil {
		return err.Error(), false
	}
	if fsutil.UID(info) != 0 {
		return "the directory is another's", false
	}
	if why := whyWritable(info); why != "" {
		return "the directory " + why, true
	}
	run, err := d.Lstat(formats.RunFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it has no run", false // without a run file, nothing in the directory could run as root
	case err != nil:
		return err.Error(), true
	case !run.Mode().IsRegular():
		return "run is no file", true
	}
	left := maxFiles
	return findWritableByOthersIn(d, "", 0, &left), true
}

// findWritableByOthersIn describes a file in the directory rel that a user other than root can write, or returns "". left is the
// number of files that may still be examined.
func findWritableByOthersIn(d *fsutil.Dir, rel string, depth int, left *int) string {
	if depth > maxDepth {
		return fmt.Sprintf("%s lies deeper than %d directories", rel, maxDepth)
	}
	entries, more, err := d.ReadAtMost(rel, *left)
	switch {
	case rel != "" && errors.Is(err, fs.ErrNotExist): // another process has just removed the directory
		return ""
	case err != nil:
		return err.Error()
	}
	*left -= len(entries)
	if more {
		return fmt.Sprintf("it holds more than %d files", maxFiles)
	}
	for _, e := range entries {
		if rel == "" && slices.Contains([]string{"supervise", "event", formats.LogDir}, e.Name()) { // s6 makes the first two; the directory of the logger has its own check
			continue
		}
		name := path.Join(rel, e.Name())
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err.Error()
		}
		if why := whyWritable(info); why != "" {
			return name + " " + why
		}
		if info.IsDir() {
			if what := findWritableByOthersIn(d, name, depth+1, left); what != "" {
				return what
			}
		}
	}
	return ""
}

// whyWritable says why users other than root can change a file, or returns "".
func whyWritable(info fs.FileInfo) string {
	switch {
	case fsutil.UID(info) != 0:
		return "is another user's"
	case info.Mode()&fs.ModeSymlink != 0:
		return "is a link"
	case info.Mode().Perm()&0o022 != 0:
		return "can be written by its group or others"
	}
	return ""
}
