package scandir

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"

	"hinit/internal/fsutil"
	"hinit/internal/s6"
)

const (
	// mostJudged is how many files a service directory may have to be run as root. All of them are looked at, again and again.
	mostJudged = 4096
	// deepJudged is how deep they may lie.
	deepJudged = 16
)

// untouched are the names that a service does not read: those of s6 itself, one of which its group can write, and the
// logger's directory, which is judged by itself.
func untouched(name string) bool {
	return name == "supervise" || name == "event" || name == s6.LogDir
}

// others says what of a service directory can have been written by others than root, "" for nothing: all in it belongs to
// root, is no link, and can't be written by group or others. Programs read env and data and whatever else lies there, so
// it is not enough to look at run and finish. It tells owned when the directory itself at least belongs to root, so that
// somebody may wonder.
func others(d *fsutil.Dir) (what string, owned bool) {
	info, err := d.Lstat("")
	if err != nil {
		return err.Error(), false
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 {
		return "the directory is another's", false
	}
	if why := another(info); why != "" {
		return "the directory " + why, true
	}
	run, err := d.Lstat(s6.RunFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it has no run", false // nothing to run as anybody
	case err != nil:
		return err.Error(), true
	case !run.Mode().IsRegular():
		return "run is no file", true
	}
	left := mostJudged
	return othersIn(d, "", 0, &left), true
}

func othersIn(d *fsutil.Dir, rel string, depth int, left *int) string {
	if depth > deepJudged {
		return fmt.Sprintf("%s lies deeper than %d directories", rel, deepJudged)
	}
	entries, more, err := d.ReadSome(rel, *left)
	switch {
	case rel != "" && errors.Is(err, fs.ErrNotExist): // gone since
		return ""
	case err != nil:
		return err.Error()
	}
	if *left -= len(entries); more {
		return fmt.Sprintf("it holds more than %d files", mostJudged)
	}
	for _, e := range entries {
		if rel == "" && untouched(e.Name()) {
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
		if why := another(info); why != "" {
			return name + " " + why
		}
		if info.IsDir() {
			if what := othersIn(d, name, depth+1, left); what != "" {
				return what
			}
		}
	}
	return ""
}

// another says how others than root can have a say in a file, "" for not at all.
func another(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || st.Uid != 0:
		return "is another user's"
	case info.Mode()&fs.ModeSymlink != 0:
		return "is a link"
	case info.Mode().Perm()&0o022 != 0:
		return "can be written by its group or others"
	}
	return ""
}

// rejudge opens a place anew when who could have written it has changed, so that what root has given away is not run as
// root any more. It returns the new place and closes the old one; nil when there is nothing new.
func (s *Scanner) rejudge(p *place) *place {
	if p.dir == nil || p.link || !s.ground.Agent.Switches() {
		return nil
	}
	what, _ := others(p.dir)
	if (what == "") == p.root {
		return nil
	}
	next, err := s.openPlace(p.path, false)
	switch {
	case err != nil && p.root: // the agent's user can't open it, so as that user it can't be run either
		return &place{dir: p.dir, id: p.id, path: p.path, said: p.said}
	case err != nil:
		return nil
	case next.id != p.id || next.root == p.root:
		next.close()
		return nil // it is another one, or is being changed; the next look will tell
	}
	p.close()
	next.said = p.said
	return next
}
