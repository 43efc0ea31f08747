package profiles

import (
	"encoding/json"
	"time"
)

// Event is a change that [Store.Watch] reports to WatchOptions.Notify. It is one of [Appeared], [Disappeared], [StateChanged],
// [Beat], [InputsChanged], [Warned].
type Event interface{ event() }

// Appeared reports a new profile: a directory that has the marker and a valid name.
type Appeared struct{ Profile Profile }

// Disappeared reports that the directory of a profile no longer exists, or was replaced by a symbolic link. The removal of
// the marker alone is not reported, because an editor may replace the marker file. A directory that is removed and created
// again between two scans is also not reported.
type Disappeared struct{ Profile Profile }

// StateChanged reports that gateway_state.json changed in a way that [State.Equal] detects. The first scan reports every file
// that exists. State is zero for a missing or unusable file.
type StateChanged struct {
	Profile Profile
	State   State
}

// InputsChanged reports that config.yaml, .env or the marker of a profile changed. The watcher reports this event only after a
// call of [Watcher.Interest] for the profile.
type InputsChanged struct {
	Profile Profile
	Hash    Hash
}

// Warned reports a warning that the previous scan of the volume did not find.
type Warned struct{ Warning Warning }

func (Appeared) event()      {}
func (Disappeared) event()   {}
func (StateChanged) event()  {}
func (InputsChanged) event() {}
func (Warned) event()        {}

// Beat reports that the gateway of a profile has written its state file, which shows that it is alive. Writes by hinit or by the
// agent's commands cause no Beat.
type Beat struct{ Profile Profile }

func (Beat) event() {}

// beatOf parses the value of updated_at in a state file: the time of the last write (contract, section 6). Only a gateway writes
// this time as text. A command writes a number, for which beatOf returns the zero time.
func beatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	at, _ := isoTime(text)
	return at
}

// isoTime parses an ISO 8601 time, with or without fractions of a second. A time without a zone is taken as UTC.
func isoTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", text)
	}
	return at, err
}
