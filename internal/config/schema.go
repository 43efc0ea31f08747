package config

import (
	"syscall"
	"time"
)

// field is one key of the configuration below a root of type T.
type field[T any] struct {
	path     string       // dotted, below the root
	doc      string       // what it means, one sentence for the reference
	typ      string       // how the reference and errors name its type; empty: by the Go type
	env      string       // environment variable that wins over the file
	fromEnv  fromEnv      // turns the variable's text into the key's; nil: as it is
	inherits string       // key that this one follows while it is not set
	alias    string       // path of the key that this one is another spelling of
	holes    []string     // placeholders its text may use; nil: no template
	check    check        // says what is wrong with a value, "" when nothing
	at       func(*T) any // pointer to the value
	short    bool         // a text in the place of the mapping that the key is in is its value

	// privileged: it decides what runs as whom, where root works, or how large PID 1 gets. Only a file that nobody but root can change may change it.
	privileged bool
}

type (
	// check gets the pointer that field.at returns.
	check func(at any) string
	// fromEnv returns the text to use and what is wrong with it.
	fromEnv func(text string) (string, string)
)

var (
	profileHoles = []string{holeAgent, holeProfile, holeHome, holeProfileHome}
	renameHoles  = []string{holeAgent, holeProfile, holeTo, holeHome, holeProfileHome}
	serviceHoles = []string{holeAgent, holeHome}
	homeHoles    = []string{holeHome}
	runHoles     = []string{holeAgent, holeProfile, holeTask, holeOptions, holeHome, holeProfileHome}
)

// configFields is the schema of everything but services.
func configFields() []field[Config] {
	fields := []field[Config]{
		{
			privileged: true, path: "home", env: "HERMES_HOME", typ: "path", check: checkHome,
			doc: "Data directory: the home of the root profile, with `profiles/` and `logs/` below it.",
			at:  func(c *Config) any { return &c.Home },
		},
		{
			privileged: true, path: "agent.user", check: checkUser, typ: "user",
			doc: "User that gateways and the CMD run as: a name, a uid, or `user:group`. No switch when hinit is not root.",
			at:  func(c *Config) any { return &c.Agent.User },
		},
		{
			privileged: true, path: "agent.binary", check: checkAbs, typ: "path",
			doc: "The agent's program: `{agent}` in commands, and what the exec shim runs.",
			at:  func(c *Config) any { return &c.Agent.Binary },
		},
		{
			path: "agent.gateway", holes: profileHoles, check: checkCommand, typ: "command",
			doc: "Command of a named profile's gateway.",
			at:  func(c *Config) any { return &c.Agent.Gateway },
		},
		{
			path: "agent.gateway_default", holes: profileHoles, check: checkCommand, typ: "command",
			doc: "Command of the root profile's gateway.",
			at:  func(c *Config) any { return &c.Agent.GatewayDefault },
		},
		{
			path: "agent.cwd", holes: []string{holeHome, holeProfile, holeProfileHome}, check: checkDirTemplate, typ: "path",
			doc: "Working directory of a gateway.",
			at:  func(c *Config) any { return &c.Agent.Cwd },
		},
		{
			path: "agent.env", holes: profileHoles,
			doc: "Variables set for every gateway on top of the container's; what is written here is added to the defaults.",
			at:  func(c *Config) any { return &c.Agent.Env },
		},
		{
			path: "agent.ready", typ: oneOf(ReadyState, ReadyUp), check: checkOneOf(ReadyState, ReadyUp),
			doc: "When a gateway counts as ready: when its gateway_state.json says that it is running, or as soon as it is up, " +
				"for an agent that writes no such file.",
			at: func(c *Config) any { return &c.Agent.Ready },
		},
		{
			path: "agent.settle", check: checkPositive,
			doc: "How long a run of what can't say that it is ready has to be up until `hinit start` takes it for started.",
			at:  func(c *Config) any { return &c.Agent.Settle },
		},
		{
			path: "agent.checks", doc: "Checks of every gateway; see [Checks](#checks).",
			at: func(c *Config) any { return &c.Agent.Checks },
		},
		{
			path: "agent.deaf.action", short: true, typ: oneOf(OnReport, OnRestart, DeafOff), check: checkOneOf(OnReport, OnRestart, DeafOff),
			doc: "What is done about a [deaf gateway](../explanation/deaf-gateways.md): only say so, restart it with cause `health`, or don't look. " +
				"Short: `deaf: restart`.",
			at: func(c *Config) any { return &c.Agent.Deaf.Action },
		},
		{
			path: "agent.deaf.after", check: checkAtLeast(time.Second),
			doc: "How long a silence has to last, besides three times its habit.",
			at:  func(c *Config) any { return &c.Agent.Deaf.After },
		},
		{
			path: "agent.deaf.period", check: checkAtLeast(100 * time.Millisecond),
			doc: "Time between two looks at all gateways together.",
			at:  func(c *Config) any { return &c.Agent.Deaf.Period },
		},
		{
			path: "agent.profile_create", holes: profileHoles, check: checkOptionalCommand, typ: "command",
			doc: "Command that creates a profile; an empty list: hinit creates it by itself.",
			at:  func(c *Config) any { return &c.Agent.ProfileCreate },
		},
		{
			path: "agent.profile_delete", holes: profileHoles, check: checkOptionalCommand, typ: "command",
			doc: "Command that deletes a profile; an empty list: hinit deletes it by itself.",
			at:  func(c *Config) any { return &c.Agent.ProfileDelete },
		},
		{
			path: "agent.profile_rename", holes: renameHoles, check: checkOptionalCommand, typ: "command",
			doc: "Command that renames a profile to `{to}`; an empty list: hinit renames it by itself.",
			at:  func(c *Config) any { return &c.Agent.ProfileRename },
		},
		{
			path: "profiles.marker", check: checkFileName, typ: "file name",
			doc: "File that makes a directory below `profiles/` a profile.",
			at:  func(c *Config) any { return &c.Profiles.Marker },
		},
		{
			privileged: true, path: "profiles.max", check: checkRange(1, 100_000),
			doc: "So many profiles are supervised beside the root one; the others are left out with a warning. So many directories without " +
				"the marker are followed, too: of the rest, one that gets it is found when it is asked for by name.",
			at: func(c *Config) any { return &c.Profiles.Max },
		},
		{
			path: "shutdown.budget", env: "HINIT_STOP_TIMEOUT", fromEnv: secondsOrDuration, check: checkPositive,
			doc: "Time for stopping the whole container, KILL included; keep it below the engine's own limit (Docker: 10s). " +
				"The variable may also be a number of seconds.",
			at: func(c *Config) any { return &c.Shutdown.Budget },
		},
		{
			privileged: true, path: "logs.dir", holes: homeHoles, check: checkDirTemplate, typ: "path",
			doc: "Directory of the log files, one directory a profile below it.",
			at:  func(c *Config) any { return &c.Logs.Dir },
		},
		{
			path: "logs.console", env: "HINIT_LOG_CONSOLE",
			typ:   oneOf(ConsoleRaw, ConsolePrefixed, ConsoleJSON, ConsoleOff),
			check: checkOneOf(ConsoleRaw, ConsolePrefixed, ConsoleJSON, ConsoleOff),
			doc: "What the container log gets of the services' output: the bytes as they are, each line after its service's " +
				"name, JSON lines, or nothing.",
			at: func(c *Config) any { return &c.Logs.Console },
		},
		{
			privileged: true, path: "logs.console_stall", check: checkNotNegative,
			doc: "A service with more output than the reader of the container log takes waits for that reader. When the reader takes nothing for " +
				"so long, lines are left out there instead, and counted. `0s`: no service waits.",
			at: func(c *Config) any { return &c.Logs.ConsoleStall },
		},
		{
			privileged: true, path: "logs.max_line_kb", check: checkRange(1, 65536),
			doc: "A line longer than so many KiB is split.",
			at:  func(c *Config) any { return &c.Logs.MaxLineKB },
		},
		{
			path: "logs.mask",
			doc: "Whether secrets are replaced by `***` in the container log: tokens of known shapes, and the values in a profile's " +
				"`.env` whose names say that they are secret. Log files are not changed.",
			at: func(c *Config) any { return &c.Logs.Mask },
		},
		{
			privileged: true, path: "boot.strict", env: "HINIT_BOOT_STRICT", fromEnv: switchText,
			doc: "A boot step that fails ends the boot instead of being a warning.",
			at:  func(c *Config) any { return &c.Boot.Strict },
		},
		{
			privileged: true, path: "boot.hooks", typ: "list of hooks",
			doc: "Commands that run once at boot, one after the other, before any service; see [Hooks](#hooks). " +
				"A list in the file replaces the default.",
			at: func(c *Config) any { return &c.Boot.Hooks },
		},
		{
			privileged: true, path: "control.socket", env: "HINIT_RUNTIME_DIR", fromEnv: socketInDir, check: checkSocket, typ: "path",
			doc: "The control socket. The variable names the directory that holds `control.sock`.",
			at:  func(c *Config) any { return &c.Control.Socket },
		},
		{
			privileged: true,
			path:       "control.others",
			typ:        oneOf(OthersStatus, OthersNone),
			check:      checkOneOf(OthersStatus, OthersNone),
			doc:        "What users other than root and the agent's may do on the control socket: read the status, or nothing.",
			at:         func(c *Config) any { return &c.Control.Others },
		},
		onField("", func(c *Config) *Actions { return &c.On }),
		onField("agent.", func(c *Config) *Actions { return &c.Agent.On }),
	}
	fields = append(fields, setupFields("agent.", "", profileHoles, func(c *Config) *Setup { return &c.Agent.Setup })...)
	fields = append(fields, logFields("logs.", "", func(c *Config) *LogLimits { return &c.Logs.LogLimits })...)
	fields = append(fields, restartFields("restart.", "", func(c *Config) *Restart { return &c.Restart })...)
	return append(fields, stopFields("stop.", "", func(c *Config) *Stop { return &c.Stop })...)
}

// serviceFields is the schema of services.NAME.
func serviceFields() []field[Service] {
	fields := []field[Service]{
		{
			path: "command", holes: serviceHoles, check: checkCommand, typ: "command",
			doc: "What to run. Required, except for `dashboard`, which has a default.",
			at:  func(s *Service) any { return &s.Command },
		},
		{
			path: "enabled",
			doc: "Whether to run it; counts while the variable named by `enabled_by` is unset or empty. " +
				"Not set: true without `enabled_by`, false with it.",
			at: func(s *Service) any { return &s.Enabled },
		},
		{
			path: "enabled_by", check: checkOptionalVar, typ: "variable",
			doc: "Environment variable that decides: on when it is `1`, `true` or `yes` (also `TRUE`, `True`, `YES`, `Yes`).",
			at:  func(s *Service) any { return &s.EnabledBy },
		},
		{
			privileged: true, path: "user", inherits: "agent.user", check: checkUser, typ: "user",
			doc: "User it runs as: a name, a uid, or `user:group`.",
			at:  func(s *Service) any { return &s.User },
		},
		{
			path: "cwd", holes: homeHoles, check: checkDirTemplate, typ: "path",
			doc: "Its working directory.",
			at:  func(s *Service) any { return &s.Cwd },
		},
		{
			path: "env", holes: serviceHoles,
			doc: "Variables set on top of the container's; what is written here is added to the defaults.",
			at:  func(s *Service) any { return &s.Env },
		},
		{
			path: "log",
			doc:  "Whether it has a log file of its own; otherwise its output goes to the container log only.",
			at:   func(s *Service) any { return &s.Log },
		},
		{
			path: "checks", doc: "Its checks; see [Checks](#checks).",
			at: func(s *Service) any { return &s.Checks },
		},
		onField("", func(s *Service) *Actions { return &s.On }),
		{
			path: "park_on", alias: "restart.park_on", check: checkCodes, typ: "list of exit codes",
			doc: "Short for `restart.park_on` of this service.",
			at:  func(s *Service) any { return &s.Restart.ParkOn },
		},
		{
			path: "immediate_on", alias: "restart.immediate_on", check: checkCodes, typ: "list of exit codes",
			doc: "Short for `restart.immediate_on` of this service.",
			at:  func(s *Service) any { return &s.Restart.ImmediateOn },
		},
	}
	fields = append(fields, needsFields(func(s *Service) *[]Need { return &s.Needs }, func(s *Service) *[]string { return &s.RestartOn })...)
	fields = append(fields, taskFields()...)
	fields = append(fields, notifyFields()...)
	fields = append(fields, setupFields("", "", serviceHoles, func(s *Service) *Setup { return &s.Setup })...)
	fields = append(fields, logFields("logs.", "logs.", func(s *Service) *LogLimits { return &s.Logs })...)
	fields = append(fields, restartFields("restart.", "restart.", func(s *Service) *Restart { return &s.Restart })...)
	return append(fields, stopFields("stop.", "stop.", func(s *Service) *Stop { return &s.Stop })...)
}

// runFields is the schema of runs.NAME.
func runFields() []field[Run] {
	return []field[Run]{
		{
			path: "command", holes: runHoles, check: checkCommand, typ: "command",
			doc: "What to run. Required, except for `kanban-worker`, which has a default. The word `{options}` is replaced by the words that the client adds, if any.",
			at:  func(r *Run) any { return &r.Command },
		},
		{
			path: "env", holes: serviceHoles,
			doc: "Variables set on top of the container's; those of the client win.",
			at:  func(r *Run) any { return &r.Env },
		},
		{
			privileged: true, path: "limits",
			typ: "mapping of limit names to numbers or `unlimited`",
			doc: "Resource limits, as those of a service.",
			at:  func(r *Run) any { return &r.Limits },
		},
		{
			path: "grace", check: checkPositive,
			doc: "Time from TERM to KILL when the run is ended.",
			at:  func(r *Run) any { return &r.Grace },
		},
	}
}

// hookFields is the schema of one entry of boot.hooks.
func hookFields() []field[Hook] {
	return []field[Hook]{
		{
			path: "command", holes: serviceHoles, check: checkCommand, typ: "command",
			doc: "What to run. Required.",
			at:  func(h *Hook) any { return &h.Command },
		},
		{
			path: "user", inherits: "agent.user", check: checkUser, typ: "user",
			doc: "User it runs as: a name, a uid, or `user:group`; `root` for root.",
			at:  func(h *Hook) any { return &h.User },
		},
		{
			path: "timeout", check: checkPositive,
			doc: "Time after which it is killed and has failed.",
			at:  func(h *Hook) any { return &h.Timeout },
		},
		{
			path: "required",
			doc:  "Its failure stops the container. Otherwise that is a warning, unless `boot.strict` is set.",
			at:   func(h *Hook) any { return &h.Required },
		},
		{
			path: "if_exists", holes: serviceHoles, check: checkOptionalPath, typ: "path",
			doc: "It runs only when this file exists. Empty: always.",
			at:  func(h *Hook) any { return &h.IfExists },
		},
		{
			path: "inputs", holes: serviceHoles, check: checkInputs, typ: "list of paths and globs",
			doc: "What its result depends on, and what it writes below the data directory. It is skipped when none of that has changed since " +
				"its last success; see [below](#steps-that-are-skipped). Empty: it runs at every boot.",
			at: func(h *Hook) any { return &h.Inputs },
		},
	}
}

// typeName says in words what the field takes.
func (f *field[T]) typeName(root *T) string {
	if f.typ != "" {
		return f.typ
	}
	switch f.at(root).(type) {
	case *bool:
		return "true or false"
	case *int:
		return "whole number"
	case *float64:
		return "number"
	case *time.Duration:
		return "duration"
	case *[]string:
		return "list of words"
	case *[]int:
		return "list of numbers"
	case *Bytes:
		return "size"
	case *Paths:
		return "path or list of paths"
	case *map[string]string:
		return "mapping of names to text"
	case *[]Hook:
		return "list of hooks"
	case *[]Need:
		return "list of names"
	case *[]Check:
		return "list of checks"
	default:
		return "text"
	}
}

// signals are the stop signals that can be named, in the order the reference lists them.
var signals = []struct {
	name string
	sig  syscall.Signal
}{
	{"TERM", syscall.SIGTERM},
	{"INT", syscall.SIGINT},
	{"HUP", syscall.SIGHUP},
	{"QUIT", syscall.SIGQUIT},
	{"USR1", syscall.SIGUSR1},
	{"USR2", syscall.SIGUSR2},
	{"KILL", syscall.SIGKILL},
}

func signalNames() []string {
	names := make([]string, len(signals))
	for i, s := range signals {
		names[i] = s.name
	}
	return names
}

// limitNames are the resource limits of getrlimit(2), without the prefix RLIMIT_ and in lower case.
var limitNames = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
	"sigpending", "stack",
}
