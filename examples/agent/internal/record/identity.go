package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An Identity identifies a process. The pid alone is not enough, because the kernel reuses pids.
type Identity struct {
	PID       int      `json:"pid"`
	Kind      string   `json:"kind"`
	Argv      []string `json:"argv"`
	StartTime *uint64  `json:"start_time"` // Clock ticks since boot, field 22 of /proc/PID/stat; nil when unknown.
}

// CurrentProcess returns the identity of this process.
func CurrentProcess() Identity {
	id := Identity{PID: os.Getpid(), Kind: "hermes-gateway", Argv: slices.Clone(os.Args)}
	if _, start, err := procStat(id.PID); err == nil {
		id.StartTime = &start
	}
	return id
}

// Alive reports whether the process is still running. A zombie does not count as running. If the start time is unknown,
// another process may have the pid, so the process counts only if it looks like a gateway.
func (id Identity) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	state, start, err := procStat(id.PID)
	if err != nil || state == 'Z' || state == 'X' {
		return false
	}
	if id.StartTime != nil {
		return start == *id.StartTime
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id.PID))
	return err == nil && slices.ContainsFunc(bytes.Split(cmdline, []byte{0}), func(word []byte) bool {
		return string(word) == "gateway"
	})
}

// Signal sends sig to the process if the process is still [Identity.Alive]. Otherwise it does nothing and returns no error.
func (id Identity) Signal(sig unix.Signal) error {
	if !id.Alive() {
		return nil
	}
	if err := unix.Kill(id.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot send %s to PID %d: %w", unix.SignalName(sig), id.PID, err)
	}
	return nil
}

// procStat returns the state letter and the start time of a process (proc_pid_stat(5), fields 3 and 22). The second field is the
// command's name in parentheses, and may itself contain spaces and parentheses.
func procStat(pid int) (state byte, start uint64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, found := cutLast(string(data), ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 {
		return 0, 0, fmt.Errorf("cannot read the stat line of PID %d", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], start, err
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func readIdentity(path string) (Identity, error) {
	var id Identity
	data, err := os.ReadFile(path)
	if err != nil {
		return id, err
	}
	return id, json.Unmarshal(data, &id)
}
