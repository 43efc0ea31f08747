package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// LogLine is a message of the boot for the container log, without a newline. It goes to standard error, because standard output
// belongs to the CMD and the services.
type LogLine struct {
	Warning bool // the status shows the line as long as the container runs
	Text    string
}

// LogPrefix begins the messages of the image's boot script. People and tests search for it.
const LogPrefix = "[stage2] "

// SetupComplete is the last message of the image's boot script (contract, section 2.1, step 20). It comes after all other
// steps and all hooks.
const SetupComplete = LogPrefix + "Setup complete; starting user services"

// Info returns a log line about a boot step.
func Info(text string) LogLine { return LogLine{Text: LogPrefix + text} }

// Warning returns a log line about a failure of a boot step.
func Warning(s string) LogLine { return LogLine{Warning: true, Text: LogPrefix + "Warning: " + s} }

// StepLog formats messages about one boot step, and passes them to Tell. It is safe for several goroutines if Tell is.
type StepLog struct {
	Tell func(LogLine)

	chownReported sync.Once
}

// Info reports what the boot step has done.
func (t *StepLog) Info(format string, args ...any) { t.Tell(Info(fmt.Sprintf(format, args...))) }

// Warn reports a failure of the boot step.
func (t *StepLog) Warn(format string, args ...any) { t.Tell(Warning(fmt.Sprintf(format, args...))) }

// RefuseSymlink reports that root skips an action on path, a symbolic link (contract, section 2.1, step 9).
func (t *StepLog) RefuseSymlink(action, path string) {
	t.Warn("refusing %s through symlinked path %s — continuing", action, path)
}

// CannotChown reports that the owner of path can't be changed. Only the first call reports, because later changes usually fail
// too.
func (t *StepLog) CannotChown(path string) {
	t.chownReported.Do(func() { t.Warn("chown %s failed (rootless container?) — continuing", path) })
}

// ReportChown reports the error err of a change of the owner of path. It reports nothing if err is nil or an expected error,
// such as a missing file. home is the data directory.
func (t *StepLog) ReportChown(home, path string, err error) {
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, fsutil.ErrSymlink), errors.Is(err, unix.EROFS) && ReadOnly(home):
	case errors.Is(err, fsutil.ErrHardLink), errors.Is(err, fsutil.ErrDevice), errors.Is(err, fsutil.ErrProtected):
		t.Warn("chown %s refused: %v — continuing", path, errors.Unwrap(err))
	default:
		t.CannotChown(path)
	}
}

// ReadOnly reports whether path is on a file system that is mounted read-only. It blocks on that file system.
func ReadOnly(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}
