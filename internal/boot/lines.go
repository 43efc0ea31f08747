package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// Line is a message from the boot for the container's log, without a newline. It is written to standard error, because standard
// output belongs to the CMD and the services.
type Line struct {
	Warning bool // the status command shows the line as long as the container runs
	Text    string
}

// LogPrefix is the prefix that the image's boot script gives to its messages. People and tests search for this prefix.
const LogPrefix = "[stage2] "

// SetupComplete is the last message from the image's boot script (contract, section 2.1, step 20). It is printed after all other
// steps and all hooks.
const SetupComplete = LogPrefix + "Setup complete; starting user services"

// Info returns an informational log line about a boot step.
func Info(text string) Line { return Line{Text: LogPrefix + text} }

// Warning returns a log line about a failure in a boot step.
func Warning(text string) Line { return Line{Warning: true, Text: LogPrefix + "Warning: " + text} }

// StepLog formats messages about one boot step and passes them to Tell. If Tell is safe for concurrent use, the methods are
// too.
type StepLog struct {
	Tell func(Line)

	chown sync.Once
}

// Info reports a result of the boot step.
func (t *StepLog) Info(format string, args ...any) { t.Tell(Info(fmt.Sprintf(format, args...))) }

// Warn reports a failure in the boot step.
func (t *StepLog) Warn(format string, args ...any) { t.Tell(Warning(fmt.Sprintf(format, args...))) }

// Refuse reports that root does not perform action on path. The reason is that path is a symbolic link, which root would
// have to follow (contract, section 2.1, step 9).
func (t *StepLog) Refuse(action, path string) {
	t.Warn("refusing %s through symlinked path %s — continuing", action, path)
}

// CannotChown reports that the owner of path could not be changed. It reports only the first failure, because most later
// changes will also fail.
func (t *StepLog) CannotChown(path string) {
	t.chown.Do(func() { t.Warn("chown %s failed (rootless container?) — continuing", path) })
}

// ReportChown reports that the change of the owner of path has failed with err. It reports nothing if err is nil, or is an
// expected error, such as a missing file. home is the data directory.
func (t *StepLog) ReportChown(home, path string, err error) {
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, fsutil.ErrSymlink), errors.Is(err, unix.EROFS) && ReadOnly(home):
	case errors.Is(err, fsutil.ErrHardLink), errors.Is(err, fsutil.ErrDevice), errors.Is(err, fsutil.ErrKept):
		t.Warn("chown %s refused: %v — continuing", path, errors.Unwrap(err))
	default:
		t.CannotChown(path)
	}
}

// ReadOnly reports whether a file system is mounted read-only. It blocks on the file system.
func ReadOnly(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}
