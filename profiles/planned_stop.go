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

// Files in a home by which a gateway and the program that stops or replaces it communicate (contract, section 6.1).
const (
	plannedStopFile = ".gateway-planned-stop.json"
	takeoverFile    = ".gateway-takeover.json"
	pidFile         = "gateway.pid"
)

const (
	// markerTTL is how long after its writing a planned-stop or takeover marker is valid.
	markerTTL = 60 * time.Second
	// maxMarker is the size in bytes above which a marker or PID file is ignored. They usually have a few hundred bytes.
	maxMarker = 64 << 10
)

// stopMarker is the content of plannedStopFile, and the part of takeoverFile that hinit uses. A gateway that replaces a running
// gateway writes takeoverFile.
type stopMarker struct {
	TargetPID       int     `json:"target_pid"`
	TargetStartTime *uint64 `json:"target_start_time"`      // start time of the target process; null if unknown
	StopperPID      int     `json:"stopper_pid,omitempty"`  // writer of plannedStopFile
	ReplacerPID     int     `json:"replacer_pid,omitempty"` // writer of takeoverFile
	WrittenAt       string  `json:"written_at"`
}

// PlannedStop tells the gateway pid, by a marker file in its home, that the stop signal that follows is planned. The gateway then
// exits with code 0 and records "stopped". A gateway also polls for the marker, and stops even without a signal. startTime is the
// start time of the process (see [StartTime]), or 0 if unknown. The marker is valid for 60 seconds, and the gateway removes it
// (contract, section 6.1). It isn't synced, because no gateway survives a crash of the machine.
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

// ForgetPlannedStop removes the marker that this process has written for the gateway pid. Call it after the gateway has ended,
// because the gateway may not have removed the marker. Markers of other writers, or for other processes, stay.
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

// WasTakenOver reports whether another gateway has taken over the home of a profile, which explains why the gateway pid, begun at
// the given time, has exited.
//
// One of two proofs is enough. Either a valid takeover marker names pid: it was written after begun and within the last 60 seconds,
// and its writer still runs. Or gateway.pid names another process that runs and has the recorded start time. Usually there is only
// the second proof, because the replaced gateway removes the marker before it exits.
//
// If the files are missing or invalid, the result is false: a needless restart does less harm than a gateway that stays down.
func (s *Store) WasTakenOver(profile string, pid int, begun time.Time) bool {
	taken, _ := fromHome(s, profile, func(d *fsutil.Dir, home string) (bool, error) {
		var t stopMarker
		var h pidRecord
		return readMarker(d, filepath.Join(home, takeoverFile), &t) && s.namesTarget(t, pid, begun) ||
			readMarker(d, filepath.Join(home, pidFile), &h) && h.isOtherProcess(pid), nil
	})
	return taken
}

// namesTarget reports whether the takeover marker t is valid for the process pid that started at begun. A PID alone proves nothing,
// because PIDs repeat after a restart of the container.
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

// isOtherProcess reports whether the recorded process runs and is not pid. A record without a start time doesn't count: its PID may
// belong to a later process, or to one of another container.
func (h pidRecord) isOtherProcess(pid int) bool {
	ticks, ok := alive(h.PID)
	return ok && h.PID != pid && h.StartTime != 0 && ticks == h.StartTime
}

func readMarker(d *fsutil.Dir, rel string, into any) bool {
	data, err := d.ReadFile(rel, maxMarker)
	return err == nil && json.Unmarshal(data, into) == nil
}

// StartTime returns the start time of the process pid, in clock ticks since the machine booted. PID and start time together
// identify a process, because a PID can be reused. It works for a zombie, too. The error wraps fs.ErrNotExist if there is no such
// process. It reads only /proc and doesn't block.
func StartTime(pid int) (uint64, error) {
	st, err := processStat(pid)
	return st.Start, err
}

// alive reports whether the process pid runs, and returns its start time. A zombie doesn't run, unless only its first thread has
// ended.
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

// slowStopFile records how long the last stop of the container took, if that was close to its time limit. hinit only shows the
// duration to people, because the agent can write the file.
const slowStopFile = ".hinit-slow-stop"

// longestStop is the longest duration that SlowStop believes.
const longestStop = time.Hour

// RecordStopDuration records how long the container took to stop. If it took less than three quarters of budget, the time limit, it
// removes the old record instead.
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

// SlowStop returns how long the last stop of the container took, and its time limit, if [Store.RecordStopDuration] has recorded
// that it was slow. Otherwise both are 0.
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
