package config

import (
	"math"
	"syscall"
	"time"
)

// DefaultPath is the path of the configuration file if neither [Options].Path nor the variable HINIT_CONFIG names one. The
// default file may be missing.
const DefaultPath = "/etc/hinit/hinit.yaml"

// Config is the complete configuration, after all checks. Its fields mirror the keys of hinit.yaml.
type Config struct {
	Home string `key:"home,root" is:"home" env:"HERMES_HOME"` // absolute path of the data directory, which is also the home of the root profile
	// Actions lists the actions after events of any service. A service or profile with its own actions for an event replaces
	// them.
	Actions   Actions   `key:"on"`
	Agent     Agent     `key:"agent." fill:"profile"`
	Profiles  Profiles  `key:""`
	Start     Start     `key:"start."`
	Shutdown  Shutdown  `key:"shutdown."`
	Logs      Logs      `key:"logs."`
	Boot      Boot      `key:"boot.,root"`
	Control   Control   `key:"control.,root"`
	Isolation Isolation `key:"isolation.,root" fill:"profile"` // default isolation of all gateways, see [Config.IsolationOf]
	Restart   Restart   `key:"restart."`
	Stop      Stop      `key:"stop."`

	Services map[string]Service // all supervised processes except the gateways, by name
	Runs     map[string]Run     // commands that a client may run once, by name
	Image    Image

	// Path is the configuration file that was read, or "" if there was none.
	Path string
	// Content is the content of the file at Path.
	Content []byte
	// Warnings are remarks on a configuration that is valid, one line each.
	Warnings []string

	origins      map[string]origin // origin of each value by key, without defaults
	servicesOnly bool              // the configuration is for hinit run, which hosts no agent
}

// Agent configures the hosted agent: its user, its commands and its environment. Commands, Cwd and the values of Env are templates
// for [Config.Expand].
type Agent struct {
	User   string `key:"user,root" is:"user"`   // user of all gateways and of the container's CMD: a name, a uid or user:group
	Binary string `key:"binary,root" is:"path"` // absolute path of the agent's program; {agent} in templates; the shim (docker exec) runs it

	GatewayCommand        []string          `key:"gateway" is:"command" fill:"."`         // command of the gateway of a named profile
	DefaultGatewayCommand []string          `key:"gateway_default" is:"command" fill:"."` // command of the gateway of the root profile
	Cwd                   string            `key:"cwd" is:"dir" fill:"cwd"`
	Env                   map[string]string `key:"env" fill:"."` // variables that are added to the container's environment

	ReadyWhen     string        `key:"ready" is:"oneof state-file up"` // condition for a gateway to be ready: one of the Ready constants
	SettleTime    time.Duration `key:"settle" is:"positive"`           // after this time, a service that can't report readiness counts as started
	Checks        []Check       `key:"checks"`                         // health checks of all gateways
	DeafDetection DeafDetection `key:"deaf."`

	// Commands to create, delete and rename a profile. Without a command, hinit does the work itself.
	ProfileCreateCommand []string `key:"profile_create" is:"command?" fill:"."`
	ProfileDeleteCommand []string `key:"profile_delete" is:"command?" fill:"."`
	ProfileRenameCommand []string `key:"profile_rename" is:"command?" fill:"rename"`

	Actions         Actions  `key:"on"` // actions after events of gateways
	ProcessSettings `key:""` // settings of the process of every gateway
}

// DeafDetection configures how hinit finds deaf gateways: gateways that are up but process no messages.
type DeafDetection struct {
	Action      string        `key:"action,short" is:"oneof report restart off"` // [OnFailureReport], [OnFailureRestart] or [DeafDetectionOff]; a profile may set its own
	MinSilence  time.Duration `key:"after" is:"atleast 1s"`                      // time without processed messages after which a gateway may be deaf
	CheckPeriod time.Duration `key:"period" is:"atleast 100ms"`                  // time between two checks of all gateways
}

// The values that [DeafDetection].Action can have besides [OnFailureReport] and [OnFailureRestart].
const (
	DeafDetectionOff     = "off"   // hinit doesn't look for deaf gateways
	DeafDetectionByCheck = "check" // a check of the type "deaf" finds deaf gateways instead; hinit.yaml can't set this value
)

// The values of [Agent].ReadyWhen.
const (
	ReadyByStateFile = "state-file" // ready when gateway_state.json reports that this process is running
	ReadyWhenUp      = "up"         // ready as soon as the process runs
)

// Profiles says which directories are profiles and how many there may be, and holds the settings of single profiles.
type Profiles struct {
	Marker string `key:"profiles.marker" is:"filename"` // file that makes a directory a profile
	// Max is the maximum number of profiles that hinit supervises, besides the root profile. hinit also watches at most this many
	// directories that lack the marker.
	Max  int    `key:"profiles.max,root" is:"between 1 100000"`
	UIDs string `key:"isolation.uids,root" is:"uids"` // range of uids for profiles with [IsolationUser], see [Config.UIDRange]

	Overrides map[string]Profile // own settings of profiles, by name; see [Config.ProfileOf]
}

// Restart configures whether and when hinit restarts a process that has ended by itself.
type Restart struct {
	// Policy selects the exits that lead to a restart: one of the Restart constants.
	Policy string `key:"policy,short" is:"oneof always on-failure never on-success"`
	// MaxRestarts is the maximum number of restarts within MaxRestartsWindow; 0 means no limit.
	MaxRestarts       int           `key:"max_restarts" is:"between 0 1000"`
	MaxRestartsWindow time.Duration `key:"max_restarts_window" is:"positive"`

	InitialDelay time.Duration `key:"initial" is:"positive"`      // delay before the first restart
	DelayFactor  float64       `key:"factor" is:"between 1 1000"` // each delay is DelayFactor times the delay before
	MaxDelay     time.Duration `key:"max" is:"positive"`          // longest delay; not less than InitialDelay
	Jitter       float64       `key:"jitter" is:"between 0 0.5"`  // random change of a delay, up to this fraction of it
	// ResetAfter is how long a run must last to count as healthy. After a healthy run the next restart is immediate, and later
	// delays begin at InitialDelay again.
	ResetAfter      time.Duration `key:"reset_after" is:"positive"`
	ParkCodes       []int         `key:"park_on" is:"codes"`                   // exit codes after which the service stays down
	ImmediateCodes  []int         `key:"immediate_on" is:"codes"`              // exit codes after which the restart is immediate
	SuccessCodes    []int         `key:"success_codes" is:"codes"`             // exit codes besides 0 that are a success
	CrashLoopCount  int           `key:"crash_loop_count" is:"between 2 1000"` // number of exits within CrashLoopWindow that make a crash loop
	CrashLoopWindow time.Duration `key:"crash_loop_window" is:"positive"`
}

// Stop says how a service is stopped: hinit sends Signal, and after Grace it sends SIGKILL.
type Stop struct {
	Signal syscall.Signal `key:"signal"`
	Grace  time.Duration  `key:"grace" is:"positive"` // time from the first signal to SIGKILL
}

// Start configures how the gateways start.
type Start struct {
	Parallel string `key:"parallel" is:"auto"` // how many gateways start at a time, as a number or ParallelAuto
}

// ParallelAuto stands for the number of processors.
const ParallelAuto = "auto"

// Shutdown configures how the container stops.
type Shutdown struct {
	Budget time.Duration `key:"budget" is:"positive" env:"HINIT_STOP_TIMEOUT"` // time limit of the whole shutdown, including the last SIGKILL
}

// Logs configures the log files and the console output of gateways and services.
type Logs struct {
	Dir     string `key:"dir,root" is:"dir" fill:"home"`                                    // absolute path of the log directory, which has a subdirectory for each profile
	Console string `key:"console" is:"oneof raw prefixed json off" env:"HINIT_LOG_CONSOLE"` // how output looks on the console: one of the Console constants

	// ConsoleStall is how long services wait for the reader of the console when the reader pauses. After that time, hinit drops
	// console lines. With 0, services never wait.
	ConsoleStall time.Duration `key:"console_stall,root" is:"notnegative"`

	MaxLineKB   int      `key:"max_line_kb,root" is:"between 1 65536"` // longest line, in kB; a longer line is split
	MaskSecrets bool     `key:"mask"`                                  // hide secrets on the console
	LogLimits   `key:""` // default limits of each log

	Profiles map[string]LogLimits // own limits of profiles, by name
}

// LogLimits are the limits of one log.
type LogLimits struct {
	MaxSizeMB int           `key:"max_size_mb" is:"between 1 1048576"`    // size in MB at which a log file is rotated
	Archives  int           `key:"archives" is:"between 0 10000"`         // number of rotated files to keep
	MaxAge    time.Duration `key:"max_age" is:"notnegative"`              // age at which a rotated file is removed; 0: never
	QuotaMB   int           `key:"quota_mb" is:"between 0 1073741824"`    // maximum size in MB of all files of the log together; 0: no limit
	MinFreeMB int           `key:"min_free_mb" is:"between 0 1073741824"` // free space in MB below which hinit writes no log files; 0: no limit
	RateLimit int           `key:"rate_limit" is:"between 0 1073741824"`  // maximum number of lines per second; 0: no limit
	Compress  string        `key:"compress" is:"oneof none gzip"`         // compression of rotated files: one of the Compress constants
}

// The values of [LogLimits].Compress.
const (
	CompressNone = "none"
	CompressGzip = "gzip"
)

// LogLimitsOf returns the limits of a profile's log: its own, or the defaults.
func (c *Config) LogLimitsOf(profile string) LogLimits {
	if limits, own := c.Logs.Profiles[profile]; own {
		return limits
	}
	return c.Logs.LogLimits
}

// Service is a supervised process that isn't a gateway. Its templates are expanded, and missing keys have inherited or default
// values.
type Service struct {
	Name string

	Command []string `key:"command" is:"command" fill:"service"`
	// whether the service is enabled, by the key "enabled" or by the variable EnabledBy
	Enabled         bool              `key:"enabled"`
	EnabledBy       string            `key:"enabled_by" is:"variable?"` // environment variable that enables the service; "" for none
	User            string            `key:"user,root" is:"user" inherits:"agent.user"`
	Cwd             string            `key:"cwd" is:"dir" fill:"home"`
	Env             map[string]string `key:"env" fill:"service"`
	HasLogFile      bool              `key:"log"`                   // whether the service has a log file; otherwise its output goes to the console only
	Checks          []Check           `key:"checks"`                // health checks; their texts are templates, see [Config.Expand]
	Actions         Actions           `key:"on"`                    // actions after events of this service, see Config.Actions
	Needs           []Need            `key:"needs"`                 // services to wait for; optional needs that can't be met are removed
	RestartOn       []string          `key:"restart_on" is:"names"` // services whose restart restarts this service, too
	Task            Task              `key:""`
	Notify          Notify            `key:""`
	ProcessSettings `key:"" fill:"service" without:"quota."`
	Logs            LogLimits `key:"logs." inherits:"logs."`
	Restart         Restart   `key:"restart." inherits:"restart." alias:"park_on immediate_on success_codes"`
	Stop            Stop      `key:"stop." inherits:"stop."`
}

// Run is a command that a client may run once, as the agent's user. Command is a template for [Config.ExpandRun]. Env is
// expanded.
type Run struct {
	Command []string                 `key:"command" is:"command" fill:"run"`
	Env     map[string]string        `key:"env" fill:"service"`
	Limits  map[string]ResourceLimit `key:"limits,root"`         // resource limits by name, such as "nofile"
	Grace   time.Duration            `key:"grace" is:"positive"` // time from SIGTERM to SIGKILL
}

// Unlimited is the resource limit "unlimited" (RLIM_INFINITY of getrlimit(2)).
const Unlimited uint64 = math.MaxUint64

// Boot configures the boot.
type Boot struct {
	Strict     bool   `key:"strict" env:"HINIT_BOOT_STRICT"`                // whether a failed step ends the boot
	PreparedBy string `key:"steps" is:"oneof hinit image" env:"HINIT_BOOT"` // [PreparedByHinit] or [PreparedByImage]
	Hooks      []Hook `key:"hooks"`                                         // commands that run before any service, in this order
}

// The values of [Boot].PreparedBy: who prepares the data directory at boot.
const (
	PreparedByHinit = "hinit"
	PreparedByImage = "image" // the script 01-hermes-setup of the agent's image, in [ImageDir]
)

// Hook is a command that runs once during the boot. Its templates are already expanded.
type Hook struct {
	Command  []string      `key:"command" is:"command" fill:"service"`
	User     string        `key:"user" is:"user" inherits:"agent.user"` // user of the hook: a name, a uid or user:group
	Timeout  time.Duration `key:"timeout" is:"positive"`                // time limit; after it, hinit kills the hook, and the hook has failed
	Required bool          `key:"required"`                             // whether a failure of the hook ends the boot even without Boot.Strict
	IfExists string        `key:"if_exists" is:"dir?" fill:"service"`   // run the hook only if this file exists; "": always

	// Inputs are absolute paths and globs of the files that the hook reads and writes. The hook is skipped if none of them has
	// changed since its last success. If Inputs is empty, the hook runs at every boot.
	Inputs []string `key:"inputs" is:"inputs" fill:"service"`
}

// Control configures the control socket.
type Control struct {
	Socket     string `key:"socket" is:"socket" env:"HINIT_RUNTIME_DIR"` // absolute path of the control socket
	OtherUsers string `key:"others" is:"oneof status none"`              // rights of other users: one of the Others constants
}

// The values of [Control].OtherUsers: what users other than root and the agent's user may do on the control socket.
const (
	OthersMayReadStatus = "status" // other users may read the status
	OthersMayDoNothing  = "none"   // other users may do nothing
)
