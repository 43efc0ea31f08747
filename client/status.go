package client

import "time"

// The states of [Service.State].
const (
	StateDown      = "down"      // not running, nothing pending
	StateWaiting   = "waiting"   // wanted up, a need is not met yet
	StateStarting  = "starting"  // being spawned
	StateUp        = "up"        // its main process runs
	StateStopping  = "stopping"  // told to end, or its main process is gone and what it left behind is told to end
	StateKilling   = "killing"   // sent SIGKILL, not gone yet
	StateFinishing = "finishing" // its main process is gone, and the finish command that it has for that runs
	StateBackoff   = "backoff"   // wanted up, waits before the next start
	StateParked    = "parked"    // wanted up, but starting again is pointless until its inputs change or an operator asks
	StateFailed    = "failed"    // cannot be started as defined; an operator or a reload has to act
)

// The values of [Service.Want].
const (
	WantUp   = "up"
	WantDown = "down"
)

// The kinds of [Service.Kind].
const (
	KindGateway = "gateway" // the gateway of a profile
	KindService = "service" // any other service
	KindCmd     = "cmd"     // the container's CMD
)

// StatusVersion is the version of the status document. It changes only when a key loses its meaning; keys may be added
// at any time.
const StatusVersion = 1

// AsTable is the value of the parameter "as" for a status as a table. Then the header DownHeader has the number of services that
// are not up.
const (
	AsTable    = "table"
	DownHeader = "Hinit-Down"
)

// Text in the header Accept asks for text instead of JSON. After start, stop and restart this is the message of the command line.
// For an error it is the message, and the header ErrorHeader has its kind.
const (
	Text        = "text/plain"
	ErrorHeader = "Hinit-Error"
)

// Status is the status document. No list in it is null.
type Status struct {
	Version  int       `json:"version"`  // StatusVersion, which is 1
	Init     Init      `json:"init"`     // hinit, its CMD and the boot
	Services []Service `json:"services"` // without the container's CMD, unless it was asked for by name
}

// Init describes hinit itself. Times are UTC in milliseconds.
type Init struct {
	PID           int           `json:"pid"`
	Version       string        `json:"version"`
	StartedAt     time.Time     `json:"started_at"`
	Home          string        `json:"home"`            // the agent's home, which holds the profiles
	Plain         string        `json:"plain,omitempty"` // file with the services of a plain supervisor, which has no agent
	Subreaper     bool          `json:"subreaper"`       // it is not PID 1 and adopts orphans as a subreaper
	UptimeSeconds float64       `json:"uptime_seconds"`
	Stopping      bool          `json:"stopping"`                // the container is shutting down
	Orphans       uint64        `json:"orphans"`                 // orphans that were reaped
	Goroutines    int           `json:"goroutines"`              // of hinit itself; without a reason they do not become more
	Cmd           *Cmd          `json:"cmd"`                     // null when the container has no CMD
	Warnings      []string      `json:"warnings"`                // what hinit cannot do in this container, for people
	Booting       bool          `json:"booting,omitempty"`       // not all services are known yet
	Hook          *BootHook     `json:"hook,omitempty"`          // that the boot runs now; of several the one that began last
	Boot          []BootStep    `json:"boot"`                    // in the order they ran
	BootProfiles  *BootProfiles `json:"boot_profiles,omitempty"` // missing when the profiles are done, or not read yet
	Binary        string        `json:"binary"`                  // file that the running program was started from
	BinaryID      string        `json:"binary_id,omitempty"`     // tells that file from another one that was put in its place
	Image         int           `json:"image"`                   // 1 for the program the container was started with, one more for each re-execution
	ReexecError   string        `json:"reexec_error"`            // why the last re-execution that was asked for did not come about
	Lease         *Lease        `json:"lease"`                   // of the data volume; null in a container that is for the dashboard alone
	Repair        *Repair       `json:"repair"`                  // of file ownership, in the background; null when there is none
	OOMFirst      string        `json:"oom_first,omitempty"`     // the service whose main process the kernel takes first when memory runs out; "" when that is not known, or names were given
}

// BootProfiles is how many profiles the boot has handled.
type BootProfiles struct {
	Profiles int `json:"profiles"` // that there are
	Done     int `json:"done"`     // whose gateways are known, and started if they are wanted
}

// Lease says which hinit supervises the profiles of the data volume.
type Lease struct {
	State   string       `json:"state"`   // held, waiting or none
	Since   time.Time    `json:"since"`   // of the state
	Holder  *LeaseHolder `json:"holder"`  // the process that this hinit waits for; null when it waits for none, or the volume does not answer
	Standby bool         `json:"standby"` // this hinit waits for the lock; without, it ends (HINIT_STANDBY=0)
	Detail  string       `json:"detail"`  // what it waits for, or why it has no lock, for people
}

// The states of a lease.
const (
	LeaseHeld    = "held"    // by this hinit
	LeaseWaiting = "waiting" // another process has the lock, or the volume does not answer; only the CMD runs
	LeaseNone    = "none"    // the volume can't be locked, or was not asked yet
)

// LeaseHolder describes the process that has the lock of the data volume. Host and Since are from a note on the volume,
// which the agent can write: they are shown and decide nothing.
type LeaseHolder struct {
	Host    string    `json:"host"`              // of the last hinit that took the lock; "" when that is not known
	Since   time.Time `json:"since"`             // when it took the lock
	PID     int       `json:"pid,omitempty"`     // the process of this container that has the lock, if it is no hinit
	Command string    `json:"command,omitempty"` // its name
}

// Repair is the progress of the background repair of file ownership.
type Repair struct {
	Directory string  `json:"directory"` // where it is
	Seen      int64   `json:"seen"`      // files and directories looked at
	Changed   int64   `json:"changed"`   // given to the agent's user
	Failed    int64   `json:"failed"`
	Done      bool    `json:"done"`
	Seconds   float64 `json:"seconds"` // that it took, once it is done
	Stopped   string  `json:"stopped"` // why it ended early, "" when it did not
}

// Cmd is the container's CMD.
type Cmd struct {
	Argv  []string  `json:"argv"`
	PID   int       `json:"pid"` // 0 when it does not run
	Since time.Time `json:"since"`
	// Stopped by a signal (Ctrl-Z); SIGCONT continues it.
	Stopped bool `json:"stopped"`
}

// BootHook is a hook of the boot that runs.
type BootHook struct {
	Name    string  `json:"name"`
	Number  int     `json:"number"` // from 1
	Of      int     `json:"of"`     // so many there are; some may have nothing to do
	Seconds float64 `json:"seconds"`
}

// BootStep is one step of the container's start.
type BootStep struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error"`   // "" when it went well
	Skipped bool    `json:"skipped"` // it did not run, because nothing that it depends on has changed
	Beside  bool    `json:"beside"`  // it ran at the same time as the one before it
}

// The values of ServedBy.
const (
	ServedByDefault = "default"            // the gateway of the default profile says so
	ServedExpected  = "default (expected)" // it has not said so
	ServedItself    = "itself"             // the profile's own gateway
	ServedTwice     = "itself and default" // a fault: both
	ServedByNone    = "none"               // a fault: the profile is wanted, and neither does
)

// Service is the state of one service.
type Service struct {
	Name                string     `json:"name"`                  // gateway-coder, dashboard
	Profile             string     `json:"profile"`               // "" when it belongs to no profile
	Group               string     `json:"group,omitempty"`       // of the configuration: its name in commands is @GROUP
	Kind                string     `json:"kind"`                  // gateway, service, or cmd for the container's CMD
	State               string     `json:"state"`                 // down, waiting, starting, up, stopping, killing, finishing, backoff, parked or failed
	Want                string     `json:"want"`                  // "up" or "down", what was asked for
	PID                 int        `json:"pid"`                   // main process, 0 when there is none
	Since               time.Time  `json:"since"`                 // of the state
	UptimeSeconds       float64    `json:"uptime_seconds"`        // how long it has been up, 0 in any other state
	Restarts            int        `json:"restarts"`              // starts after an exit without an order
	ConsecutiveFailures int        `json:"consecutive_failures"`  // fast exits in a row
	NextStart           *time.Time `json:"next_start"`            // when it starts by itself, null when it does not
	CrashLoop           bool       `json:"crash_loop"`            // too many fast exits; it goes on at the longest delay
	Ready               bool       `json:"ready"`                 // it has said that it works, or it is up and can't say so
	Announces           bool       `json:"announces"`             // it says itself when it is ready; anything else is ready while it is up
	LastExit            *Exit      `json:"last_exit"`             // null before the first exit
	Log                 string     `json:"log"`                   // path of its current log file, "" when it has none
	Reason              string     `json:"reason"`                // why it is in this state, for people
	Problem             string     `json:"problem"`               // what people should know of it besides: why it isn't ready or loops, or what is wrong though it is up; "" when nothing is
	ServedBy            string     `json:"served_by,omitempty"`   // who serves its profile where one gateway serves several: default, default (expected), itself, itself and default, or none
	StatusText          string     `json:"status_text,omitempty"` // what the running service says that it does (STATUS= of sd_notify); no sign of trouble
	MemoryBytes         uint64     `json:"memory_bytes"`          // resident memory of the main process, 0 when unknown
	Command             []string   `json:"command"`               // that runs, or would be run
	Needs               []string   `json:"needs"`                 // what it waits for
	Run                 uint64     `json:"run"`                   // number of the current or last run, 0 before the first
	Paused              bool       `json:"paused"`                // a signal has stopped its process, such as SIGSTOP
	Expected            bool       `json:"expected,omitempty"`    // the boot has not come to it yet; commands for it wait for that
	Checks              []Check    `json:"checks,omitempty"`      // what the checks of the configuration say; missing where it has none
	Drifted             bool       `json:"drifted"`               // it runs as an older configuration says; a restart applies the newer one
	Task                bool       `json:"task,omitempty"`        // it ends by itself
	Done                bool       `json:"done,omitempty"`        // its last run ended by itself with exit code 0
	NextRun             *time.Time `json:"next_run,omitempty"`    // when its schedule starts it next
	Restart             string     `json:"restart,omitempty"`     // after which ends it is started again: on-failure, on-success or never; missing: all

	// Settings are what is settled for it about its user, limits, end and order, as far as that differs from the built-in defaults. They are there
	// only where the service was asked for by name.
	Settings []ConfigEntry `json:"settings,omitempty"`

	Exits     map[string]int `json:"exits,omitempty"`     // how often it has ended, by cause; the cause of last_exit may still change
	Restarted map[string]int `json:"restarted,omitempty"` // the restarts, by the cause of the exit before them
	Isolation *Isolation     `json:"isolation,omitempty"` // of a gateway whose profile has isolation
	Output    *Output        `json:"output,omitempty"`    // what it has written; missing before it has written anything
}

// Isolation lists the restrictions of a gateway.
type Isolation struct {
	Mode    string   `json:"mode"`     // files or user, as the configuration says
	InForce []string `json:"in_force"` // what the kernel says of its process, such as uid 20001, Landlock ABI 7, seccomp and no_new_privs; empty: nothing is in force
}

// Output counts what a service has written to its stdout and stderr.
type Output struct {
	Lines          uint64 `json:"lines"`           // read from it
	Bytes          uint64 `json:"bytes"`           // of these lines
	Suppressed     uint64 `json:"suppressed"`      // lines that were left out because of logs.rate
	ConsoleDropped uint64 `json:"console_dropped"` // lines that the container's own log lacks
	FileLost       uint64 `json:"file_lost"`       // lines that the log file lacks
	Error          string `json:"error,omitempty"` // the fault of the log file, "" when there is none
}

// Check is the last result of one check of a service.
type Check struct {
	Name     string     `json:"name"`
	Kind     string     `json:"kind"`     // startup, ready or alive
	Type     string     `json:"type"`     // http, tcp, unix, exec, file, log, state, deaf, notify or watchdog
	State    string     `json:"state"`    // pending, passing, failing, skipped, on-hold or paused
	Since    time.Time  `json:"since"`    // of the state
	Failed   bool       `json:"failed"`   // it fails
	Failures int        `json:"failures"` // bad answers in a row
	Answer   string     `json:"answer"`   // the last one, for people; empty for callers that may not control hinit
	At       *time.Time `json:"at"`       // when it came, null before the first
}

// CheckPaused is the state of a check that an operator has paused.
const CheckPaused = "paused"

// CheckHeld is the state of a check that waits for a start-up check, or for the next run.
const CheckHeld = "on-hold"

// Exit is how a run ended, or why it could not begin.
type Exit struct {
	Code          *int      `json:"code"`   // null when a signal ended it or it never ran
	Signal        *int      `json:"signal"` // number of the signal that ended it, null when none did
	Cause         string    `json:"cause"`  // crash, clean, config, oom, signal, operator, shutdown, spawn, replaced, health or lease
	At            time.Time `json:"at"`
	Tail          []string  `json:"tail"`  // last log lines, oldest first; the last 3 where the lines of all services have over 1 MB; empty for callers that may not control hinit
	Error         string    `json:"error"` // why it could not be started, "" when it was
	UptimeSeconds float64   `json:"uptime_seconds"`
	PID           int       `json:"pid"` // 0 when it never ran
}
