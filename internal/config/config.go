package config

import (
	"math"
	"syscall"
	"time"
)

// DefaultPath is the default configuration file. [Options] or HINIT_CONFIG may name another one.
const DefaultPath = "/etc/hinit/hinit.yaml"

// Config is the whole configuration, checked and complete. Its fields mirror the keys of hinit.yaml.
type Config struct {
	Home      string // data directory, absolute and clean: home of the root profile
	Agent     Agent
	Profiles  Profiles
	Restart   Restart
	Stop      Stop
	Start     Start
	Isolation Isolation // of every gateway, see [Config.IsolationOf]
	Shutdown  Shutdown
	Logs      Logs
	Services  map[string]Service // by name; all supervised processes except for the gateways
	Runs      map[string]Run     // by name; commands that a client may run once
	Boot      Boot
	Control   Control
	Image     Image
	On        Actions // actions after events of services, unless the service or its profile has its own for the event

	// Path is the file that was read, empty when there was none.
	Path string
	// Text is the content of that file.
	Text []byte
	// Warnings are remarks on a valid configuration, one line each.
	Warnings []string

	origins map[string]origin // places of the values that are not defaults
	plain   bool              // for hinit run, which uses plainDefaults
}

// Agent says how the hosted agent runs. The commands, Cwd and the values of Env are templates for [Config.Expand].
type Agent struct {
	User           string   // name, uid, or user:group, of every gateway and of the CMD
	Binary         string   // absolute path: {agent} in templates, and the program that the exec shim runs
	Gateway        []string // command of a named profile's gateway
	GatewayDefault []string // command of the root profile's gateway
	Cwd            string
	Env            map[string]string // set on top of the container's environment
	Ready          string            // one of the Ready constants
	Settle         time.Duration     // time up after which a service without a readiness message counts as started
	ProfileCreate  []string          // command; empty: hinit creates a profile by itself
	ProfileDelete  []string          // command; empty: hinit deletes a profile by itself
	ProfileRename  []string          // command; empty: hinit renames a profile by itself
	Setup                            // of every gateway
	Checks         []Check           // of every gateway
	Deaf           Deaf
	On             Actions // of every gateway
}

// Deaf configures the check for gateways that are up and take no messages.
type Deaf struct {
	Action string        // one of [OnReport], [OnRestart], [DeafOff]; a profile's is in [Profile].Deaf
	After  time.Duration // shortest silence that is a sign
	Period time.Duration // time between two checks of all gateways
}

// These are further values of [Deaf].Action.
const (
	DeafOff     = "off"   // hinit does not watch the gateway
	DeafByCheck = "check" // a check of the type deaf acts instead; no file can name this value
)

// The values of [Agent].Ready: when a gateway counts as ready.
const (
	ReadyState = "state-file" // gateway_state.json says that this process is running
	ReadyUp    = "up"         // its process runs
)

// Profiles says how a profile is recognised on disk.
type Profiles struct {
	Marker string // name of the file that makes a directory a profile
	Max    int    // limits the supervised profiles besides the root profile, and also the watched directories without the marker
	UIDs   string // the range of user ids for profiles with [IsolationUser], see [Config.UIDRange]

	Own map[string]Profile // settings of single profiles by name; see [Config.ProfileOf]
}

// Restart is the policy for a process that ends without an order.
type Restart struct {
	Initial         time.Duration // delay before the first restart
	Factor          float64       // factor between two delays; at least 1
	Max             time.Duration // longest delay; at least Initial
	Jitter          float64       // each delay is varied by up to this part of it, 0 to 0.5
	ResetAfter      time.Duration // time up after which a run counts as healthy: the next restart is immediate, later ones begin at Initial
	ParkOn          []int         // exit codes after which the service is parked
	ImmediateOn     []int         // exit codes after which it restarts at once, without counting a failure
	SuccessCodes    []int         // exit codes besides 0 that count as success
	CrashLoopCount  int           // number of exits within CrashLoopWindow that counts as a crash loop
	CrashLoopWindow time.Duration

	Policy            string        // one of the Restart constants: the ends after which it restarts
	MaxRestarts       int           // number of restarts within MaxRestartsWindow after which it does not restart any more; 0: no limit
	MaxRestartsWindow time.Duration //
}

// Stop says how one service is stopped.
type Stop struct {
	Signal syscall.Signal // the first signal
	Grace  time.Duration  // time before SIGKILL follows
}

// Start says how gateways start.
type Start struct {
	Parallel string // number of gateways that start at the same time, or ParallelAuto for the number of processors
}

// ParallelAuto is the default of Start.Parallel.
const ParallelAuto = "auto"

// Shutdown says how the container is stopped.
type Shutdown struct {
	Budget time.Duration // time for the whole shutdown, KILL included
}

// Logs says where the output of gateways and services goes.
type Logs struct {
	LogLimits        // limits of every log without its own
	Dir       string // absolute; it has one directory for each profile
	Console   string // one of the Console constants
	MaxLineKB int    // a longer line is split

	// ConsoleStall is how long the reader of the console may pause before the console drops lines. 0: no service waits for the
	// reader.
	ConsoleStall time.Duration

	Mask     bool                 // secrets are not shown on the console
	Profiles map[string]LogLimits // limits of single profiles by name
}

// LogLimits bound one log.
type LogLimits struct {
	MaxSizeMB int           // size at which a file is rotated
	Archives  int           // rotated files kept; 0 keeps none
	MaxAge    time.Duration // after which a rotated file is removed; 0: never
	QuotaMB   int           // of all files of the log together; 0: no limit
	MinFreeMB int           // least free space: with less, no file is written; 0: no limit
	RateLimit int           // most lines a second; 0: no limit
	Compress  string        // one of the Compress constants
}

// The values of [LogLimits].Compress.
const (
	CompressNone = "none"
	CompressGzip = "gzip"
)

// LogLimitsOf returns the limits of a profile's log.
func (c *Config) LogLimitsOf(profile string) LogLimits {
	if limits, own := c.Logs.Profiles[profile]; own {
		return limits
	}
	return c.Logs.LogLimits
}

// The values of [Logs].Console: the form of the services' output on the container's stdout and stderr.
const (
	ConsoleRaw      = "raw"      // unchanged bytes
	ConsolePrefixed = "prefixed" // the name of the service before each line
	ConsoleJSON     = "json"     // one JSON object a line
	ConsoleOff      = "off"      // nothing; files only
)

// Service is one supervised process that is no gateway. Command, Cwd and Env are final: their templates are expanded, and missing
// keys are inherited from the rest of the configuration.
type Service struct {
	Name      string
	Command   []string
	Enabled   bool   // result of EnabledBy and the key "enabled"
	EnabledBy string // environment variable that switches it on, or ""
	User      string
	Cwd       string
	Env       map[string]string
	Restart   Restart
	Stop      Stop
	Log       bool // false: its output goes to the console only
	Logs      LogLimits
	Needs     []Need   // needs in force; an optional need that can't be met is left out
	RestartOn []string // names of services whose restart also restarts this one
	Task      Task
	Setup
	Checks []Check // with templates of their own, see [Config.Expand]
	Notify Notify
	On     Actions // its own actions
}

// Run is a command that a client may run once, as the agent's user. Command is a template for [Config.ExpandRun]; Env is expanded.
type Run struct {
	Command []string
	Env     map[string]string
	Limits  map[string]ResourceLimit // as in a [Service]
	Grace   time.Duration            // time between TERM and KILL
}

// Unlimited is the resource limit "unlimited" (RLIM_INFINITY of getrlimit(2)).
const Unlimited uint64 = math.MaxUint64

// Boot configures the boot: its hooks, and the effect of a failed step.
type Boot struct {
	Steps  string // [StepsHinit] or [StepsImage]
	Strict bool   // a failed step ends the boot
	Hooks  []Hook // in the order in which they run, before any service
}

// The values of [Boot].Steps: the boot steps that prepare the data directory.
const (
	StepsHinit = "hinit"
	StepsImage = "image" // the script 01-hermes-setup of the agent's image, which is in [ImageDir]
)

// Hook is a command that runs once at boot. Its templates are already expanded.
type Hook struct {
	Command  []string
	User     string        // a name, a uid or user:group
	Timeout  time.Duration // limit, after which it is killed and counts as failed
	Required bool          // its failure ends the boot, even if Boot.Strict is false
	IfExists string        // it runs only if this file exists; empty: always

	// Inputs are absolute paths and globs of the files that the hook reads and writes. It runs only if one of them has changed since
	// its last success. If Inputs is empty, it runs at every boot.
	Inputs []string
}

// Control configures the control socket.
type Control struct {
	Socket string // absolute path
	Others string // one of the Others constants
}

// The values of [Control].Others: the rights of users other than root and the agent's user on the control socket.
const (
	OthersStatus = "status" // read the status
	OthersNone   = "none"   // refuse every request
)
