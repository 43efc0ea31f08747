package s6

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

// Further files that define something.
const (
	killGroupFile     = "flag-timeout-killpg"
	finishTimeoutFile = "timeout-finish"
	killTimeoutFile   = "timeout-kill"
	downSignalFile    = "down-signal"
	reloadSignalFile  = "reload-signal"
	notifyFile        = "notification-fd"
	tallyLimitFile    = "max-death-tally"
)

// Defines says whether a file of that name in a service directory is part of the definition.
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
	// maxDefinition bounds the files that define something; each holds a number or a name.
	maxDefinition = 4 << 10
	// maxFD bounds notification-fd, which every start of the service has to make room for.
	maxFD = 1023
	// defaultFinishTimeout is what a finish program may take when nothing else is said.
	defaultFinishTimeout = 5 * time.Second
)

// Files are the files of a service directory; package fsutil has such a directory.
type Files interface {
	// Lstat describes what is at a name, a link itself and not its target. A missing one is fs.ErrNotExist.
	Lstat(name string) (fs.FileInfo, error)
	// ReadFile returns the content of a regular file that has at most max bytes. A missing one is fs.ErrNotExist.
	ReadFile(name string, max int64) ([]byte, error)
}

// Definition is what a service directory says of its service.
type Definition struct {
	Broken        string        // why it can't be run, "" when nothing stands against it
	Finish        bool          // there is a finish program
	FinishTimeout time.Duration // how long it may take; 0 is for ever
	KillTimeout   time.Duration // from the down signal to SIGKILL; 0 never kills
	KillGroup     bool          // SIGKILL goes to the process group
	DownSignal    int
	ReloadSignal  int
	NotifyFD      int  // descriptor on which the service tells that it is ready, 0 when it does not
	Tally         int  // how many deaths are kept in TallyFile
	Down          bool // it does not start by itself
	Logger        bool // there is a directory log
	// Warnings tell what was written in a way that can't be understood; the default counts then.
	Warnings []string
}

// ReadDefinition reads a service directory. It never fails: a file that can't be read or understood becomes a warning, as
// for s6, and a directory without a program to run is Broken. At most a few kilobytes of each file are read.
func ReadDefinition(dir Files) Definition {
	d := Definition{FinishTimeout: defaultFinishTimeout, DownSignal: 15, ReloadSignal: 1, Tally: defaultTally}
	d.Broken = unrunnable(dir)
	d.Finish = exists(dir, FinishFile)
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

// unrunnable says why there is nothing to run.
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

// line hands the first line of a file to set, if there is such a file.
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
