package client

import (
	"slices"
	"time"
)

// The states of [Service.State].
const (
	StateDown      = "down"      // no process, and no pending start
	StateWaiting   = "waiting"   // the service waits for another service that it needs, or for its turn to start
	StateStarting  = "starting"  // hinit is starting the process
	StateUp        = "up"        // the main process runs
	StateStopping  = "stopping"  // hinit ends the process, or its leftovers
	StateKilling   = "killing"   // hinit has sent SIGKILL, and processes are left
	StateFinishing = "finishing" // the main process has ended, and the finish command runs
	StateBackoff   = "backoff"   // the service waits for its restart delay
	StateParked    = "parked"    // the service is wanted up, but stays down until its configuration changes or an operator starts it
	StateFailed    = "failed"    // the service cannot be started as defined; an operator or a reload must act
)

// The values of [Service.Want].
const (
	WantUp   = "up"
	WantDown = "down"
)

// The values of [Service.Kind].
const (
	KindGateway = "gateway" // the gateway of a profile
	KindService = "service" // any other service
	KindCmd     = "cmd"     // the container's CMD
)

// StatusVersion is the version of the status document. It changes only if a key gets another meaning, and not if a key is added.
const StatusVersion = 1

// FormatTable is the value of the query parameter "as" that asks for the status as a table. The header ServicesDownHeader of the
// answer contains the number of services in the table that are not up.
const (
	FormatTable        = "table"
	ServicesDownHeader = "Hinit-Down"
)

// MediaTypeText is the value of the header Accept that asks for text instead of JSON. The answer to start, stop and restart is
// then the message that the command line prints. If the request fails, the text is the error message, and the header ErrorHeader
// has the kind of the error.
const (
	MediaTypeText = "text/plain"
	ErrorHeader   = "Hinit-Error"
)

// Status is the status document.
type Status struct {
	Version  int       `json:"version"`  // version of the document
	Init     Init      `json:"init"`     // hinit, the CMD and the boot
	Services []Service `json:"services"` // services, without the container's CMD unless the request names it
}

// Find returns the service with this name, or nil.
func (s *Status) Find(name string) *Service {
	i := slices.IndexFunc(s.Services, func(one Service) bool { return one.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Services[i]
}

// Init is the state of hinit itself. Times are in UTC, in whole milliseconds.
type Init struct {
	PID            int           `json:"pid"`
	Version        string        `json:"version"`
	StartedAt      time.Time     `json:"started_at"`
	Home           string        `json:"home"`            // data directory
	ServicesFile   string        `json:"plain,omitempty"` // configuration file of hinit run
	Subreaper      bool          `json:"subreaper"`       // hinit is not PID 1, but adopts orphans
	UptimeSeconds  float64       `json:"uptime_seconds"`
	Stopping       bool          `json:"stopping"` // the container is shutting down
	OrphansReaped  uint64        `json:"orphans"`  // reaped orphans
	Goroutines     int           `json:"goroutines"`
	Cmd            *Cmd          `json:"cmd"`               // CMD of the container; null if there is none
	Warnings       []string      `json:"warnings"`          // warnings for people, such as low limits
	Booting        bool          `json:"booting,omitempty"` // the boot still runs, so some services are missing
	Hook           *BootHook     `json:"hook,omitempty"`    // newest running hook
	Boot           []BootStep    `json:"boot"`
	BootProfiles   *BootProfiles `json:"boot_profiles,omitempty"` // progress with the profiles during boot
	Binary         string        `json:"binary"`                  // file of the running program
	BinaryID       string        `json:"binary_id,omitempty"`     // value that changes when this file is replaced
	Generation     int           `json:"image"`                   // number of the running program: 1 at first, one more after each re-execution
	ReexecError    string        `json:"reexec_error"`            // why the last re-execution failed
	Lease          *Lease        `json:"lease"`                   // lock of the data volume; null if the container only runs the dashboard
	Repair         *Repair       `json:"repair"`                  // background repair of file ownership; null without one
	FirstOOMVictim string        `json:"oom_first,omitempty"`     // service that the kernel ends first when memory runs out; "" when unknown
}

// BootProfiles describes how far the boot has got with the profiles.
type BootProfiles struct {
	Profiles int `json:"profiles"`
	Done     int `json:"done"` // profiles whose gateways are registered and, if wanted, started
}

// Lease describes which hinit serves the data volume.
type Lease struct {
	State  string       `json:"state"`  // held, waiting or none
	Since  time.Time    `json:"since"`  // time at which the state began
	Holder *LeaseHolder `json:"holder"` // process with the lock for which hinit waits; null if hinit does not wait
	// hinit waits for the lock; otherwise (HINIT_STANDBY=0) it exits
	Standby bool   `json:"standby"`
	Detail  string `json:"detail"` // why hinit has no lock
}

// The states of a lease.
const (
	LeaseHeld    = "held"    // this hinit holds the lock
	LeaseWaiting = "waiting" // another process has the lock, or the volume does not answer; only the CMD runs
	LeaseNone    = "none"    // the volume can't be locked, or hinit has not tried yet
)

// LeaseHolder is the process that has the lock of the data volume. host and since come from a file that the agent can write.
type LeaseHolder struct {
	Host    string    `json:"host"`              // host of the last hinit with the lock; "" when unknown
	Since   time.Time `json:"since"`             // when that hinit took the lock
	PID     int       `json:"pid,omitempty"`     // process of this container with the lock, if it is no hinit
	Command string    `json:"command,omitempty"` // name of that process
}

// Repair says how far the repair of file ownership in the background has got.
type Repair struct {
	Directory  string  `json:"directory"`          // directory reached so far
	Examined   int64   `json:"seen" reexec:"Seen"` // files and directories examined
	Changed    int64   `json:"changed"`            // files given to the agent's user
	Failed     int64   `json:"failed"`
	Done       bool    `json:"done"`
	Seconds    float64 `json:"seconds"`                  // duration, once done
	StopReason string  `json:"stopped" reexec:"Stopped"` // reason for an early end; "" after a normal end
}

// Cmd describes the container's CMD.
type Cmd struct {
	Argv  []string  `json:"argv"`
	PID   int       `json:"pid"` // process id, 0 when the CMD does not run
	Since time.Time `json:"since"`
	// a signal (Ctrl-Z) has stopped the CMD
	Stopped bool `json:"stopped"`
}

// BootHook is a boot hook that is running.
type BootHook struct {
	Name    string  `json:"name"`
	Number  int     `json:"number"` // number of the hook; the first is 1
	Total   int     `json:"of"`
	Seconds float64 `json:"seconds"`
}

// BootStep is one step of the container's start.
type BootStep struct {
	Name     string  `json:"name"`
	Seconds  float64 `json:"seconds"`
	Error    string  `json:"error"`                  // why the step failed, "" when it succeeded
	Skipped  bool    `json:"skipped"`                // the step did not run, because its inputs are unchanged
	Parallel bool    `json:"beside" reexec:"Beside"` // the step ran in parallel with the step before
}

// The values of [Service.ServedBy]: which gateway serves the profile. The gateway of the default profile may serve other
// profiles, too.
const (
	ServedByDefault         = "default"            // the gateway of the default profile, as it has reported
	ServedByDefaultExpected = "default (expected)" // the gateway of the default profile should serve the profile, but has not reported it yet
	ServedByItself          = "itself"             // the profile's own gateway
	ServedByBoth            = "itself and default" // both gateways serve the profile, which is a fault
	ServedByNone            = "none"               // no gateway serves the profile, although one should, which is a fault
)

// Service is the state of one service.
type Service struct {
	Name                string     `json:"name"`    // name of the service, such as gateway-coder
	Profile             string     `json:"profile"` // profile; "" for a service without one
	Group               string     `json:"group,omitempty"`
	Kind                string     `json:"kind"`                  // gateway, service or cmd
	State               string     `json:"state"`                 // state of the service, such as up
	Want                string     `json:"want"`                  // desired state: up or down
	PID                 int        `json:"pid"`                   // main process, 0 when there is none
	Since               time.Time  `json:"since"`                 // time at which the state began
	UptimeSeconds       float64    `json:"uptime_seconds"`        // seconds since the start; 0 if the service is not up
	Restarts            int        `json:"restarts"`              // automatic restarts
	ConsecutiveFailures int        `json:"consecutive_failures"`  // exits in a row soon after a start
	NextStart           *time.Time `json:"next_start"`            // next start; null if none is planned
	CrashLoop           bool       `json:"crash_loop"`            // the service had too many exits soon after a start
	Ready               bool       `json:"ready"`                 // the service has reported readiness, or is up and can't report it
	ReportsReadiness    bool       `json:"announces"`             // the service reports readiness
	LastExit            *Exit      `json:"last_exit"`             // last exit; null before the first one
	Log                 string     `json:"log"`                   // current log file, "" when it has none
	Reason              string     `json:"reason"`                // reason of the state, for people
	Problem             string     `json:"problem"`               // fault of the service, for people; "" without one
	ServedBy            string     `json:"served_by,omitempty"`   // which gateway serves the profile, with a multiplexer
	StatusText          string     `json:"status_text,omitempty"` // text from the service (STATUS= of sd_notify)
	MemoryBytes         uint64     `json:"memory_bytes"`          // resident memory of the main process, 0 when unknown
	Command             []string   `json:"command"`               // command of the current or next run
	Needs               []string   `json:"needs"`                 // services that the service waits for
	RunNumber           uint64     `json:"run"`                   // number of the current or last run, 0 before the first
	Paused              bool       `json:"paused"`                // a signal such as SIGSTOP has stopped the service
	Expected            bool       `json:"expected,omitempty"`    // the boot has not registered the service yet
	Checks              []Check    `json:"checks,omitempty"`      // checks of the service; missing if there are none
	Drifted             bool       `json:"drifted"`               // the service runs with an older configuration until a restart
	Task                bool       `json:"task,omitempty"`        // the service is a task, which ends by itself
	Done                bool       `json:"done,omitempty"`        // the last run ended by itself with exit code 0
	NextRun             *time.Time `json:"next_run,omitempty"`    // next start by the schedule
	Restart             string     `json:"restart,omitempty"`     // restart policy: on-failure, on-success or never; missing: always

	// settings that differ from the defaults, if the request names the service
	Settings []ConfigEntry `json:"settings,omitempty"`

	ExitsByCause    map[string]int `json:"exits,omitempty"`     // exits by cause; the cause of the last exit may still change
	RestartsByCause map[string]int `json:"restarted,omitempty"` // restarts by the cause of the exit before
	Isolation       *Isolation     `json:"isolation,omitempty"` // isolation of the gateway; missing if the profile is not isolated
	Limits          []Limit        `json:"limits,omitempty"`    // limits that need a control group
	Output          *Output        `json:"output,omitempty"`    // counts of output lines; missing before the first line
}

// Isolation describes how a gateway is isolated from other profiles.
type Isolation struct {
	Mode string `json:"mode"` // mode of isolation: files or user
	// restrictions in force, such as uid 20001 and Landlock ABI 7
	Restrictions []string `json:"in_force"`
}

// HasOwnUser reports whether the service is the gateway of a profile that has its own Unix user. Only this user and root can then
// look into the profile's home.
func (s Service) HasOwnUser() bool { return s.Isolation != nil && s.Isolation.Mode == "user" }

// Limit is a resource limit of a service, and what enforces it in this container.
type Limit struct {
	Key        string `json:"key"`   // memory.high, memory.max, cpu.weight or pids.max
	Value      string `json:"value"` // value of the limit, as in the configuration
	EnforcedBy string `json:"by"`    // mechanism that enforces the limit: cgroup, supervision, nice, nproc, next-start or nothing
}

// The values of [Limit].By.
const (
	LimitedByGroup = "cgroup" // the kernel enforces the limit, in a control group for this service alone
	// LimitedByHinit: hinit enforces the limit every 5 s. It warns at memory.high, restarts the service at memory.max, and
	// restricts the service to fewer processors.
	LimitedByHinit       = "supervision"
	LimitedByNice        = "nice"       // a nice value takes the place of the weight
	LimitedByUser        = "nproc"      // the kernel counts the processes of the profile's own user
	LimitedFromNextStart = "next-start" // the limit applies from the next start on; the running process was started without it
	LimitedByNothing     = "nothing"    // the container can't have control groups
)

// Output counts what a service has written to its stdout and stderr.
type Output struct {
	Lines          uint64 `json:"lines"`
	Bytes          uint64 `json:"bytes"`
	Suppressed     uint64 `json:"suppressed"`      // lines suppressed by logs.rate_limit
	ConsoleDropped uint64 `json:"console_dropped"` // lines missing on the container's console
	FileLost       uint64 `json:"file_lost"`       // lines missing in the log file
	Error          string `json:"error,omitempty"` // current fault of the log file, "" without one
}

// Check is the last result of a health check.
type Check struct {
	Name       string     `json:"name"`
	Kind       string     `json:"kind"`  // kind of check: startup, ready or alive
	Type       string     `json:"type"`  // type of check: http, tcp, unix, exec, file, log, state, deaf, notify or watchdog
	State      string     `json:"state"` // state of the check: pending, passing, failing, skipped, on-hold or paused
	Since      time.Time  `json:"since"` // time at which the state began
	Failed     bool       `json:"failed"`
	Failures   int        `json:"failures"` // failed tests in a row
	Answer     string     `json:"answer"`   // last answer, for people; empty for clients that may not control hinit
	AnsweredAt *time.Time `json:"at"`       // time of the answer, null before the first one
}

// CheckPaused is the state of a check that an operator has paused.
const CheckPaused = "paused"

// CheckOnHold is the state of a check that waits until a startup check passes, or until the next run.
const CheckOnHold = "on-hold"

// Exit describes how a run ended, or why it could not start.
type Exit struct {
	Code          *int      `json:"code"`   // exit code; null after a signal, or if no process was started
	Signal        *int      `json:"signal"` // signal that ended the run; null if none did
	Cause         string    `json:"cause"`  // cause of the exit, such as crash or oom
	EndedAt       time.Time `json:"at" reexec:"At"`
	Tail          []string  `json:"tail"`                   // last log lines; empty for clients that may not control hinit
	TailPending   bool      `json:"tail_pending,omitempty"` // tail is not known yet
	Error         string    `json:"error"`                  // why the run did not start, "" if it did
	UptimeSeconds float64   `json:"uptime_seconds"`
	PID           int       `json:"pid"` // process id; 0 if no process was started
}

// StatusChange is one line of a stream of the status. The first line has all services. Each later line has the services that have
// changed since the line before; there may be none.
type StatusChange struct {
	IsComplete bool      `json:"whole,omitempty"` // Services has all services, in order; otherwise it has only changed ones
	Init       Init      `json:"init"`            // current state of hinit
	Services   []Service `json:"services"`        // never null; MemoryBytes, UptimeSeconds and FirstOOMVictim are the values at the time of this line
}

// Apply applies this line to st, so that st is up to date.
func (c StatusChange) Apply(st *Status) {
	oom := st.Init.FirstOOMVictim
	st.Version, st.Init = StatusVersion, c.Init
	if c.IsComplete {
		st.Services = c.Services
		return
	}
	st.Init.FirstOOMVictim = oom
	if len(c.Services) == 0 {
		return
	}
	place := make(map[string]int, len(st.Services))
	for i := range st.Services {
		place[st.Services[i].Name] = i
	}
	next := append([]Service(nil), st.Services...) // a reader may still use the old list
	for _, s := range c.Services {
		if i, is := place[s.Name]; is {
			next[i] = s
		}
	}
	st.Services = next
}

// WatchInterval is the longest time between two lines of a stream of the status.
const WatchInterval = 2 * time.Second
