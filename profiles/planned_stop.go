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

// Files in a profile's home through which a gateway and the program that stops or replaces it communicate (contract, section
// 6.1).
const (
	plannedStopFile = ".gateway-planned-stop.json"
	takeoverFile    = ".gateway-takeover.json"
	pidFile         = "gateway.pid"
)

const (
	// markerTTL is the time for which a planned-stop or takeover marker is valid.
	markerTTL = 60 * time.Second
	// maxMarker is the maximum size, in bytes, of a marker or PID file that hinit reads. These files usually have a few
	// hundred bytes.
	maxMarker = 64 << 10
)

// stopMarker is the content of plannedStopFile, and the part of takeoverFile that hinit uses. A gateway writes takeoverFile when it
// replaces a running gateway.
type stopMarker struct {
	TargetPID       int     `json:"target_pid"`
	TargetStartTime *uint64 `json:"target_start_time"`      // start time of the target process; null if unknown
	StopperPID      int     `json:"stopper_pid,omitempty"`  // author of plannedStopFile
	ReplacerPID     int     `json:"replacer_pid,omitempty"` // author of takeoverFile
	WrittenAt       string  `json:"written_at"`
}

// PlannedStop tells the gateway with the PID pid that its coming stop signal is planned. The gateway then exits with code 0
// and records "stopped". For this, PlannedStop writes a marker file into the gateway's home. A gateway polls for the marker,
// so the marker alone also makes it stop. startTime is the start time of the process (see [StartTime]), or 0 if unknown. The
// marker is valid for 60 seconds, and the gateway removes it (contract, section 6.1). The marker isn't synced, because no
// gateway survives a crash of the machine.
func (s *Store) PlannedStop(profile string, pid int, startTime uint64) error {
	if pid <= 0 {
		return fmt.Errorf("cannot mark the stop of profile %q as planned: %d is no process", profile, pid)
	}
	m := stopMarker{TargetPID: pid, StopperPID: os.Getpid(), WrittenAt: s.now().UTC().Format("2006-01-02T15:04:05.000000-07:00")}
	if startTime != 0 {
		m.TargetStartTime = &startTime
	}
	data, _ := json.Marshal(m) // numbers and text can't fail
	defer s.lock(profile)()
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return fmt.Errorf("cannot mark the stop of profile %q as planned: %w", profile, err)
		}
		return d.Replace(filepath.Join(home, plannedStopFile), data, fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	})
}

// ForgetPlannedStop removes the marker that this process wrote for the gateway with the PID pid. Call it after the gateway has
// ended, because the gateway may not have read and removed the marker. A marker by another writer, or for another process, is
// kept.
func (s *Store) ForgetPlannedStop(profile string, pid int) {
	defer s.lock(profile)()
	_ = s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		rel := filepath.Join(home, plannedStopFile)
		var m stopMarker
		if !readMarker(d, rel, &m) || m.TargetPID != pid || m.StopperPID != os.Getpid() {
			return nil
		}
		return d.Remove(rel) // an error does no harm: the marker expires within a minute
	})
}

// pidRecord is the part of pidFile that hinit uses.
type pidRecord struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
}

// WasTakenOver reports whether another gateway has taken over a profile's home. pid is the PID of the earlier gateway, and the
// parameter begun is the start time of that process. A takeover explains why that gateway exited.
//
// One of two proofs suffices. Either a valid takeover marker names pid: it was written after begun and within the last 60
// seconds, and its author still runs. Or gateway.pid names another process that runs and has the recorded start time. Usually
// only the second proof exists, because the replaced gateway removes the marker before it exits.
//
// If the data is missing or invalid, WasTakenOver returns false: a needless restart does less harm than a gateway that stays down.
func (s *Store) WasTakenOver(profile string, pid int, begun time.Time) bool {
	taken := false
	err := s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		var t stopMarker
		var h pidRecord
		taken = readMarker(d, filepath.Join(home, takeoverFile), &t) && s.namesTarget(t, pid, begun) ||
			readMarker(d, filepath.Join(home, pidFile), &h) && h.isOtherProcess(pid)
		return nil
	})
	return err == nil && taken
}

// namesTarget reports whether the takeover marker t is valid and names the process pid, whose start time is the parameter begun.
// A PID alone proves nothing, because PIDs repeat after a restart of the container.
func (s *Store) namesTarget(t stopMarker, pid int, begun time.Time) bool {
	at, err := isoTime(t.WrittenAt)
	if t.TargetPID != pid || pid <= 0 || err != nil || at.Before(begun) || s.now().Sub(at).Abs() > markerTTL {
		return false
	}
	if ticks, err := StartTime(pid); err == nil && t.TargetStartTime != nil && ticks != *t.TargetStartTime {
		return false // the process with this PID is not the target
	}
	ticks, ok := alive(t.ReplacerPID)
	return ok && t.ReplacerPID != pid && !procstat.StartedAt(ticks).After(at)
}

// isOtherProcess reports whether the recorded process is running and is not pid. A record without a start time doesn't count: its
// PID may since belong to a later process, or to a process of another container.
func (h pidRecord) isOtherProcess(pid int) bool {
	ticks, ok := alive(h.PID)
	return ok && h.PID != pid && h.StartTime != 0 && ticks == h.StartTime
}

func readMarker(d *fsutil.Dir, rel string, into any) bool {
	data, err := d.ReadFile(rel, maxMarker)
	return err == nil && json.Unmarshal(data, into) == nil
}

// StartTime returns the start time of the process pid, in clock ticks since the machine booted. A PID can be reused, but PID and
// start time together identify a process. StartTime also works for a zombie. The error wraps fs.ErrNotExist if no such process
// exists. StartTime reads only /proc and doesn't block.
func StartTime(pid int) (uint64, error) {
	st, err := processStat(pid)
	return st.Start, err
}

// alive reports whether the process pid is running, and returns its start time. A zombie is not running, unless only its first
// thread has ended.
func alive(pid int) (startTime uint64, ok bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := processStat(pid)
	return st.Start, err == nil && !st.Dead()
}

func processStat(pid int) (procstat.Stat, error) {
	return blocking.Get(blocking.Short, func() (procstat.Stat, error) { return procstat.Read(pid) })
}

// slowStopFile records how long the last stop of the container took, if that was close to the time limit. The agent can write the
// file, so hinit only displays its content.
const slowStopFile = ".hinit-slow-stop"

// longestStop is the largest duration that hinit accepts when it reads slowStopFile.
const longestStop = time.Hour

// RecordStopDuration records how long the container took to stop, if that is at least three quarters of the time limit budget.
// Otherwise RecordStopDuration removes the old record.
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

// SlowStop returns the duration of the container's last stop and its time limit, as [Store.RecordStopDuration] recorded them. It
// returns zeros if that stop was not slow.
func (s *Store) SlowStop() (took, budget time.Duration) {
	var of [2]int64
	_ = s.WithHome(Default, func(d *fsutil.Dir, home string) error {
		text, err := d.ReadFile(filepath.Join(home, slowStopFile), maxMarker)
		if err == nil {
			_, err = fmt.Sscan(string(text), &of[0], &of[1])
		}
		return err
	})
	most := longestStop.Milliseconds()
	if of[0] <= 0 || of[1] <= 0 || of[0] > most || of[1] > most {
		return 0, 0
	}
	return time.Duration(of[0]) * time.Millisecond, time.Duration(of[1]) * time.Millisecond
}
