package profiles

import (
	"encoding/json"
	"time"
)

// Beat reports that the gateway of a profile has written its state file, which shows that it is alive. Writes by hinit or by the
// agent's commands cause no Beat.
type Beat struct{ Profile Profile }

func (Beat) event() {}

// beatOf parses value, the updated_at of a state file, which is the time of the last write (contract, section 6). A gateway
// writes the time as text. A command writes a number; then beatOf returns the zero time.
func beatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	at, _ := isoTime(text)
	return at
}

// isoTime parses an ISO 8601 time, with or without fractions of a second. A time without a zone counts as UTC.
func isoTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", text)
	}
	return at, err
}
