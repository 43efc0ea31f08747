package boot

// Gateway describes a gateway for the work [Job].Measure. Main is the PID of its main process, 0 for none. Stopped says that it
// was stopped because of its disk quota. Warn and Stop are the limits of this quota in bytes, 0 for none.
type Gateway struct {
	Service, Profile  string
	Main              int
	Run               uint64
	Isolated, Stopped bool
	Warn, Stop        uint64
	Weight            int  // cpu.weight of the profile; 0 for the default
	Pinned            bool // the configuration says on which processors it runs
	Rank              int  // gateways with a higher rank get memory first
}

// Measurement is the result for one gateway. Note is a text for its status. Hold is why it must not run, and Restart is why it
// must be restarted; both are "" if there is no reason. Bytes is its memory use in the last record. Run is the run that was
// measured.
type Measurement struct {
	Service, Note, Hold, Restart string
	Bytes, Run                   uint64
}

// The values of [Job].Measure: what to measure about the gateways.
const (
	MeasureDisk  = ""       // measure the disk use of profiles
	MeasureShare = "share"  // keep profiles from using the processors and ports of others
	RecordMemory = "record" // record how much memory the gateways use, for the next boot
	AdmitMemory  = "admit"  // before the gateways start: find those for which there is not enough memory
)
