package config

import (
	"syscall"
	"time"
)

// Defaults returns the built-in configuration for the Hermes image, without services. Its templates are not expanded.
func Defaults() *Config {
	return &Config{
		Home: "/opt/data",
		Agent: Agent{
			User:                  "hermes",
			Binary:                "/opt/hermes/.venv/bin/hermes",
			GatewayCommand:        []string{"{agent}", "-p", "{profile}", "gateway", "run", "--replace"},
			DefaultGatewayCommand: []string{"{agent}", "gateway", "run", "--replace"},
			Cwd:                   "{home}",
			ReadyWhen:             ReadyByStateFile,
			SettleTime:            time.Second,
			Env: map[string]string{
				"HOME":                       "{home}",
				"HERMES_S6_SUPERVISED_CHILD": "1",
				"HERMES_SUPERVISED_CHILD":    "1",
			},
			ProfileCreateCommand: []string{"{agent}", "profile", "create", "{profile}"},
			ProfileDeleteCommand: []string{"{agent}", "profile", "delete", "{profile}", "--yes"},
			ProfileRenameCommand: []string{"{agent}", "profile", "rename", "{profile}", "{to}"},
			ProcessSettings:      newProcessSettings(),
			DeafDetection:        DeafDetection{Action: OnFailureReport, MinSilence: 4 * time.Minute, CheckPeriod: 30 * time.Second},
		},
		Profiles: Profiles{Marker: "SOUL.md", Max: 2000, UIDs: "20000-29999", Overrides: map[string]Profile{}},
		Restart: Restart{
			InitialDelay: time.Second, DelayFactor: 2, MaxDelay: time.Minute, Jitter: 0.1, ResetAfter: time.Minute,
			ParkCodes: []int{78}, ImmediateCodes: []int{75}, SuccessCodes: []int{},
			CrashLoopCount: 5, CrashLoopWindow: time.Minute,
			Policy: RestartAlways, MaxRestartsWindow: 10 * time.Minute,
		},
		Stop:      Stop{Signal: syscall.SIGTERM, Grace: 30 * time.Second},
		Start:     Start{Parallel: ParallelAuto},
		Isolation: newIsolation(),
		Shutdown:  Shutdown{Budget: 8 * time.Second},
		Logs: Logs{
			LogLimits: LogLimits{MaxSizeMB: 1, Archives: 10, Compress: CompressNone},
			Dir:       "{home}/logs/gateways", Console: "raw", MaxLineKB: 64, ConsoleStall: time.Second, Profiles: map[string]LogLimits{},
		},
		Services: map[string]Service{},
		Runs:     map[string]Run{},
		Boot:     Boot{PreparedBy: PreparedByHinit, Hooks: imageHooks()},
		Control:  Control{Socket: "/run/hinit/" + SocketName, OtherUsers: OthersMayReadStatus},
		origins:  map[string]origin{},
	}
}

// hookTimeout is the default timeout of a hook. The hooks of the image start a Python interpreter and read every skill, which takes
// ten seconds on a slow NAS.
const hookTimeout = time.Minute

// NewHook returns a hook with the default timeout.
func NewHook() Hook { return Hook{Timeout: hookTimeout} }

// imageHooks returns the boot steps of the Hermes image (contract, section 2.1, steps 15 and 18). The inputs of a step change with
// the agent's version, or its code uses them. Other dot files of skills are no inputs, because the agent changes them with each use.
func imageHooks() []Hook {
	hook := func(script string, inputs ...string) Hook {
		h := NewHook()
		h.Command, h.IfExists = []string{"/opt/hermes/.venv/bin/python", script}, script
		h.Inputs = append([]string{
			"/etc/hermes/image-provenance.json", "/opt/hermes/.hermes_build_sha", "/opt/hermes/install-stamp.json",
			"/opt/hermes/pyproject.toml", "/opt/hermes/uv.lock", "/opt/hermes/.venv/pyvenv.cfg", "/opt/hermes/*.py",
			"$HERMES_*", "$PYTHON*", "$HOME", "$PATH", "$TZ", "$LANG", "$LC_*",
		}, inputs...)
		return h
	}
	return []Hook{
		hook("/opt/hermes/scripts/docker_config_migrate.py", "/opt/hermes/hermes_cli/**/*.py", "{home}/config.yaml", "{home}/.env"),
		hook("/opt/hermes/tools/skills_sync.py", "/opt/hermes/tools/**/*.py", "/opt/hermes/agent/**/*.py",
			"/opt/hermes/skills", "/opt/hermes/optional-skills", "{home}/skills/[^.]*", "{home}/skills/.bundled_manifest",
			"{home}/skills/.curator_suppressed", "{home}/skills/.hub/lock.json", "{home}/.no-bundled-skills"),
	}
}

// NewService returns a service with the default settings. It copies inherited settings from c, in which all sections except
// services must be complete.
func NewService(c *Config, name string) Service {
	return Service{
		Name: name,
		User: c.Agent.User,
		Cwd:  "{home}",
		// the container's HOME is root's, where the agent's user can't write
		Env:             map[string]string{"HOME": "{home}"},
		Restart:         c.Restart,
		Stop:            c.Stop,
		ProcessSettings: newProcessSettings(),
		HasLogFile:      true,
		Logs:            c.Logs.LogLimits,
		Needs:           []Need{}, RestartOn: []string{},
		Task: Task{Schedule: Schedule{OnMissed: MissedSkip}},
	}
}
