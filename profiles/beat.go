package profiles

import (
	"encoding/json"
	"time"
)

// Beat says that the gateway of a profile has written its state file. A write of hinit or of the agent's commands is no beat.
type Beat struct{ Profile Profile }

func (Beat) event() {}

// beatOf reads updated_at (contract, section 6): the gateway writes a time as text, and commands write a number, which is none.
func beatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	at, _ := isoTime(text)
	return at
}

// isoTime parses an ISO 8601 time, with or without a fraction of a second; without a zone it is UTC.
func isoTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", text)
	}
	return at, err
}
