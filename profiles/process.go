package profiles

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// StartTime returns when the process pid started, in clock ticks since the machine's boot: field 22 of /proc/<pid>/stat, see
// proc_pid_stat(5). With the pid it identifies a process. A zombie still has one. The error wraps fs.ErrNotExist when there is no
// such process. It touches only /proc and doesn't block.
func StartTime(pid int) (uint64, error) {
	ticks, _, err := processStat(pid)
	return ticks, err
}

// alive reports whether pid runs, and when it started. A zombie does not run, unless only its first thread has ended.
func alive(pid int) (startTime uint64, ok bool) {
	if pid <= 0 {
		return 0, false
	}
	ticks, running, err := processStat(pid)
	return ticks, err == nil && running
}

// startedAt converts what [StartTime] returns into a time.
func startedAt(ticks uint64) time.Time {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // it exists on every Linux that runs Go
	return time.Now().Add(time.Duration(ticks)*(time.Second/userHertz) - time.Duration(now.Nano()))
}

// userHertz is the unit of start times, in a second (proc_pid_stat(5)): this on every system that runs Go.
const userHertz = 100

func processStat(pid int) (startTime uint64, running bool, err error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	var data []byte
	err = blocking.Do(blocking.Short, func() (err error) {
		data, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("cannot read the start time of process %d: %w", pid, err)
	}
	// The second field is the command in parentheses and may hold anything; fields are counted from behind it.
	const stateField, threadsField, startField = 3, 20, 22
	end := bytes.LastIndexByte(data, ')')
	fields := bytes.Fields(data[end+1:])
	if end < 0 || len(fields) <= startField-stateField {
		return 0, false, fmt.Errorf("cannot read the start time of process %d: unexpected content of %q", pid, path)
	}
	startTime, err = strconv.ParseUint(string(fields[startField-stateField]), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("cannot read the start time of process %d: %w", pid, err)
	}
	ended := fields[0][0] == 'Z' || fields[0][0] == 'X'
	last := string(fields[threadsField-stateField]) // the first thread counts until it is reaped
	return startTime, !ended || last != "0" && last != "1", nil
}
