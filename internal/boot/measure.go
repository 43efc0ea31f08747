package boot

// Gateway describes a gateway that [Job].Measure is about. Main is the number of its main process, 0 for none. Stopped says that
// it was stopped because of its quota. Warn and Stop are the limits of the quota in bytes, 0 for none.
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

// Measurement is the result for one gateway. Note is shown in its status. Hold is the reason for which it must not run, Restart
// the reason to restart it; each is "" for none. Bytes is its memory in the last record. Run is the run that was measured.
type Measurement struct {
	Service, Note, Hold, Restart string
	Bytes, Run                   uint64
}

// The values of [Job].Measure.
const (
	MeasureDisk  = ""       // measure the disk usage of profiles
	MeasureShare = "share"  // keep profiles from taking the processors and ports of others
	RecordMemory = "record" // record the memory of their gateways for the next boot
	AdmitMemory  = "admit"  // find the gateways for which there is no memory, before they start
)
