package profiles

// Event is a change that [Store.Watch] reports to WatchOptions.Notify. It is one of [Appeared], [Disappeared], [StateChanged],
// [Beat], [InputsChanged], [Warned].
type Event interface{ event() }

// Appeared reports a new profile: a directory that has the marker and a valid name.
type Appeared struct{ Profile Profile }

// Disappeared reports that the directory of a profile is gone, or was replaced by a symbolic link. The loss of the marker alone
// does not count, because an editor may replace the marker file. A directory that is removed and created again between two scans
// isn't reported.
type Disappeared struct{ Profile Profile }

// StateChanged reports that gateway_state.json changed in a way that [State.Equal] detects. The first scan reports every file
// that exists. State is zero for a missing or unusable file.
type StateChanged struct {
	Profile Profile
	State   State
}

// InputsChanged reports that config.yaml, .env or the marker of a profile changed. The watcher reports it only for profiles for
// which [Watcher.Interest] was called.
type InputsChanged struct {
	Profile Profile
	Hash    Hash
}

// Warned reports a warning that the previous scan did not have.
type Warned struct{ Warning Warning }

func (Appeared) event()      {}
func (Disappeared) event()   {}
func (StateChanged) event()  {}
func (InputsChanged) event() {}
func (Warned) event()        {}
