package profiles_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/testkit"
	"hinit/profiles"
)

// startChild starts a process that lives until the test ends. It returns its PID and start time.
func startChild(t *testing.T) (pid int, ticks uint64) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // The test's context is cancelled before cleanups run.
	ticks, err := profiles.StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, ticks
}

// startZombie returns the PID of a child that has exited and is not reaped before the test ends.
func startZombie(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	testkit.Until(t, "the child is a zombie", func() bool {
		st, err := profiles.ProcessStat(cmd.Process.Pid)
		return err == nil && st.Dead()
	})
	return cmd.Process.Pid
}

func TestStartTime(t *testing.T) {
	mine, err := profiles.StartTime(os.Getpid())
	if err != nil || mine == 0 {
		t.Fatalf("own start time %d, %v", mine, err)
	}
	_, child := startChild(t)
	if child < mine {
		t.Errorf("child started at %d, before its parent at %d", child, mine)
	}
	if _, err := profiles.StartTime(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such process: %v", err)
	}
	zombie := startZombie(t)
	if ticks, err := profiles.StartTime(zombie); err != nil || ticks == 0 {
		t.Errorf("zombie: %d, %v", ticks, err)
	}
	if _, ok := profiles.Alive(zombie); ok {
		t.Error("a zombie counts as alive")
	}
}

func TestPlannedStop(t *testing.T) {
	s := profiles.NewVolume(t)
	s.SetClock(func() time.Time { return time.Date(2026, 11, 21, 1, 9, 21, 753461999, time.FixedZone("", 3600)) })
	profiles.Write(t, s, "profiles/coder/SOUL.md", "")
	if err := s.MarkPlannedStop("coder", 43, 103276); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"target_pid":43,"target_start_time":103276,"stopper_pid":%d,`+
		`"written_at":"2026-11-21T00:09:21.753461+00:00"}`, os.Getpid())
	if got := profiles.Read(t, s, "profiles/coder/.gateway-planned-stop.json"); got != want {
		t.Errorf("marker %s, want %s", got, want)
	}
	if err := s.MarkPlannedStop(profiles.Default, 43, 0); err != nil {
		t.Fatal(err)
	}
	var marker map[string]any
	if err := json.Unmarshal([]byte(profiles.Read(t, s, ".gateway-planned-stop.json")), &marker); err != nil {
		t.Fatal(err)
	}
	if v, ok := marker["target_start_time"]; !ok || v != nil {
		t.Errorf("unknown start time is %v, want null", v)
	}
	if err := s.MarkPlannedStop("nobody", 43, 0); !errors.Is(err, profiles.ErrNotExist) {
		t.Errorf("missing profile: %v", err)
	}
	if err := s.MarkPlannedStop("coder", 0, 0); err == nil {
		t.Error("marked no process")
	}
}

func TestForgetPlannedStop(t *testing.T) {
	s := profiles.NewVolume(t)
	const marker = "profiles/coder/.gateway-planned-stop.json"
	profiles.Write(t, s, "profiles/coder/SOUL.md", "")
	there := func() bool {
		_, err := os.Lstat(filepath.Join(s.Root(), marker))
		return err == nil
	}
	if err := s.MarkPlannedStop("coder", 43, 0); err != nil {
		t.Fatal(err)
	}
	if s.RemovePlannedStop("coder", 44); !there() {
		t.Error("removed the marker of another run")
	}
	if s.RemovePlannedStop("coder", 43); there() {
		t.Error("left the marker of the run that has ended")
	}
	profiles.Write(t, s, marker, `{"target_pid":43,"stopper_pid":1}`)
	if s.RemovePlannedStop("coder", 43); !there() && os.Getpid() != 1 {
		t.Error("removed somebody else's marker")
	}
	s.RemovePlannedStop("nobody", 43)
}

func TestTakeoverOf(t *testing.T) {
	const gone = 1 << 30 // A PID that no process has.
	other, ticks := startChild(t)
	zombie := startZombie(t)
	zombieTicks, err := profiles.StartTime(zombie)
	if err != nil {
		t.Fatal(err)
	}
	at := func(d time.Duration) string {
		return time.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000000-07:00")
	}
	marker := func(target int, start string, replacer int, written string) string {
		return fmt.Sprintf(`{"target_pid":%d,"target_start_time":%s,"replacer_pid":%d,"written_at":%q}`,
			target, start, replacer, written)
	}
	holding := func(pid int, start uint64) string {
		return fmt.Sprintf(`{"pid":%d,"kind":"hermes-gateway","argv":[],"start_time":%d}`, pid, start)
	}
	for name, tt := range map[string]struct {
		marker, pidFile string
		pid             int
		want            bool
	}{
		"nothing there":                        {"", "", gone, false},
		"marker":                               {marker(gone, "77", other, at(0)), "", gone, true},
		"marker of the container's run before": {marker(gone, "77", other, at(-31*time.Second)), "", gone, false},
		"the replacer's number is another's":   {marker(gone, "77", other, at(-10*time.Second)), "", gone, false},
		"marker without start time":            {marker(gone, "null", other, at(0)), "", gone, true},
		"marker without zone":                  {marker(gone, "null", other, time.Now().UTC().Format("2006-01-02T15:04:05.000")), "", gone, true},
		"marker for another pid":               {marker(gone-1, "77", other, at(0)), "", gone, false},
		"marker is old":                        {marker(gone, "77", other, at(-61*time.Second)), "", gone, false},
		"marker from the future":               {marker(gone, "77", other, at(time.Hour)), "", gone, false},
		"marker without time":                  {marker(gone, "77", other, ""), "", gone, false},
		"replacer is dead":                     {marker(gone, "77", gone-1, at(0)), "", gone, false},
		"replacer is a zombie":                 {marker(gone, "77", zombie, at(0)), "", gone, false},
		"zombie target, right start":           {marker(zombie, fmt.Sprint(zombieTicks), other, at(0)), "", zombie, true},
		"zombie target, wrong start":           {marker(zombie, fmt.Sprint(zombieTicks+1), other, at(0)), "", zombie, false},
		"marker is garbage":                    {"{", "", gone, false},
		"pid file of another":                  {"", holding(other, ticks), gone, true},
		"pid file, garbage marker":             {"[]", holding(other, ticks), gone, true},
		"pid file of itself":                   {"", holding(other, ticks), other, false},
		"pid file, recycled pid":               {"", holding(other, ticks+1), gone, false},
		"pid file, start time unknown":         {"", holding(other, 0), gone, false},
		"pid file of a dead one":               {"", holding(gone-1, 5), gone, false},
		"pid file of a zombie":                 {"", holding(zombie, zombieTicks), gone, false},
		"pid file with nonsense in it":         {"", `{"pid":"x"}`, gone, false},
		"pid file with a negative pid":         {"", `{"pid":-1,"start_time":1}`, gone, false},
		"pid file with a plain number":         {"", "12", gone, false},
		"both, and marker is about him":        {marker(gone, "77", other, at(0)), holding(other, ticks), gone, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			profiles.Write(t, s, "profiles/p/SOUL.md", "")
			if tt.marker != "" {
				profiles.Write(t, s, "profiles/p/.gateway-takeover.json", tt.marker)
			}
			if tt.pidFile != "" {
				profiles.Write(t, s, "profiles/p/gateway.pid", tt.pidFile)
			}
			if got := s.WasTakenOver("p", tt.pid, time.Now().Add(-30*time.Second)); got != tt.want {
				t.Errorf("WasTakenOver = %t, want %t", got, tt.want)
			}
		})
	}
	s := profiles.NewVolume(t)
	if s.WasTakenOver("../p", gone, time.Time{}) || s.WasTakenOver("nobody", gone, time.Time{}) {
		t.Error("an impossible profile was taken over")
	}
}
