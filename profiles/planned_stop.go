package profiles

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/procstat"
)

// Files in a home by which a gateway communicates with the program that stops or replaces it (contract, section 6.1).
const (
	plannedStopFile = ".gateway-planned-stop.json"
	takeoverFile    = ".gateway-takeover.json"
	pidFile         = "gateway.pid"
)

const (
	// markerLifetime is how long a planned-stop or takeover marker is valid after it was written.
	markerLifetime = 60 * time.Second
	// maxMarker is the size in bytes above which a marker or PID file is ignored. They usually have a few hundred bytes.
	maxMarker = 64 << 10
)

// stopMarker is the content of plannedStopFile, and the part of takeoverFile that hinit uses. A gateway writes takeoverFile when
// it replaces a running gateway.
type stopMarker struct {
	TargetPID       int     `json:"target_pid"`
	TargetStartTime *uint64 `json:"target_start_time"`      // Start time of the target process; null if unknown.
	StopperPID      int     `json:"stopper_pid,omitempty"`  // Writer of plannedStopFile.
	ReplacerPID     int     `json:"replacer_pid,omitempty"` // Writer of takeoverFile.
	WrittenAt       string  `json:"written_at"`
}

// MarkPlannedStop tells the gateway pid, by a marker file in its home, that the next stop signal is planned. The gateway then exits
// with code 0 and records "stopped". A gateway also polls for the marker, and stops even without a signal. startTime is the start
// time of the process (see [StartTime]), or 0 if unknown. The marker is valid for 60 seconds, and the gateway removes it
// (contract, section 6.1). It isn't synced, because no gateway survives a crash of the machine.
func (s *Store) MarkPlannedStop(profile string, pid int, startTime uint64) error {
	if pid <= 0 {
		return fmt.Errorf("cannot mark the stop of profile %q as planned: %d is no process", profile, pid)
	}
	m := stopMarker{TargetPID: pid, StopperPID: os.Getpid(), WrittenAt: s.now().UTC().Format("2006-01-02T15:04:05.000000-07:00")}
	if startTime != 0 {
		m.TargetStartTime = &startTime
	}
	data, _ := json.Marshal(m) // Numbers and texts can always be encoded.
	defer s.lock(profile)()
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return fmt.Errorf("cannot mark the stop of profile %q as planned: %w", profile, err)
		}
		return d.Replace(filepath.Join(home, plannedStopFile), data, fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	})
}

// RemovePlannedStop removes the marker that this process has written for the gateway pid. Call it after the gateway has ended,
// because some gateways don't remove the marker. Markers of other writers, or for other processes, stay.
func (s *Store) RemovePlannedStop(profile string, pid int) {
	defer s.lock(profile)()
	_ = s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		rel := filepath.Join(home, plannedStopFile)
		var m stopMarker
		if !readMarker(d, rel, &m) || m.TargetPID != pid || m.StopperPID != os.Getpid() {
			return nil
		}
		return d.Remove(rel) // An error does no harm: the marker expires within a minute.
	})
}

// pidRecord is the part of the PID file that hinit uses.
type pidRecord struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
}

// WasTakenOver reports whether another gateway has taken over the home of a profile. That would explain why the gateway pid,
// which started at startedAt, has exited.
//
// One of two proofs is enough. First, a valid takeover marker names pid: it was written after startedAt and within the last 60
// seconds, and its writer still runs. Second, gateway.pid names another process, which runs and has the recorded start time.
// Usually only the second proof exists, because the replaced gateway removes the marker before it exits.
//
// If the files are missing or invalid, the result is false: a needless restart does less harm than a gateway that stays down.
func (s *Store) WasTakenOver(profile string, pid int, startedAt time.Time) bool {
	taken, _ := readHome(s, profile, func(d *fsutil.Dir, home string) (bool, error) {
		var t stopMarker
		var h pidRecord
		return readMarker(d, filepath.Join(home, takeoverFile), &t) && s.namesTarget(t, pid, startedAt) ||
			readMarker(d, filepath.Join(home, pidFile), &h) && h.isOtherProcess(pid), nil
	})
	return taken
}

// namesTarget reports whether the takeover marker t is valid for the process pid that started at begun. The PID alone proves
// nothing, because PIDs are used again after a restart of the container.
func (s *Store) namesTarget(t stopMarker, pid int, startedAt time.Time) bool {
	at, err := parseISOTime(t.WrittenAt)
	if t.TargetPID != pid || pid <= 0 || err != nil || at.Before(startedAt) || s.now().Sub(at).Abs() > markerLifetime {
		return false
	}
	if ticks, err := StartTime(pid); err == nil && t.TargetStartTime != nil && ticks != *t.TargetStartTime {
		return false // Another process has this PID.
	}
	ticks, ok := processRuns(t.ReplacerPID)
	return ok && t.ReplacerPID != pid && !procstat.StartedAt(ticks).After(at)
}

// isOtherProcess reports whether the recorded process runs and is not pid. It ignores a record without a start time, whose PID
// may belong to a later process or to one of another container.
func (h pidRecord) isOtherProcess(pid int) bool {
	ticks, ok := processRuns(h.PID)
	return ok && h.PID != pid && h.StartTime != 0 && ticks == h.StartTime
}

func readMarker(d *fsutil.Dir, rel string, into any) bool {
	data, err := d.ReadFile(rel, maxMarker)
	return err == nil && json.Unmarshal(data, into) == nil
}

// StartTime returns the start time of the process pid, in clock ticks since the machine booted. A PID can be reused, but PID and
// start time together identify a process. StartTime also works for a zombie. If the process doesn't exist, the error wraps
// fs.ErrNotExist. StartTime reads only /proc and doesn't block.
func StartTime(pid int) (uint64, error) {
	st, err := processStat(pid)
	return st.Start, err
}

// processRuns reports whether the process pid runs, and returns its start time. A zombie counts as running only if other threads
// of it still run.
func processRuns(pid int) (startTime uint64, ok bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := processStat(pid)
	return st.Start, err == nil && !st.Dead()
}

func processStat(pid int) (procstat.Stat, error) {
	return blocking.Get(blocking.ShortCalls, func() (procstat.Stat, error) { return procstat.Read(pid) })
}

// slowStopFile records how long the last stop of the container took, if that was close to its time limit. hinit only shows the
// duration to people, because the agent can write the file.
const slowStopFile = ".hinit-slow-stop"

// maxStopTime is the longest duration that LastSlowStop accepts from the file.
const maxStopTime = time.Hour

// RecordStopDuration records how long the container took to stop. If that was less than three quarters of budget, the time limit,
// it removes the old record instead.
func (s *Store) RecordStopDuration(took, budget time.Duration) error {
	return s.WithHome(Default, func(d *fsutil.Dir, home string) error {
		file := filepath.Join(home, slowStopFile)
		if took < budget*3/4 {
			return removeIfExists(d, file)
		}
		text := fmt.Sprintf("%d %d\n", took.Milliseconds(), budget.Milliseconds())
		return d.Replace(file, []byte(text), fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	})
}

// LastSlowStop returns how long the last stop of the container took, and its time limit, if [Store.RecordStopDuration] has
// recorded a slow stop. Otherwise both are 0.
func (s *Store) LastSlowStop() (took, budget time.Duration) {
	var of [2]int64
	_ = s.WithHome(Default, func(d *fsutil.Dir, home string) error {
		text, err := d.ReadFile(filepath.Join(home, slowStopFile), maxMarker)
		if err == nil {
			_, err = fmt.Sscan(string(text), &of[0], &of[1])
		}
		return err
	})
	most := maxStopTime.Milliseconds()
	if of[0] <= 0 || of[1] <= 0 || of[0] > most || of[1] > most {
		return 0, 0
	}
	return time.Duration(of[0]) * time.Millisecond, time.Duration(of[1]) * time.Millisecond
}
