package probe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/profiles"
)

// execCheck runs a command as the user of the service. Exit code 0 means success.
type execCheck struct {
	name    string
	spec    proc.Spec
	run     func(ctx context.Context, name string, spec proc.Spec) (code int, last string, err error)
	timeout time.Duration
}

func newExecCheck(c config.Check, t *target) *execCheck {
	argv := make([]string, len(c.Command))
	for i, word := range c.Command {
		argv[i] = t.Expand(word)
	}
	spec := proc.Spec{Argv: isolation.Wrap(t.Spec.Argv, argv), Env: t.Spec.Env, Dir: t.Spec.Dir, DirIsFD: t.Spec.DirIsFD, Cred: t.Spec.Cred, Limits: t.Spec.Limits, Setup: t.Spec.Setup}
	// run the check outside the service's group, because the kernel could not kill it there in one step
	spec.Setup.Cgroup, spec.Setup.CgroupWrites = "", nil
	return &execCheck{name: "check/" + t.name + "/" + c.Name, spec: spec, run: t.options.Run, timeout: c.Timeout}
}

func (e *execCheck) check(deadline time.Time) (good bool, answer string) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	code, last, err := e.run(ctx, e.name, e.spec)
	switch {
	case err != nil && ctx.Err() != nil:
		return false, "no answer within " + e.timeout.String()
	case err != nil:
		return false, err.Error()
	case last == "":
		return code == 0, fmt.Sprintf("exit code %d", code)
	}
	return code == 0, fmt.Sprintf("exit code %d: %s", code, last)
}

// freshness measures how long ago a file was written: by its modification time, or by a time in its content. It compares only
// the first such time with the wall clock, because that clock may be set later, and jumps when the machine wakes up. For later
// times it uses the monotonic clock. Calls for one check must not overlap.
type freshness struct {
	written   time.Time
	firstSeen time.Time // when the file first had the time written, by the monotonic clock
}

func (f *freshness) age(written time.Time) time.Duration {
	switch {
	case f.written.IsZero():
		f.firstSeen = time.Now().Add(-max(0, time.Since(written)))
	case !written.Equal(f.written):
		f.firstSeen = time.Now()
	}
	f.written = written
	return time.Since(f.firstSeen)
}

// stateCheck reads the state file of a gateway. It fails if the heartbeat is too old, or if platforms have problems.
type stateCheck struct {
	diskCall
	settings  config.StateCheck
	read      func() (profiles.State, error)
	heartbeat time.Time // last heartbeat in the file
	freshness freshness
}

// silence returns the time since the last heartbeat in the state file. Before the first heartbeat it uses the modification
// time, which is less certain, because other programs write the file too.
func (s *stateCheck) silence(st profiles.State) time.Duration {
	s.heartbeat = cmp.Or(st.Heartbeat, s.heartbeat)
	return s.freshness.age(cmp.Or(s.heartbeat, st.Written))
}

func (s *stateCheck) check(deadline time.Time) (good bool, answer string) {
	return s.runCall(deadline, func() (bool, string) {
		st, err := s.read()
		switch {
		case err != nil:
			return false, err.Error()
		case !st.Exists:
			return false, "there is no " + profiles.StateFile
		case s.settings.MaxHeartbeatAge > 0 && s.silence(st) > s.settings.MaxHeartbeatAge:
			return false, profiles.StateFile + " was not written for more than " + s.settings.MaxHeartbeatAge.String()
		case s.settings.Platforms == "all" && st.TroubledPlatforms > 0, s.settings.Platforms == "any" && st.TroubledPlatforms >= st.Platforms:
			if words := st.PlatformTrouble(); words != "" {
				return false, words
			}
			return false, "no platform is connected"
		}
		return true, profiles.StateFile + " is as it should be"
	})
}

// logMatch stores when a service last wrote a line with the text of a log check. A restart of the service does not reset it.
type logMatch struct {
	contains  []byte
	pattern   *regexp.Regexp
	lastMatch atomic.Int64 // when the last matching line came, by sinceProgramStart; 0 for never
}

// sinceProgramStart returns t as the time since the start of this program, in nanoseconds. Unlike a wall clock, it never jumps.
func sinceProgramStart(t time.Time) int64 { return int64(t.Sub(programStart)) }

var programStart = time.Now()

// logMatchesOf returns a logMatch for each log check, by its index in checks.
func logMatchesOf(checks []config.Check) map[int]*logMatch {
	matches := make(map[int]*logMatch)
	for i, c := range checks {
		if c.Type != config.CheckLog {
			continue
		}
		matches[i] = &logMatch{contains: []byte(c.Log.Contains)}
		if c.Log.Matches != "" {
			matches[i].pattern, _ = regexp.Compile(c.Log.Matches) // the configuration was validated, so there is no error
		}
	}
	return matches
}

// searchLines makes the log of a service search each new line for the texts of its log checks, in place of the checks of old.
// The caller holds p.mu.
func (p *Prober) searchLines(next, old *target) {
	switch {
	case next != nil && len(next.logMatches) > 0:
		if old != nil { // a line that the old search found in this run still counts
			for i, s := range next.logMatches {
				at := slices.IndexFunc(old.Checks, func(c config.Check) bool { return c.Name == next.Checks[i].Name && c.Log == next.Checks[i].Log })
				if before := old.logMatches[at]; before != nil {
					s.lastMatch.Store(before.lastMatch.Load())
				}
			}
		}
		matches := next.logMatches
		p.options.WatchLog(next.name, func(lines []byte) {
			for _, s := range matches {
				if s.matchesAny(lines) {
					s.lastMatch.Store(sinceProgramStart(time.Now()))
				}
			}
		})
	case old != nil && len(old.logMatches) > 0:
		p.options.WatchLog(old.name, nil)
	}
}

// matchesAny reports whether any of the lines contains the text and matches the pattern.
func (s *logMatch) matchesAny(lines []byte) bool {
	if s.pattern == nil {
		return bytes.Contains(lines, s.contains)
	}
	for line := range bytes.Lines(lines) {
		if bytes.Contains(line, s.contains) && s.pattern.Match(bytes.TrimRight(line, "\r\n")) {
			return true
		}
	}
	return false
}

// logCheck is a log check during one run of a service.
type logCheck struct {
	match     *logMatch
	settings  config.LogCheck
	notBefore atomic.Int64 // lines before this time don't count, by sinceProgramStart
	startedAt time.Time
	seen      bool
}

func newLogCheck(c config.Check, t *target) *logCheck {
	l := &logCheck{match: t.logMatches[t.checkIndex], settings: c.Log, startedAt: t.runStart}
	began := t.health.Checks[t.checkIndex]
	if !t.previousRunEnd.IsZero() {
		l.notBefore.Store(max(0, sinceProgramStart(t.previousRunEnd)))
	}
	l.seen = began.Verdict == Passing && !c.Log.MustNotAppear && c.Log.MaxGap == 0
	return l
}

func (l *logCheck) check(time.Time) (good bool, answer string) {
	last, since := l.match.lastMatch.Load(), l.notBefore.Load()
	what := strings.TrimSpace(l.settings.Contains + " " + l.settings.Matches)
	switch {
	case l.settings.MustNotAppear:
		l.notBefore.Store(max(since, last))
		if last > since {
			return false, fmt.Sprintf("a line with %q came", what)
		}
		return true, fmt.Sprintf("no line with %q came", what)
	case l.settings.MaxGap > 0:
		if began := sinceProgramStart(l.startedAt); last == 0 || last < began {
			last = began
		}
		if time.Duration(sinceProgramStart(time.Now())-last) > l.settings.MaxGap {
			return false, fmt.Sprintf("no line with %q came for more than %s", what, l.settings.MaxGap)
		}
		return true, fmt.Sprintf("a line with %q came within %s", what, l.settings.MaxGap)
	case l.seen || last > since:
		l.seen = true
		return true, fmt.Sprintf("a line with %q came", what)
	}
	return false, fmt.Sprintf("no line with %q came yet", what)
}

// diskCall makes calls of a check that may wait for a disk. While an earlier call waits, a new call fails at once. So a hung
// disk occupies only one goroutine for each check.
type diskCall struct {
	waiting atomic.Bool
	timeout time.Duration
}

func (p *diskCall) runCall(deadline time.Time, call func() (good bool, answer string)) (bool, string) {
	if p.waiting.Swap(true) {
		return false, "an earlier check still waits for the disk"
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var good bool
	var answer string
	if blocking.Wait(ctx, "a check", func() error {
		defer p.waiting.Store(false)
		good, answer = call()
		return nil
	}) != nil {
		return false, "no answer within " + p.timeout.String()
	}
	return good, answer
}

// pathCheck runs a check of a path, with the permissions of the service's user.
type pathCheck struct {
	diskCall
	path  string
	actor *fsutil.Actor
}

// withParentDir opens the directory of the path, and passes it to call with the last element of the path.
func (p *pathCheck) withParentDir(deadline time.Time, call func(d *fsutil.Dir, name string) (good bool, answer string)) (bool, string) {
	return p.runCall(deadline, func() (bool, string) {
		d, err := fsutil.OpenNoLink(filepath.Dir(p.path), p.actor)
		if err != nil {
			return false, shortFileError(err)
		}
		defer d.Close()
		return call(d, filepath.Base(p.path))
	})
}

// unixCheck connects to a Unix socket, and sends nothing.
type unixCheck struct{ pathCheck }

func (u *unixCheck) check(deadline time.Time) (good bool, answer string) {
	return u.withParentDir(deadline, func(d *fsutil.Dir, name string) (bool, string) {
		fd, err := d.ConnectSocket(name)
		if err != nil {
			return false, shortFileError(err)
		}
		blocking.DrainSocket(uintptr(fd)) // otherwise the close could wait for descriptors from the service
		unix.Close(fd)
		return true, "it takes connections"
	})
}

// fileCheck fails if a file does not exist, or was modified too long ago.
type fileCheck struct {
	pathCheck
	maxAge    time.Duration
	freshness freshness
}

func (f *fileCheck) check(deadline time.Time) (good bool, answer string) {
	return f.withParentDir(deadline, func(d *fsutil.Dir, name string) (bool, string) {
		info, err := d.Lstat(name)
		switch {
		case err != nil:
			return false, shortFileError(err)
		case info.Mode()&fs.ModeSymlink != 0:
			return false, "it is a symbolic link"
		case f.maxAge > 0 && f.freshness.age(info.ModTime()) > f.maxAge:
			return false, "it was not written for more than " + f.maxAge.String()
		}
		return true, "it is there"
	})
}

// shortFileError describes a file error in a few words. It leaves out the path, which the reader knows from hinit.yaml.
func shortFileError(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it does not exist"
	case errors.Is(err, fsutil.ErrSymlink):
		return "a symbolic link is on the way"
	case errors.Is(err, unix.ENOTSOCK):
		return "it is not a socket"
	}
	if _, ok := errors.AsType[unix.Errno](err); ok {
		return shortError(err, 0)
	}
	return err.Error()
}
