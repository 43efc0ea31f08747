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
	Home string `key:"home,root" is:"home" env:"HERMES_HOME"` // absolute path of the data directory, which is the home of the root profile
	// On lists the actions to run after events of services. Actions that a service or a profile configures for an event replace
	// the actions in On for this event.
	On        Actions   `key:"on"`
	Agent     Agent     `key:"agent." fill:"profile"`
	Profiles  Profiles  `key:""`
	Start     Start     `key:"start."`
	Shutdown  Shutdown  `key:"shutdown."`
	Logs      Logs      `key:"logs."`
	Boot      Boot      `key:"boot.,root"`
	Control   Control   `key:"control.,root"`
	Isolation Isolation `key:"isolation.,root" fill:"profile"` // isolation of every gateway by default, see [Config.IsolationOf]
	Restart   Restart   `key:"restart."`
	Stop      Stop      `key:"stop."`

	Services map[string]Service // all supervised processes except the gateways, by name
	Runs     map[string]Run     // commands that a client may run once, by name
	Image    Image

	// Path is the path of the configuration file that was read, or "" if there was none.
	Path string
	// Text is the content of the file at Path.
	Text []byte
	// Warnings are remarks on a valid configuration, one line each.
	Warnings []string

	origins map[string]origin // where each value was set, by key; defaults are not listed
	plain   bool              // true for hinit run, a supervisor that hosts no agent
}

// Agent configures the hosted agent: its user, its commands and its environment. The commands, Cwd and the values of Env are
// templates for [Config.Expand].
type Agent struct {
	User   string `key:"user,root" is:"user"`   // user of every gateway and of the container's CMD: a name, uid or user:group
	Binary string `key:"binary,root" is:"path"` // absolute path of the agent's program: {agent} in templates, and run by the exec shim

	Gateway        []string          `key:"gateway" is:"command" fill:"."`         // command of a named profile's gateway
	GatewayDefault []string          `key:"gateway_default" is:"command" fill:"."` // command of the root profile's gateway
	Cwd            string            `key:"cwd" is:"dir" fill:"cwd"`
	Env            map[string]string `key:"env" fill:"."` // variables added to the container's environment

	Ready  string        `key:"ready" is:"oneof state-file up"` // one of the Ready constants
	Settle time.Duration `key:"settle" is:"positive"`           // time after which a service that can't report readiness counts as started
	Checks []Check       `key:"checks"`                         // health checks of every gateway
	Deaf   Deaf          `key:"deaf."`

	// Commands that create, delete and rename a profile. If a command is empty, hinit does that work itself.
	ProfileCreate []string `key:"profile_create" is:"command?" fill:"."`
	ProfileDelete []string `key:"profile_delete" is:"command?" fill:"."`
	ProfileRename []string `key:"profile_rename" is:"command?" fill:"rename"`

	On              Actions  `key:"on"` // actions for events of every gateway
	ProcessSettings `key:""` // process settings of every gateway
}

// Deaf configures the detection of deaf gateways, which are up but do not process messages.
type Deaf struct {
	Action string        `key:"action,short" is:"oneof report restart off"` // [OnReport], [OnRestart] or [DeafOff]; [Profile].Deaf overrides it
	After  time.Duration `key:"after" is:"atleast 1s"`                      // minimum silence before a gateway can count as deaf
	Period time.Duration `key:"period" is:"atleast 100ms"`                  // time between two checks of all gateways
}

// The values of [Deaf].Action other than [OnReport] and [OnRestart].
const (
	DeafOff     = "off"   // hinit does not watch the gateway
	DeafByCheck = "check" // a health check of type "deaf" replaces this detection; not valid in a file
)

// The values of [Agent].Ready: when a gateway counts as ready.
const (
	ReadyState = "state-file" // when the gateway's gateway_state.json says that this process is running
	ReadyUp    = "up"         // as soon as the gateway's process runs
)

// Profiles says which directories are profiles, and how many profiles there may be.
type Profiles struct {
	Marker string `key:"profiles.marker" is:"filename"` // name of the file that marks a directory as a profile
	// Max is the maximum number of supervised profiles, not counting the root profile. It is also the maximum number of watched
	// directories that have no marker file.
	Max  int    `key:"profiles.max,root" is:"between 1 100000"`
	UIDs string `key:"isolation.uids,root" is:"uids"` // the range of user ids for profiles with [IsolationUser], see [Config.UIDRange]

	Overrides map[string]Profile // settings of the profiles that differ from the inherited settings, by name; see [Config.ProfileOf]
}

// Restart is the restart policy for a process that ends although hinit did not stop the process.
type Restart struct {
	// Policy is one of the Restart constants. It selects the exits after which hinit restarts the process.
	Policy string `key:"policy,short" is:"oneof always on-failure never on-success"`
	// MaxRestarts is the maximum number of restarts within MaxRestartsWindow; 0: no limit.
	MaxRestarts       int           `key:"max_restarts" is:"between 0 1000"`
	MaxRestartsWindow time.Duration `key:"max_restarts_window" is:"positive"`

	Initial time.Duration `key:"initial" is:"positive"`      // delay before the first restart of the process
	Factor  float64       `key:"factor" is:"between 1 1000"` // each delay is the delay before it times Factor
	Max     time.Duration `key:"max" is:"positive"`          // longest delay; at least Initial
	Jitter  float64       `key:"jitter" is:"between 0 0.5"`  // largest random change of a delay, as a fraction of the delay
	// A run that lasts for ResetAfter counts as healthy. The next restart is immediate, and the delays begin at Initial again.
	ResetAfter      time.Duration `key:"reset_after" is:"positive"`
	ParkOn          []int         `key:"park_on" is:"codes"`                   // exit codes that park the service: hinit keeps the service down
	ImmediateOn     []int         `key:"immediate_on" is:"codes"`              // exit codes that cause an immediate restart
	SuccessCodes    []int         `key:"success_codes" is:"codes"`             // exit codes besides 0 that count as success
	CrashLoopCount  int           `key:"crash_loop_count" is:"between 2 1000"` // number of exits within CrashLoopWindow that counts as a crash loop
	CrashLoopWindow time.Duration `key:"crash_loop_window" is:"positive"`
}

// Stop configures the stop of a service: the first signal, and the time before SIGKILL.
type Stop struct {
	Signal syscall.Signal `key:"signal"`              // the first signal that the process gets
	Grace  time.Duration  `key:"grace" is:"positive"` // time between the first signal and SIGKILL
}

// Start configures the start of the gateways.
type Start struct {
	Parallel string `key:"parallel" is:"auto"` // number of gateways that start at the same time, or ParallelAuto for the number of processors
}

// ParallelAuto is the default of Start.Parallel.
const ParallelAuto = "auto"

// Shutdown configures the stop of the container.
type Shutdown struct {
	Budget time.Duration `key:"budget" is:"positive" env:"HINIT_STOP_TIMEOUT"` // time limit of the whole shutdown, including the final SIGKILL
}

// Logs configures the log files and the console output of gateways and services.
type Logs struct {
	Dir     string `key:"dir,root" is:"dir" fill:"home"`                                    // absolute path of a directory with one subdirectory for each profile
	Console string `key:"console" is:"oneof raw prefixed json off" env:"HINIT_LOG_CONSOLE"` // one of the Console constants

	// ConsoleStall is the maximum time that services wait while the reader of the console has paused. After that, the console
	// drops lines. With 0, services do not wait.
	ConsoleStall time.Duration `key:"console_stall,root" is:"notnegative"`

	MaxLineKB int      `key:"max_line_kb,root" is:"between 1 65536"` // maximum length of a line; a longer line is split
	Mask      bool     `key:"mask"`                                  // hide secrets in the console output
	LogLimits `key:""` // default limits of each log

	Profiles map[string]LogLimits // log limits of the profiles that don't use the defaults, by profile name
}

// LogLimits holds the limits of one log.
type LogLimits struct {
	MaxSizeMB int           `key:"max_size_mb" is:"between 1 1048576"`    // size at which a log file is rotated, in MB
	Archives  int           `key:"archives" is:"between 0 10000"`         // number of rotated files to keep
	MaxAge    time.Duration `key:"max_age" is:"notnegative"`              // age at which a rotated file is removed; 0: never
	QuotaMB   int           `key:"quota_mb" is:"between 0 1073741824"`    // maximum total size of the log's files; 0: no limit
	MinFreeMB int           `key:"min_free_mb" is:"between 0 1073741824"` // free disk space below which hinit stops writing log files; 0: no limit
	RateLimit int           `key:"rate_limit" is:"between 0 1073741824"`  // maximum number of lines a second; 0: no limit
	Compress  string        `key:"compress" is:"oneof none gzip"`         // one of the Compress constants
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
	ConsoleRaw      = "raw"      // the services' output without changes
	ConsolePrefixed = "prefixed" // the name of the service before each line
	ConsoleJSON     = "json"     // one JSON object per line
	ConsoleOff      = "off"      // no output on the console; log files only
)

// Service is a supervised process other than a gateway. Command, Cwd and Env are final: their templates are expanded, and keys
// that hinit.yaml does not set have their inherited values.
type Service struct {
	Name string

	Command         []string          `key:"command" is:"command" fill:"service"`
	Enabled         bool              `key:"enabled"`                   // whether hinit runs the service, from the key "enabled" or the variable EnabledBy
	EnabledBy       string            `key:"enabled_by" is:"variable?"` // environment variable that switches the service on, or ""
	User            string            `key:"user,root" is:"user" inherits:"agent.user"`
	Cwd             string            `key:"cwd" is:"dir" fill:"home"`
	Env             map[string]string `key:"env" fill:"service"`
	Log             bool              `key:"log"`                   // false: the output goes to the console only, not to a log file
	Checks          []Check           `key:"checks"`                // health checks; the texts in them are templates, see [Config.Expand]
	On              Actions           `key:"on"`                    // actions for events of the service, in place of Config.On
	Needs           []Need            `key:"needs"`                 // services to wait for; optional needs that can't be met are removed
	RestartOn       []string          `key:"restart_on" is:"names"` // names of services whose restart also restarts this service
	Task            Task              `key:""`
	Notify          Notify            `key:""`
	ProcessSettings `key:"" fill:"service" without:"quota."`
	Logs            LogLimits `key:"logs." inherits:"logs."`
	Restart         Restart   `key:"restart." inherits:"restart." alias:"park_on immediate_on success_codes"`
	Stop            Stop      `key:"stop." inherits:"stop."`
}

// Run is a command that a client may run once, as the agent's user. Command is a template for [Config.ExpandRun]; Env is
// expanded.
type Run struct {
	Command []string                 `key:"command" is:"command" fill:"run"`
	Env     map[string]string        `key:"env" fill:"service"`
	Limits  map[string]ResourceLimit `key:"limits,root"`         // resource limits by name ("nofile")
	Grace   time.Duration            `key:"grace" is:"positive"` // time between TERM and KILL
}

// Unlimited is the resource limit "unlimited" (RLIM_INFINITY of getrlimit(2)).
const Unlimited uint64 = math.MaxUint64

// Boot configures the boot: its hooks, and the effect of a failed step.
type Boot struct {
	Strict bool   `key:"strict" env:"HINIT_BOOT_STRICT"`                // a failed step ends the boot
	Steps  string `key:"steps" is:"oneof hinit image" env:"HINIT_BOOT"` // [StepsHinit] or [StepsImage]
	Hooks  []Hook `key:"hooks"`                                         // hooks in the order in which they run; they run before any service
}

// The values of [Boot].Steps: the program whose steps prepare the data directory at boot.
const (
	StepsHinit = "hinit"
	StepsImage = "image" // the script 01-hermes-setup in [ImageDir], which comes from the agent's image
)

// Hook is a command that runs once at boot. Its templates are already expanded.
type Hook struct {
	Command  []string      `key:"command" is:"command" fill:"service"`
	User     string        `key:"user" is:"user" inherits:"agent.user"` // user that runs the hook: a name, a uid or user:group
	Timeout  time.Duration `key:"timeout" is:"positive"`                // a hook that runs longer is killed and counts as failed
	Required bool          `key:"required"`                             // a failure ends the boot, even if Boot.Strict is false
	IfExists string        `key:"if_exists" is:"dir?" fill:"service"`   // the hook runs only if this file exists; empty: always

	// Inputs are absolute paths and globs of the files that the hook reads and writes. The hook runs only if one of them has
	// changed since its last success. If Inputs is empty, it runs at every boot.
	Inputs []string `key:"inputs" is:"inputs" fill:"service"`
}

// Control configures the control socket.
type Control struct {
	Socket string `key:"socket" is:"socket" env:"HINIT_RUNTIME_DIR"` // absolute path of the control socket
	Others string `key:"others" is:"oneof status none"`              // rights of other users: one of the Others constants
}

// The values of [Control].Others: the rights of users other than root and the agent's user on the control socket.
const (
	OthersStatus = "status" // other users may read the status
	OthersNone   = "none"   // every request of other users is refused
)
