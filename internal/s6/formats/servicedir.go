package formats

import (
	"errors"
	"fmt"
	"io/fs"
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

// Files that define details.
const (
	killGroupFile     = "flag-timeout-killpg"
	finishTimeoutFile = "timeout-finish"
	killTimeoutFile   = "timeout-kill"
	downSignalFile    = "down-signal"
	reloadSignalFile  = "reload-signal"
	notifyFile        = "notification-fd"
	tallyLimitFile    = "max-death-tally"
)

// Defines reports whether a file of that name is part of a service directory's definition.
func Defines(name string) bool {
	switch name {
	case RunFile, FinishFile, DownFile, LogDir, killGroupFile, finishTimeoutFile, killTimeoutFile, downSignalFile, reloadSignalFile, notifyFile, tallyLimitFile:
		return true
	}
	return false
}

const (
	// MaxName is the longest name of a service directory.
	MaxName = 251
	// maxDefinition limits the size of a file that holds a number or a name.
	maxDefinition = 4 << 10
	// maxFD limits notification-fd, for which every start makes room.
	maxFD                = 1023
	defaultFinishTimeout = 5 * time.Second
)

// Files are the files of a service directory. A directory of package fsutil implements it.
type Files interface {
	// Lstat describes a name without following a link. A missing one is fs.ErrNotExist.
	Lstat(name string) (fs.FileInfo, error)
	// ReadFile returns the content of a regular file of at most max bytes. A missing one is fs.ErrNotExist.
	ReadFile(name string, max int64) ([]byte, error)
}

// Definition is what a service directory defines.
type Definition struct {
	Broken        string        // why it can't be run, "" when nothing stands against it
	FinishTimeout time.Duration // how long a finish program may take; 0 is for ever
	KillTimeout   time.Duration // from the down signal to SIGKILL; 0 never kills
	KillGroup     bool          // SIGKILL goes to the process group
	DownSignal    int
	ReloadSignal  int
	NotifyFD      int  // descriptor on which the service tells that it is ready, 0 when it does not
	Tally         int  // how many deaths are kept in TallyFile
	Down          bool // it does not start by itself
	Logger        bool // there is a directory log
	// Warnings name files that can't be understood; their defaults apply.
	Warnings []string
}

// ReadDefinition reads a service directory. It never fails: a file that can't be read or understood becomes a warning, a directory
// without a program to run is Broken.
func ReadDefinition(dir Files) Definition {
	d := Definition{FinishTimeout: defaultFinishTimeout, DownSignal: 15, ReloadSignal: 1, Tally: defaultTally}
	d.Broken = unrunnable(dir)
	d.Down = exists(dir, DownFile)
	d.KillGroup = exists(dir, killGroupFile)
	if info, err := dir.Lstat(LogDir); err == nil {
		d.Logger = info.IsDir()
	}
	d.milliseconds(dir, finishTimeoutFile, &d.FinishTimeout)
	d.milliseconds(dir, killTimeoutFile, &d.KillTimeout)
	d.signal(dir, downSignalFile, &d.DownSignal)
	d.signal(dir, reloadSignalFile, &d.ReloadSignal)
	d.line(dir, notifyFile, func(text string) error {
		fd, err := strconv.Atoi(text)
		if err != nil || fd < 1 || fd > maxFD {
			return fmt.Errorf("not a descriptor from 1 to %d", maxFD)
		}
		d.NotifyFD = fd
		return nil
	})
	d.line(dir, tallyLimitFile, func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return errors.New("not a number of deaths")
		}
		d.Tally = min(n, MaxTally)
		return nil
	})
	return d
}

func unrunnable(dir Files) string {
	info, err := dir.Lstat(RunFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it has no run"
	case err != nil:
		return fmt.Sprintf("its run cannot be looked at: %v", err)
	case info.Mode()&fs.ModeSymlink != 0: // the kernel will say
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

// line passes the first line of a file to set, if the file exists.
func (d *Definition) line(dir Files, name string, set func(text string) error) {
	data, err := dir.ReadFile(name, maxDefinition)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	text, _, _ := strings.Cut(string(data), "\n")
	if err == nil {
		err = set(strings.TrimSpace(text))
	}
	if err != nil {
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s: %v", name, err))
	}
}

func (d *Definition) milliseconds(dir Files, name string, into *time.Duration) {
	d.line(dir, name, func(text string) error {
		t, ok := ParseMilliseconds(text)
		if !ok {
			return errors.New("not a number of milliseconds")
		}
		*into = t
		return nil
	})
}

func (d *Definition) signal(dir Files, name string, into *int) {
	d.line(dir, name, func(text string) error {
		n, ok := ParseSignal(text)
		if !ok {
			return errors.New("not a signal")
		}
		*into = n
		return nil
	})
}
