package boot

// Gateway asks for a measurement of the gateway of one profile, see [Job].Measure. Main is its main process, 0 for none. Stopped
// says that it was stopped for the quota, which is Warn and Stop in bytes, 0 for none.
type Gateway struct {
	Service, Profile  string
	Main              int
	Run               uint64
	Isolated, Stopped bool
	Warn, Stop        uint64
	Weight            int  // cpu.weight of the profile, 0 for the default
	Pinned            bool // its processors are configured
	Rank              int  // the order in which gateways get memory, the highest first
}

// Measurement is the result for one gateway: a note for its status, the reason why it must not run, and the reason to restart it; ""
// for none. Bytes is its memory by the last record. Run is the measured run.
type Measurement struct {
	Service, Note, Hold, Restart string
	Bytes, Run                   uint64
}

// The values of [Job].Measure.
const (
	MeasureDisk  = ""       // measure the disk usage of profiles
	MeasureShare = "share"  // keep profiles from taking the processors and ports of others
	RecordMemory = "record" // record the memory of their gateways for the next boot
	AdmitMemory  = "admit"  // find the gateways without room before they start
)
