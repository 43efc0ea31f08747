package profiles

import (
	"encoding/json"
	"time"
)

// Beat reports that the gateway of a profile has written its state file. A write by hinit or by the agent's commands is no Beat.
type Beat struct{ Profile Profile }

func (Beat) event() {}

// beatOf parses updated_at, the time of the last write by the gateway (contract, section 6). A gateway writes the time as text. A
// command writes a number, for which beatOf returns zero.
func beatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	at, _ := isoTime(text)
	return at
}

// isoTime parses an ISO 8601 time, with or without a fraction of a second. A time without a zone is UTC.
func isoTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", text)
	}
	return at, err
}
