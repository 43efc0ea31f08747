package profiles

// Event is a message of [Store.Watch]: one of [Appeared], [Disappeared], [StateChanged], [Beat], [InputsChanged], [Warned].
type Event interface{ event() }

// Appeared says that there is a new profile: a directory with the marker, and a name a profile can have.
type Appeared struct{ Profile Profile }

// Disappeared says that the directory of a profile is gone, or is a symbolic link now. A missing marker alone is no reason: an
// editor that replaces it must not stop a gateway. A directory that is removed and made again between two scans hasn't disappeared.
type Disappeared struct{ Profile Profile }

// StateChanged says that gateway_state.json has changed in any field of [State] but Written and Beat, or exists at the first scan. A file
// that is gone or unusable is the zero State.
type StateChanged struct {
	Profile Profile
	State   State
}

// InputsChanged says that config.yaml, .env or the marker changed, for a profile that [Watcher.Interest] named.
type InputsChanged struct {
	Profile Profile
	Hash    Hash
}

// Warned is a warning that the last scan did not have.
type Warned struct{ Warning Warning }

func (Appeared) event()      {}
func (Disappeared) event()   {}
func (StateChanged) event()  {}
func (InputsChanged) event() {}
func (Warned) event()        {}
