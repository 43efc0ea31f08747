package formats

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names in a service directory.
const (
	RunFile    = "run"
	FinishFile = "finish"
	DownFile   = "down"
	LogDir     = "log"
	TypeFile   = "type"
)

// Files in a service directory with a setting. Of some files only the existence matters.
const (
	killGroupFile     = "flag-timeout-killpg"
	finishTimeoutFile = "timeout-finish"
	killTimeoutFile   = "timeout-kill"
	downSignalFile    = "down-signal"
	reloadSignalFile  = "reload-signal"
	notifyFile        = "notification-fd"
	maxDeathTallyFile = "max-death-tally"
)

// IsDefinitionFile reports whether a file with this name in a service directory is part of the service's definition.
func IsDefinitionFile(name string) bool {
	return slices.Contains([]string{
		RunFile, FinishFile, DownFile, LogDir, killGroupFile, finishTimeoutFile, killTimeoutFile, downSignalFile, reloadSignalFile, notifyFile, maxDeathTallyFile,
	}, name)
}

const (
	// MaxName is the maximum length of a service directory's name in bytes.
	MaxName = 251
	// maxDefinition is the maximum size of a file with a setting in bytes.
	maxDefinition = 4 << 10
	// maxNotifyFD is the highest descriptor that notification-fd may contain. Each start needs a table of this size.
	maxNotifyFD          = 1023
	defaultFinishTimeout = 5 * time.Second
)

// Files are the files of a service directory. [hinit/internal/fsutil.Dir] implements it.
type Files interface {
	// Lstat describes a file without following a link. For a missing file the error is fs.ErrNotExist.
	Lstat(name string) (fs.FileInfo, error)
	// ReadFile returns the content of a regular file with at most max bytes. For a missing file the error is fs.ErrNotExist.
	ReadFile(name string, max int64) ([]byte, error)
}

// Definition is the content of a service directory, the settings of its service.
type Definition struct {
	Broken        string        // why the service can't run; "" if it can
	FinishTimeout time.Duration // time limit of the finish program; 0: no limit
	KillTimeout   time.Duration // time from the down signal to SIGKILL; 0: never
	KillGroup     bool          // SIGKILL goes to the whole process group
	DownSignal    int
	ReloadSignal  int
	NotifyFD      int  // descriptor on which the service says that it is ready; 0: none
	MaxDeaths     int  // number of deaths to keep in TallyFile
	Down          bool // the service does not start without a command
	Logger        bool // the service has a logger, in the directory log
	// Warnings describe files that could not be parsed. Their defaults are used.
	Warnings []string
}

// ReadDefinition reads the settings in a service directory. It never fails: an unreadable or invalid file causes a warning, and
// without an executable run file the field Broken says why.
func ReadDefinition(dir Files) Definition {
	d := Definition{FinishTimeout: defaultFinishTimeout, DownSignal: 15, ReloadSignal: 1, MaxDeaths: defaultMaxDeaths}
	d.Broken = whyUnrunnable(dir)
	d.Down = exists(dir, DownFile)
	d.KillGroup = exists(dir, killGroupFile)
	if info, err := dir.Lstat(LogDir); err == nil {
		d.Logger = info.IsDir()
	}
	parseSetting(&d, dir, finishTimeoutFile, &d.FinishTimeout, ParseMilliseconds, "not a number of milliseconds")
	parseSetting(&d, dir, killTimeoutFile, &d.KillTimeout, ParseMilliseconds, "not a number of milliseconds")
	parseSetting(&d, dir, downSignalFile, &d.DownSignal, ParseSignal, "not a signal")
	parseSetting(&d, dir, reloadSignalFile, &d.ReloadSignal, ParseSignal, "not a signal")
	parseSetting(&d, dir, notifyFile, &d.NotifyFD, func(text string) (int, bool) {
		fd, err := strconv.Atoi(text)
		return fd, err == nil && fd >= 1 && fd <= maxNotifyFD
	}, "not a descriptor from 1 to "+strconv.Itoa(maxNotifyFD))
	parseSetting(&d, dir, maxDeathTallyFile, &d.MaxDeaths, func(text string) (int, bool) {
		n, err := strconv.Atoi(text)
		return min(n, MaxDeaths), err == nil && n >= 0
	}, "not a number of deaths")
	return d
}

func whyUnrunnable(dir Files) string {
	info, err := dir.Lstat(RunFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it has no run"
	case err != nil:
		return fmt.Sprintf("its run cannot be looked at: %v", err)
	case info.Mode()&fs.ModeSymlink != 0: // the kernel reports a broken link at the start
		return ""
	case !info.Mode().IsRegular():
		return "its run is no file"
	case info.Mode().Perm()&0o111 == 0:
		return "its run is not executable"
	}
	return ""
}

func exists(dir Files, name string) bool {
	_, err := dir.Lstat(name)
	return err == nil
}

// parseSetting parses the first line of a file with a setting into *into. If the file is missing, *into stays unchanged. problem
// is the warning about an invalid line.
func parseSetting[T any](d *Definition, dir Files, name string, into *T, parse func(text string) (T, bool), problem string) {
	data, err := dir.ReadFile(name, maxDefinition)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		text, _, _ := strings.Cut(string(data), "\n")
		if value, ok := parse(strings.TrimSpace(text)); ok {
			*into = value
			return
		}
		err = errors.New(problem)
	}
	d.Warnings = append(d.Warnings, fmt.Sprintf("%s: %v", name, err))
}
