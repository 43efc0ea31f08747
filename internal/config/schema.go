package config

import (
	"strings"
	"time"
)

// field is one key of the configuration below a root of type T. Its description is in the reference (internal/gendocs).
type field[T any] struct {
	path     string       // dotted, below the root
	is       kind         // valid values
	env      string       // environment variable that wins over the file
	fromEnv  fromEnv      // makes the key's text from the variable's text; nil: unchanged
	inherits string       // key whose value this one has while it is not set
	alias    string       // path of the key of which this one is another spelling
	holes    []string     // placeholders that its text may have; nil: no template
	at       func(*T) any // pointer to the value
	short    bool         // a text in the place of its mapping sets this key

	// root says that the key decides which user runs a program, where root works, or how large PID 1 gets. It counts only in a file
	// that root alone can change.
	root bool
}

// kind describes the valid values of a key beyond its Go type.
type kind struct {
	name  string // name in the reference and in errors; "": by the Go type
	check check
}

type (
	// check gets the pointer that field.at returns. It returns the fault of the value, or "".
	check func(at any) string
	// fromEnv returns the text for the key, and the fault of the variable, or "".
	fromEnv func(text string) (string, string)
)

var (
	absolutePath      = kind{"path", checkAbs}
	address           = kind{"IP address", checkHost}
	command           = kind{"command", checkCommand}
	dirTemplate       = kind{"path", checkDirTemplate}
	exitCodes         = kind{"list of exit codes", checkCodes}
	limitMapping      = kind{name: "mapping of limit names to numbers or `unlimited`"}
	notNegative       = durationThat("of 0s or more", func(d time.Duration) bool { return d >= 0 })
	optionalCommand   = optional(command)
	port              = kind{"port", checkPort}
	positive          = durationThat("above zero", func(d time.Duration) bool { return d > 0 })
	regularExpression = kind{"regular expression", checkRegexp}
	user              = kind{"user", checkUser}
)

var (
	ofProfile = []string{holeAgent, holeProfile, holeHome, holeProfileHome}
	ofRename  = []string{holeAgent, holeProfile, holeTo, holeHome, holeProfileHome}
	ofService = []string{holeAgent, holeHome}
	ofHome    = []string{holeHome}
	ofRun     = []string{holeAgent, holeProfile, holeTask, holeOptions, holeHome, holeProfileHome}
)

// configFields is the schema of all keys except for services, runs and other mappings from names.
func configFields() []field[Config] {
	fields := []field[Config]{
		{root: true, path: "home", env: "HERMES_HOME", is: kind{"path", checkHome}, at: func(c *Config) any { return &c.Home }},
		{root: true, path: "agent.user", is: user, at: func(c *Config) any { return &c.Agent.User }},
		{root: true, path: "agent.binary", is: absolutePath, at: func(c *Config) any { return &c.Agent.Binary }},
		{path: "agent.gateway", holes: ofProfile, is: command, at: func(c *Config) any { return &c.Agent.Gateway }},
		{path: "agent.gateway_default", holes: ofProfile, is: command, at: func(c *Config) any { return &c.Agent.GatewayDefault }},
		{
			path: "agent.cwd", holes: []string{holeHome, holeProfile, holeProfileHome}, is: dirTemplate,
			at: func(c *Config) any { return &c.Agent.Cwd },
		},
		{path: "agent.env", holes: ofProfile, at: func(c *Config) any { return &c.Agent.Env }},
		{path: "agent.ready", is: oneOf(ReadyState, ReadyUp), at: func(c *Config) any { return &c.Agent.Ready }},
		{path: "agent.settle", is: positive, at: func(c *Config) any { return &c.Agent.Settle }},
		{path: "agent.checks", at: func(c *Config) any { return &c.Agent.Checks }},
		{
			path: "agent.deaf.action", short: true, is: oneOf(OnReport, OnRestart, DeafOff),
			at: func(c *Config) any { return &c.Agent.Deaf.Action },
		},
		{path: "agent.deaf.after", is: atLeast(time.Second), at: func(c *Config) any { return &c.Agent.Deaf.After }},
		{path: "agent.deaf.period", is: atLeast(100 * time.Millisecond), at: func(c *Config) any { return &c.Agent.Deaf.Period }},
		{path: "agent.profile_create", holes: ofProfile, is: optionalCommand, at: func(c *Config) any { return &c.Agent.ProfileCreate }},
		{path: "agent.profile_delete", holes: ofProfile, is: optionalCommand, at: func(c *Config) any { return &c.Agent.ProfileDelete }},
		{path: "agent.profile_rename", holes: ofRename, is: optionalCommand, at: func(c *Config) any { return &c.Agent.ProfileRename }},
		{path: "profiles.marker", is: kind{"file name", checkFileName}, at: func(c *Config) any { return &c.Profiles.Marker }},
		{root: true, path: "profiles.max", is: between(1, 100_000), at: func(c *Config) any { return &c.Profiles.Max }},
		{root: true, path: "isolation.uids", is: kind{"range of uids", checkUIDs}, at: func(c *Config) any { return &c.Profiles.UIDs }},
		{path: "start.parallel", is: kind{"auto or a number", checkParallel}, at: func(c *Config) any { return &c.Start.Parallel }},
		{
			path: "shutdown.budget", env: "HINIT_STOP_TIMEOUT", fromEnv: secondsOrDuration, is: positive,
			at: func(c *Config) any { return &c.Shutdown.Budget },
		},
		{root: true, path: "logs.dir", holes: ofHome, is: dirTemplate, at: func(c *Config) any { return &c.Logs.Dir }},
		{
			path: "logs.console", env: "HINIT_LOG_CONSOLE", is: oneOf(ConsoleRaw, ConsolePrefixed, ConsoleJSON, ConsoleOff),
			at: func(c *Config) any { return &c.Logs.Console },
		},
		{root: true, path: "logs.console_stall", is: notNegative, at: func(c *Config) any { return &c.Logs.ConsoleStall }},
		{root: true, path: "logs.max_line_kb", is: between(1, 65536), at: func(c *Config) any { return &c.Logs.MaxLineKB }},
		{path: "logs.mask", at: func(c *Config) any { return &c.Logs.Mask }},
		{root: true, path: "boot.strict", env: "HINIT_BOOT_STRICT", fromEnv: switchText, at: func(c *Config) any { return &c.Boot.Strict }},
		{root: true, path: "boot.steps", env: "HINIT_BOOT", is: oneOf(StepsHinit, StepsImage), at: func(c *Config) any { return &c.Boot.Steps }},
		{root: true, path: "boot.hooks", is: kind{name: "list of hooks"}, at: func(c *Config) any { return &c.Boot.Hooks }},
		{
			root: true, path: "control.socket", env: "HINIT_RUNTIME_DIR", fromEnv: socketInDir, is: kind{"path", checkSocket},
			at: func(c *Config) any { return &c.Control.Socket },
		},
		{root: true, path: "control.others", is: oneOf(OthersStatus, OthersNone), at: func(c *Config) any { return &c.Control.Others }},
		onField("", func(c *Config) *Actions { return &c.On }),
		onField("agent.", func(c *Config) *Actions { return &c.Agent.On }),
	}
	fields = append(fields, setupFields("agent.", "", ofProfile, func(c *Config) *Setup { return &c.Agent.Setup })...)
	fields = append(fields, quotaFields("agent.", "", func(c *Config) *Quota { return &c.Agent.Priority.Quota })...)
	fields = append(fields, isolationFields("", func(c *Config) *Isolation { return &c.Isolation })...)
	fields = append(fields, logFields("logs.", "", func(c *Config) *LogLimits { return &c.Logs.LogLimits })...)
	fields = append(fields, restartFields("restart.", "", func(c *Config) *Restart { return &c.Restart })...)
	return append(fields, stopFields("stop.", "", func(c *Config) *Stop { return &c.Stop })...)
}

// serviceFields is the schema of services.NAME.
func serviceFields() []field[Service] {
	fields := []field[Service]{
		{path: "command", holes: ofService, is: command, at: func(s *Service) any { return &s.Command }},
		{path: "enabled", at: func(s *Service) any { return &s.Enabled }},
		{path: "enabled_by", is: optional(kind{"variable", checkVar}), at: func(s *Service) any { return &s.EnabledBy }},
		{root: true, path: "user", inherits: "agent.user", is: user, at: func(s *Service) any { return &s.User }},
		{path: "cwd", holes: ofHome, is: dirTemplate, at: func(s *Service) any { return &s.Cwd }},
		{path: "env", holes: ofService, at: func(s *Service) any { return &s.Env }},
		{path: "log", at: func(s *Service) any { return &s.Log }},
		{path: "checks", at: func(s *Service) any { return &s.Checks }},
		onField("", func(s *Service) *Actions { return &s.On }),
		{path: "park_on", alias: "restart.park_on", is: exitCodes, at: func(s *Service) any { return &s.Restart.ParkOn }},
		{path: "immediate_on", alias: "restart.immediate_on", is: exitCodes, at: func(s *Service) any { return &s.Restart.ImmediateOn }},
		{path: "success_codes", alias: "restart.success_codes", is: exitCodes, at: func(s *Service) any { return &s.Restart.SuccessCodes }},
	}
	fields = append(fields, needsFields(func(s *Service) *[]Need { return &s.Needs }, func(s *Service) *[]string { return &s.RestartOn })...)
	fields = append(fields, taskFields()...)
	fields = append(fields, notifyFields()...)
	fields = append(fields, setupFields("", "", ofService, func(s *Service) *Setup { return &s.Setup })...)
	fields = append(fields, logFields("logs.", "logs.", func(s *Service) *LogLimits { return &s.Logs })...)
	fields = append(fields, restartFields("restart.", "restart.", func(s *Service) *Restart { return &s.Restart })...)
	return append(fields, stopFields("stop.", "stop.", func(s *Service) *Stop { return &s.Stop })...)
}

// runFields is the schema of runs.NAME.
func runFields() []field[Run] {
	return []field[Run]{
		{path: "command", holes: ofRun, is: command, at: func(r *Run) any { return &r.Command }},
		{path: "env", holes: ofService, at: func(r *Run) any { return &r.Env }},
		{root: true, path: "limits", is: limitMapping, at: func(r *Run) any { return &r.Limits }},
		{path: "grace", is: positive, at: func(r *Run) any { return &r.Grace }},
	}
}

// hookFields is the schema of one entry of boot.hooks.
func hookFields() []field[Hook] {
	return []field[Hook]{
		{path: "command", holes: ofService, is: command, at: func(h *Hook) any { return &h.Command }},
		{path: "user", inherits: "agent.user", is: user, at: func(h *Hook) any { return &h.User }},
		{path: "timeout", is: positive, at: func(h *Hook) any { return &h.Timeout }},
		{path: "required", at: func(h *Hook) any { return &h.Required }},
		{path: "if_exists", holes: ofService, is: optional(dirTemplate), at: func(h *Hook) any { return &h.IfExists }},
		{path: "inputs", holes: ofService, is: kind{"list of paths and globs", checkInputs}, at: func(h *Hook) any { return &h.Inputs }},
	}
}

// signals are the valid stop signals, in the order of the reference.
var signals = []string{"TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"}

// limitNames are the resource limits of getrlimit(2), without the prefix RLIMIT_ and in lower case.
var limitNames = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
	"sigpending", "stack",
}

// profileLogFields is the schema of logs.profiles.NAME.
func profileLogFields() []field[LogLimits] {
	return logFields("", "logs.", func(l *LogLimits) *LogLimits { return l })
}

// logFields returns the keys of a [LogLimits] below prefix.
func logFields[T any](prefix, inherited string, of func(*T) *LogLimits) []field[T] {
	fields := []field[T]{
		{path: "max_size_mb", is: between(1, 1<<20), at: func(t *T) any { return &of(t).MaxSizeMB }},
		{path: "archives", is: between(0, 10000), at: func(t *T) any { return &of(t).Archives }},
		{path: "max_age", is: notNegative, at: func(t *T) any { return &of(t).MaxAge }},
		{path: "quota_mb", is: between(0, 1<<30), at: func(t *T) any { return &of(t).QuotaMB }},
		{path: "min_free_mb", is: between(0, 1<<30), at: func(t *T) any { return &of(t).MinFreeMB }},
		{path: "rate_limit", is: between(0, 1<<30), at: func(t *T) any { return &of(t).RateLimit }},
		{path: "compress", is: oneOf(CompressNone, CompressGzip), at: func(t *T) any { return &of(t).Compress }},
	}
	return below(prefix, inherited, fields)
}

// restartFields is the schema of a restart policy at prefix. inherited is the prefix of the keys whose values it inherits, or "".
func restartFields[T any](prefix, inherited string, of func(*T) *Restart) []field[T] {
	fields := []field[T]{
		{
			path: "policy", short: true, is: oneOf(RestartAlways, RestartOnFailure, RestartNever, RestartOnSuccess),
			at: func(t *T) any { return &of(t).Policy },
		},
		{path: "max_restarts", is: between(0, 1000), at: func(t *T) any { return &of(t).MaxRestarts }},
		{path: "max_restarts_window", is: positive, at: func(t *T) any { return &of(t).MaxRestartsWindow }},
		{path: "initial", is: positive, at: func(t *T) any { return &of(t).Initial }},
		{path: "factor", is: between(1.0, 1000), at: func(t *T) any { return &of(t).Factor }},
		{path: "max", is: positive, at: func(t *T) any { return &of(t).Max }},
		{path: "jitter", is: between(0, 0.5), at: func(t *T) any { return &of(t).Jitter }},
		{path: "reset_after", is: positive, at: func(t *T) any { return &of(t).ResetAfter }},
		{path: "park_on", is: exitCodes, at: func(t *T) any { return &of(t).ParkOn }},
		{path: "immediate_on", is: exitCodes, at: func(t *T) any { return &of(t).ImmediateOn }},
		{path: "success_codes", is: exitCodes, at: func(t *T) any { return &of(t).SuccessCodes }},
		{path: "crash_loop_count", is: between(2, 1000), at: func(t *T) any { return &of(t).CrashLoopCount }},
		{path: "crash_loop_window", is: positive, at: func(t *T) any { return &of(t).CrashLoopWindow }},
	}
	return below(prefix, inherited, fields)
}

func signalWords() string { return "signal: `" + strings.Join(signals, "`, `") + "`" }

// stopFields returns the keys of a [Stop] below prefix.
func stopFields[T any](prefix, inherited string, of func(*T) *Stop) []field[T] {
	fields := []field[T]{
		{path: "signal", is: kind{name: signalWords()}, at: func(t *T) any { return &of(t).Signal }},
		{path: "grace", is: positive, at: func(t *T) any { return &of(t).Grace }},
	}
	return below(prefix, inherited, fields)
}

func below[T any](prefix, inherited string, fields []field[T]) []field[T] {
	for i := range fields {
		if inherited != "" {
			fields[i].inherits = inherited + fields[i].path
		}
		fields[i].path = prefix + fields[i].path
	}
	return fields
}
