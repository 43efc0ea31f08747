package boot

// Weigh asks what a profile has on the disk. Main is the main process of its gateway, 0 for none. Stopped says that the gateway was
// stopped for the quota, which is Warn and Stop in bytes, 0 for none.
type Weigh struct {
	Service, Profile  string
	Main              int
	Isolated, Stopped bool
	Warn, Stop        uint64
	Weight            int  // cpu.weight of the profile, 0 for the default
	Pinned            bool // its processors are configured
}

// Weighed has a note for the status of a gateway, the reason why it must not run, and the reason to restart it; "" for none.
type Weighed struct{ Service, Note, Hold, Restart string }
