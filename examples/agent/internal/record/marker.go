package record

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// MarkerTTL is how long a marker is valid after it was written.
const MarkerTTL = 60 * time.Second

// A SignalMarker is the name of a file that tells a gateway the meaning of the next signal. The sender of the signal writes it
// first.
type SignalMarker string

// The two markers of the Hermes agent.
const (
	PlannedStopMarker SignalMarker = ".gateway-planned-stop.json"
	TakeoverMarker    SignalMarker = ".gateway-takeover.json"
)

type markerFile struct {
	TargetPID       int     `json:"target_pid"`
	TargetStartTime *uint64 `json:"target_start_time"`
	StopperPID      int     `json:"stopper_pid,omitempty"`
	ReplacerPID     int     `json:"replacer_pid,omitempty"`
	WrittenAt       string  `json:"written_at"`
}

// Write writes the marker for the gateway target into the gateway's home, with the pid of this process as its author. Call it
// before you send the signal.
func (m SignalMarker) Write(home string, target Identity) error {
	content := markerFile{TargetPID: target.PID, TargetStartTime: target.StartTime, WrittenAt: Timestamp(time.Now())}
	if m == TakeoverMarker {
		content.ReplacerPID = os.Getpid()
	} else {
		content.StopperPID = os.Getpid()
	}
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return ReplaceFile(filepath.Join(home, string(m)), data, 0o600, string(m)+"_*.tmp")
}

// Consume reports whether the marker is for the process self, and deletes it in that case. It also deletes a marker that is
// malformed or older than MarkerTTL. It keeps a newer marker for another process. It compares the start times only if both
// are known.
func (m SignalMarker) Consume(home string, self Identity) bool {
	path := filepath.Join(home, string(m))
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var content markerFile
	if json.Unmarshal(data, &content) != nil || content.TargetPID <= 0 || !isFresh(content.WrittenAt) {
		_ = removeIfExists(path)
		return false
	}
	if content.TargetPID != self.PID || !sameStartTime(content.TargetStartTime, self.StartTime) {
		return false
	}
	_ = removeIfExists(path)
	return true
}

// Clear removes the marker, whatever its content.
func (m SignalMarker) Clear(home string) {
	_ = removeIfExists(filepath.Join(home, string(m)))
}

func isFresh(writtenAt string) bool {
	at, err := time.Parse(time.RFC3339Nano, writtenAt)
	return err == nil && time.Since(at).Abs() <= MarkerTTL
}

func sameStartTime(a, b *uint64) bool {
	return a == nil || b == nil || *a == *b
}
