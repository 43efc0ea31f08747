package boot

// Weigh asks what a profile has on the disk. Main is the main process of its gateway, 0 for none. Stopped says that the gateway was
// stopped for the quota, which is Warn and Stop in bytes, 0 for none.
type Weigh struct {
	Service, Profile  string
	Main              int
	Run               uint64
	Isolated, Stopped bool
	Warn, Stop        uint64
	Weight            int  // cpu.weight of the profile, 0 for the default
	Pinned            bool // its processors are configured
	Rank              int  // the order in which gateways get memory, the highest first
}

// Weighed has a note for the status of a gateway, the reason why it must not run, and the reason to restart it; "" for none. Bytes is the
// memory that it had when that was last recorded, Run the run that was measured.
type Weighed struct {
	Service, Note, Hold, Restart string
	Bytes, Run                   uint64
}

// The values of [Job].Measure.
const (
	MeasureDisk  = ""       // measure what profiles have on the disk
	MeasureShare = "share"  // see that none of them takes the processors and ports of the others
	RecordMemory = "record" // record the memory of their gateways for the next boot
	AdmitMemory  = "admit"  // say which gateways have no room, before they start
)
