package config

import (
	"math"
	"syscall"
	"time"
)

// DefaultPath is the configuration file that is read when neither [Options] nor HINIT_CONFIG names one.
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
	Services  map[string]Service // by name; everything supervised besides the gateways
	Runs      map[string]Run     // by name; commands that a client may have run once
	Boot      Boot
	Control   Control
	Image     Image
	On        Actions // actions after events of services without actions of their own for the event

	// Path is the file that was read, empty when there was none.
	Path string
	// Text is the content of that file.
	Text []byte
	// Warnings are remarks on the configuration that do not keep it from being used, one line each.
	Warnings []string

	origins map[string]origin // where each value that is not a default came from
	plain   bool              // for hinit run: the defaults are plainDefaults
}

// Agent says how the hosted agent is run. The commands, Cwd and the values of Env are templates for [Config.Expand].
type Agent struct {
	User           string   // name, uid, or user:group, of every gateway and of the CMD
	Binary         string   // absolute path: {agent} in templates, and what the exec shim runs
	Gateway        []string // gateway of a named profile
	GatewayDefault []string // gateway of the root profile
	Cwd            string
	Env            map[string]string // set on top of the container's environment
	Ready          string            // one of the Ready constants
	Settle         time.Duration     // time up after which a service without a readiness message counts as started
	ProfileCreate  []string          // empty: hinit creates a profile by itself
	ProfileDelete  []string          // empty: hinit deletes a profile by itself
	ProfileRename  []string          // empty: hinit renames a profile by itself
	Setup                            // of every gateway
	Checks         []Check           // of every gateway
	Deaf           Deaf
	On             Actions // of every gateway, see [Config.ActionsOf]
}

// Deaf configures the check for gateways that are up and take no messages.
type Deaf struct {
	Action string        // one of [OnReport], [OnRestart], [DeafOff]; a profile's is in [Profile].Deaf
	After  time.Duration // shortest silence that is a sign
	Period time.Duration // time between two checks of all gateways
}

// Other values of [Deaf].Action.
const (
	DeafOff     = "off"   // the gateway is not watched
	DeafByCheck = "check" // a check of the type deaf acts; no file can say it
)

// The values of [Agent].Ready: when a gateway counts as ready.
const (
	ReadyState = "state-file" // when gateway_state.json says that this process is running
	ReadyUp    = "up"         // as soon as its process runs
)

// Profiles says how a profile is recognised on disk.
type Profiles struct {
	Marker string // name of the file that makes a directory a profile
	Max    int    // most profiles that are supervised beside the root one, and most directories without the marker that are watched
	UIDs   string // the range of user ids for profiles with [IsolationUser], see [Config.UIDRange]

	Own map[string]Profile // settings of single profiles by name; see [Config.ProfileOf]
}

// Restart is the policy for a process that ended without having been asked to.
type Restart struct {
	Initial         time.Duration // delay before the first restart
	Factor          float64       // factor between two delays; at least 1
	Max             time.Duration // longest delay; at least Initial
	Jitter          float64       // each delay is varied by up to this part of it, 0 to 0.5
	ResetAfter      time.Duration // time up after which a life was healthy: one restart at once, then from Initial
	ParkOn          []int         // exit codes that park instead of restarting
	ImmediateOn     []int         // exit codes that restart at once and count as no failure
	SuccessCodes    []int         // exit codes besides 0 that mean success
	CrashLoopCount  int           // so many exits within CrashLoopWindow are shown as a crash loop
	CrashLoopWindow time.Duration

	Policy            string        // one of the Restart constants: which ends it is restarted after
	MaxRestarts       int           // after so many restarts within MaxRestartsWindow the next end is the last; 0: no limit
	MaxRestartsWindow time.Duration //
}

// Stop says how one service is stopped.
type Stop struct {
	Signal syscall.Signal // the first signal
	Grace  time.Duration  // time until SIGKILL follows
}

// Start says how gateways start.
type Start struct {
	Parallel string // how many at the same time: a number, or ParallelAuto for as many as there are processors
}

// ParallelAuto is the default of Start.Parallel.
const ParallelAuto = "auto"

// Shutdown says how the container is stopped.
type Shutdown struct {
	Budget time.Duration // time for everything together, KILL included
}

// Logs says where the output of gateways and services goes.
type Logs struct {
	LogLimits        // of every log that doesn't say otherwise
	Dir       string // absolute; one directory a profile below it
	Console   string // one of the Console constants
	MaxLineKB int    // a longer line is split

	// ConsoleStall is how long the reader of the console may read nothing before the console drops lines; 0: no service waits for it.
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
	MinFreeMB int           // with less free space than that no file is written; 0: no limit
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

// The values of [Logs].Console: the form in which the services' output reaches the container's stdout and stderr.
const (
	ConsoleRaw      = "raw"      // the bytes as they came
	ConsolePrefixed = "prefixed" // each line after the name of its service
	ConsoleJSON     = "json"     // one JSON object a line
	ConsoleOff      = "off"      // nothing; files only
)

// Service is one supervised process besides the gateways. Command, Cwd and Env are final: their templates are already
// expanded, and missing keys are inherited from the rest of the configuration.
type Service struct {
	Name      string
	Command   []string
	Enabled   bool   // result of EnabledBy and the key "enabled"
	EnabledBy string // environment variable that decides, empty for none
	User      string
	Cwd       string
	Env       map[string]string
	Restart   Restart
	Stop      Stop
	Log       bool // false: console only, no log file of its own
	Logs      LogLimits
	Needs     []Need   // in force; an optional one that can't be met is left out
	RestartOn []string // names with which it is restarted
	Task      Task
	Setup
	Checks []Check // with templates of their own, see [Config.Expand]
	Notify Notify
	On     Actions // of its own, see [Config.ActionsOf]
}

// Run is a command that a client may have run once, as the agent's user. Command is a template for [Config.ExpandRun]; Env is expanded.
type Run struct {
	Command []string
	Env     map[string]string
	Limits  map[string]ResourceLimit // as in a [Service]
	Grace   time.Duration            // from TERM to KILL
}

// Unlimited is the resource limit "unlimited" (RLIM_INFINITY of getrlimit(2)).
const Unlimited uint64 = math.MaxUint64

// Boot configures the boot: further steps, and the effect of a failed one.
type Boot struct {
	Steps  string // [StepsHinit] or [StepsImage]
	Strict bool   // a boot step that fails ends the boot
	Hooks  []Hook // in the order they run, before any service
}

// The values of [Boot].Steps: whose boot steps prepare the data directory.
const (
	StepsHinit = "hinit"
	StepsImage = "image" // the script 01-hermes-setup of the agent's image, which is in [ImageDir]
)

// Hook is a command that runs once at boot. Its templates are already expanded.
type Hook struct {
	Command  []string
	User     string        // a name, a uid or user:group
	Timeout  time.Duration // after which it is killed and has failed
	Required bool          // its failure ends the boot, strict or not
	IfExists string        // it runs only when there is such a file; empty: always

	// Inputs are absolute paths and globs of the files that it reads and writes. It runs only when one of them has changed since
	// its last success. Empty: it runs at every boot.
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
