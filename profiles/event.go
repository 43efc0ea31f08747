package profiles

// Event is a message of [Store.Watch]: one of [Appeared], [Disappeared], [StateChanged], [Beat], [InputsChanged], [Warned].
type Event interface{ event() }

// Appeared reports a new profile: a directory with the marker and a possible name.
type Appeared struct{ Profile Profile }

// Disappeared reports that the directory of a profile is gone, or was replaced by a symbolic link. The loss of the marker alone
// is no Disappeared, because an editor may replace the marker. A directory that is removed and made again between two scans
// doesn't disappear.
type Disappeared struct{ Profile Profile }

// StateChanged reports a change of gateway_state.json that [State.Equal] detects. The first scan reports every file that exists.
// State is zero for a missing or unusable file.
type StateChanged struct {
	Profile Profile
	State   State
}

// InputsChanged reports a change of config.yaml, .env or the marker, for a profile with [Watcher.Interest].
type InputsChanged struct {
	Profile Profile
	Hash    Hash
}

// Warned reports a warning that the last scan did not have.
type Warned struct{ Warning Warning }

func (Appeared) event()      {}
func (Disappeared) event()   {}
func (StateChanged) event()  {}
func (InputsChanged) event() {}
func (Warned) event()        {}
