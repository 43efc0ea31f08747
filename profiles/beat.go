package profiles

import (
	"encoding/json"
	"time"
)

// Beat says that the gateway of a profile has written its state file. What hinit and the agent's commands write there is none.
type Beat struct{ Profile Profile }

func (Beat) event() {}

// beatOf reads updated_at (contract, section 6): the gateway writes a time as text, and commands write a number, which is none.
func beatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05"} { // either takes a fraction of a second
		if at, err := time.Parse(layout, text); err == nil {
			return at
		}
	}
	return time.Time{}
}
