package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func envLookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// DefaultConfig returns the configuration without a file and with an empty environment.
func DefaultConfig() *Config {
	c := Defaults()
	l := loader{cfg: c, Options: Options{Env: envLookup(nil)}}
	l.decodeDocument(nil)
	return c
}

func loadConfig(t *testing.T, text string, vars map[string]string) (*Config, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hinit.yaml")
	if err := os.WriteFile(path, []byte(cmp.Or(text, "{}")), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Load(Options{Path: path, Env: envLookup(vars)})
	if err != nil {
		if c != nil {
			t.Error("Load returned both a configuration and an error")
		}
		return nil, strings.ReplaceAll(err.Error(), path, "hinit.yaml")
	}
	return c, ""
}

func mustLoadConfig(t *testing.T, text string, vars map[string]string) *Config {
	t.Helper()
	c, msg := loadConfig(t, text, vars)
	if msg != "" {
		t.Fatalf("Load: %s", msg)
	}
	return c
}

// Origin returns the place where a key was set: "default", "FILE:LINE" or "env VARIABLE". It is "" for a key that
// [Config.Effective] doesn't list.
func (c *Config) Origin(key string) string {
	for _, e := range c.Effective() {
		if e.Key == key {
			return e.Origin
		}
	}
	return ""
}

func TestDefaultsAreTheImage(t *testing.T) {
	c, err := Load(Options{Path: "", Env: envLookup(map[string]string{"HINIT_CONFIG": ""})})
	if _, statErr := os.Stat(DefaultPath); statErr == nil {
		t.Skipf("this machine has a %s", DefaultPath)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"home":                                 "/opt/data",
		"agent.user":                           "hermes",
		"agent.binary":                         "/opt/hermes/.venv/bin/hermes",
		"agent.gateway":                        []string{"{agent}", "-p", "{profile}", "gateway", "run", "--replace"},
		"agent.gateway_default":                []string{"{agent}", "gateway", "run", "--replace"},
		"agent.cwd":                            "{home}",
		"agent.env.HOME":                       "{home}",
		"agent.env.HERMES_S6_SUPERVISED_CHILD": "1",
		"agent.env.HERMES_SUPERVISED_CHILD":    "1",
		"agent.profile_create":                 []string{"{agent}", "profile", "create", "{profile}"},
		"agent.profile_delete":                 []string{"{agent}", "profile", "delete", "{profile}", "--yes"},
		"agent.profile_rename":                 []string{"{agent}", "profile", "rename", "{profile}", "{to}"},
		"profiles.marker":                      "SOUL.md",
		"profiles.max":                         2000,
		"restart.initial":                      "1s",
		"restart.factor":                       2.0,
		"restart.max":                          "60s",
		"restart.jitter":                       0.1,
		"restart.reset_after":                  "60s",
		"restart.park_on":                      []int{78},
		"restart.immediate_on":                 []int{75},
		"restart.crash_loop_count":             5,
		"restart.crash_loop_window":            "60s",
		"stop.signal":                          "TERM",
		"stop.grace":                           "30s",
		"start.parallel":                       "auto",
		"shutdown.budget":                      "8s",
		"logs.dir":                             "/opt/data/logs/gateways",
		"logs.max_size_mb":                     1,
		"logs.archives":                        10,
		"logs.console":                         "raw",
		"logs.compress":                        "none",
		"logs.mask":                            false,
		"boot.strict":                          false,
		"boot.hooks.0.command":                 []string{"/opt/hermes/.venv/bin/python", "/opt/hermes/scripts/docker_config_migrate.py"},
		"boot.hooks.0.if_exists":               "/opt/hermes/scripts/docker_config_migrate.py",
		"boot.hooks.1.command":                 []string{"/opt/hermes/.venv/bin/python", "/opt/hermes/tools/skills_sync.py"},
		"boot.hooks.1.timeout":                 "60s",
		"boot.hooks.1.required":                false,
		"boot.hooks.1.user":                    "hermes",
		"control.socket":                       "/run/hinit/control.sock",
		"services.dashboard.command": []string{
			"/opt/hermes/.venv/bin/hermes", "dashboard", "--host", "0.0.0.0", "--port", "9119", "--no-open",
		},
		"services.dashboard.enabled":         false,
		"services.dashboard.enabled_by":      "HERMES_DASHBOARD",
		"services.dashboard.restart.park_on": []int{78},
		"services.dashboard.restart.initial": "1s",
		"services.dashboard.env.HOME":        "/opt/data",
		"services.dashboard.cwd":             "/opt/data",
		"services.dashboard.user":            "hermes",
		"services.dashboard.log":             false,
	}
	got := map[string]any{}
	for _, e := range c.Effective() {
		got[e.Key] = e.Value
		if e.Origin != "default" {
			t.Errorf("origin of %s is %q", e.Key, e.Origin)
		}
	}
	for key, value := range want {
		if !reflect.DeepEqual(got[key], value) {
			t.Errorf("%s = %#v, want %#v", key, got[key], value)
		}
	}
	if _, extra := got["services.NAME.command"]; extra || len(c.Services) != 1 {
		t.Errorf("services are %v", sortedKeys(c.Services))
	}
}

func TestFileMissing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for name, opt := range map[string]Options{
		"option":   {Path: missing, Env: envLookup(nil)},
		"variable": {Env: envLookup(map[string]string{"HINIT_CONFIG": missing})},
	} {
		_, err := Load(opt)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: error is %v", name, err)
			continue
		}
		want := fmt.Sprintf("cannot read configuration %q: no such file or directory", missing)
		if name == "variable" {
			want = fmt.Sprintf("cannot read configuration %q (named by HINIT_CONFIG): no such file or directory", missing)
		}
		if err.Error() != want {
			t.Errorf("%s: error is %q, want %q", name, err, want)
		}
	}
	if _, err := Load(Options{Path: t.TempDir(), Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: error is %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{Path: fifo, Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a fifo: error is %v", err)
	}
	big := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(big, []byte("#"+strings.Repeat("x", maxFileSize)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{Path: big, Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: error is %v", err)
	}
}

// A copy to a full disk leaves an empty file, which must be an error. As a configuration without isolation, it would give the
// homes of isolated profiles to the agent's user.
func TestAFileThatAFullDiskHasEmptiedIsNoConfiguration(t *testing.T) {
	for _, text := range []string{"", "\n", "# isolation of all\n", "---\n", "---\nnull\n", "\xef\xbb\xbf"} {
		path := writeFile(t, text)
		if _, err := Load(Options{Path: path, Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), path+": it has no key") {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := Load(Options{Path: path, Content: []byte(text), Env: envLookup(nil)}); err != nil {
			t.Errorf("a re-execution with what is in force already, %q: %v", text, err)
		}
	}
}

// TestEverythingCanBeSet sets each key once, and checks its value and its line.
func TestEverythingCanBeSet(t *testing.T) {
	c := mustLoadConfig(t, `home: /data/
agent:
  user: 1000:100
  binary: /usr/bin/agent
  gateway: [run, "{profile}", "{profile_home}"]
  gateway_default: ["{agent}"]
  cwd: "{profile_home}/work"
  env: {A: 1, HOME: /x, API_KEY: hush}
  deaf: {action: restart, period: 1m}
  profile_create: []
  profile_delete: [rm, "{profile}"]
  profile_rename: [mv, "{profile}", "{to}"]
  settle: 1500ms
profiles: {marker: PROFILE, max: 50}
restart: {initial: 2s, factor: 3, max: 2m, jitter: 0, reset_after: 1h, park_on: [], immediate_on: [1, 2],
  crash_loop_count: 3, crash_loop_window: 10s}
stop: {signal: sigint, grace: 1500ms}
shutdown: {budget: 20s}
logs: {dir: "{home}/l", max_size_mb: 5, archives: 0, max_age: 48h, quota_mb: 40, min_free_mb: 100, rate_limit: 7, compress: gzip, console: json, console_stall: 3s, max_line_kb: 8, mask: true, profiles: {coder: {archives: 2, compress: none}, default: {}}}
boot: {strict: true, hooks: [{command: [a, "{home}"], inputs: ["{home}/**/*.md", /etc/x]}, {command: [b], user: root, timeout: 5s, required: true, if_exists: "{home}/c"}]}
control: {socket: /run/x/s, others: none}
services:
  web:
    command: [httpd, -p, 80, "{home}", "${home}", "{{home}}"]
    enabled: false
    enabled_by: WEB
    user: www
    cwd: "{home}/web"
    env: {B: "{agent}"}
    immediate_on: [9]
    success_codes: [3]
    group: fronts
    reload_signal: hup
    stop_command: [httpd, stop, "{home}"]
    restart: {initial: 3s, factor: 1, max: 3s, jitter: 0.5, reset_after: 2s, park_on: [0, 255], crash_loop_count: 9, crash_loop_window: 1s}
    stop: {signal: KILL, grace: 1s}
    limits: {nofile: 1024, core: 0, memlock: unlimited}
    log: false
    logs: {max_size_mb: 2, archives: 3, max_age: 1h, quota_mb: 6, min_free_mb: 0, rate_limit: 0, compress: none}
  dashboard: {user: dash, env: {X: y}}
runs:
  index: {command: [indexer, "{task}"], env: {H: "{home}"}, limits: {nofile: 64}, grace: 1s}
`, nil)
	want := Config{
		Home: "/data",
		Agent: Agent{
			User: "1000:100", Binary: "/usr/bin/agent", GatewayCommand: []string{"run", "{profile}", "{profile_home}"},
			DefaultGatewayCommand: []string{"{agent}"}, Cwd: "{profile_home}/work", ReadyWhen: ReadyByStateFile, SettleTime: 1500 * time.Millisecond,
			DeafDetection: DeafDetection{Action: OnFailureRestart, MinSilence: 4 * time.Minute, CheckPeriod: time.Minute},
			Env: map[string]string{
				"A": "1", "HOME": "/x", "API_KEY": "hush", "HERMES_S6_SUPERVISED_CHILD": "1", "HERMES_SUPERVISED_CHILD": "1",
			},
			ProfileCreateCommand: []string{}, ProfileDeleteCommand: []string{"rm", "{profile}"}, ProfileRenameCommand: []string{"mv", "{profile}", "{to}"}, ProcessSettings: newProcessSettings(),
		},
		Profiles: Profiles{Marker: "PROFILE", Max: 50, UIDs: "20000-29999", Overrides: map[string]Profile{}},
		Restart: Restart{
			InitialDelay: 2 * time.Second, DelayFactor: 3, MaxDelay: 2 * time.Minute, Jitter: 0, ResetAfter: time.Hour,
			ParkCodes: []int{}, ImmediateCodes: []int{1, 2}, SuccessCodes: []int{}, CrashLoopCount: 3, CrashLoopWindow: 10 * time.Second, Policy: RestartAlways, MaxRestartsWindow: 10 * time.Minute,
		},
		Stop:      Stop{Signal: syscall.SIGINT, Grace: 1500 * time.Millisecond},
		Start:     Start{Parallel: ParallelAuto},
		Isolation: newIsolation(),
		Shutdown:  Shutdown{Budget: 20 * time.Second},
		Logs: Logs{
			LogLimits: LogLimits{MaxSizeMB: 5, Archives: 0, MaxAge: 48 * time.Hour, QuotaMB: 40, MinFreeMB: 100, RateLimit: 7, Compress: "gzip"},
			Dir:       "/data/l", Console: "json", MaxLineKB: 8, ConsoleStall: 3 * time.Second, MaskSecrets: true,
			Profiles: map[string]LogLimits{
				"coder":   {MaxSizeMB: 5, Archives: 2, MaxAge: 48 * time.Hour, QuotaMB: 40, MinFreeMB: 100, RateLimit: 7, Compress: "none"},
				"default": {MaxSizeMB: 5, Archives: 0, MaxAge: 48 * time.Hour, QuotaMB: 40, MinFreeMB: 100, RateLimit: 7, Compress: "gzip"},
			},
		},
		Boot: Boot{PreparedBy: PreparedByHinit, Strict: true, Hooks: []Hook{
			{Command: []string{"a", "/data"}, User: "1000:100", Timeout: time.Minute, Inputs: []string{"/data/**/*.md", "/etc/x"}},
			{Command: []string{"b"}, User: "root", Timeout: 5 * time.Second, Required: true, IfExists: "/data/c"},
		}},
		Control: Control{Socket: "/run/x/s", OtherUsers: "none"},
	}
	want.Services = map[string]Service{
		"web": {
			Name: "web", Command: []string{"httpd", "-p", "80", "/data", "${home}", "{home}"}, EnabledBy: "WEB", User: "www",
			Cwd: "/data/web", Env: map[string]string{"B": "/usr/bin/agent", "HOME": "/data"},
			Restart: Restart{
				InitialDelay: 3 * time.Second, DelayFactor: 1, MaxDelay: 3 * time.Second, Jitter: 0.5, ResetAfter: 2 * time.Second,
				ParkCodes: []int{0, 255}, ImmediateCodes: []int{9}, SuccessCodes: []int{3}, CrashLoopCount: 9, CrashLoopWindow: time.Second, Policy: RestartAlways, MaxRestartsWindow: 10 * time.Minute,
			},
			Stop: Stop{Signal: syscall.SIGKILL, Grace: time.Second},
			ProcessSettings: ProcessSettings{
				NoNewPrivs: Auto, Priority: Priority{Class: PriorityNormal}, Limits: map[string]ResourceLimit{"nofile": {1024, 1024}, "core": {}, "memlock": {Unlimited, Unlimited}},
				Operator: OperatorSettings{"fronts", "hup", []string{"httpd", "stop", "/data"}},
			},
			Logs:  LogLimits{MaxSizeMB: 2, Archives: 3, MaxAge: time.Hour, QuotaMB: 6, Compress: "none"},
			Needs: []Need{}, RestartOn: []string{}, Task: Task{Schedule: Schedule{OnMissed: MissedSkip}},
		},
		"dashboard": {
			Name: "dashboard", User: "dash", EnabledBy: "HERMES_DASHBOARD", Cwd: "/data",
			Command: []string{"/usr/bin/agent", "dashboard", "--host", "0.0.0.0", "--port", "9119", "--no-open"},
			Env:     map[string]string{"HOME": "/data", "X": "y"},
			Restart: want.Restart, Stop: want.Stop, ProcessSettings: newProcessSettings(), Logs: want.Logs.LogLimits,
			Needs: []Need{}, RestartOn: []string{}, Task: Task{Schedule: Schedule{OnMissed: MissedSkip}},
		},
	}
	want.Runs = map[string]Run{
		"kanban-worker": {Command: KanbanWorkerCommand(), Env: map[string]string{}, Limits: map[string]ResourceLimit{}, Grace: 5 * time.Second},
		"index":         {Command: []string{"indexer", "{task}"}, Env: map[string]string{"H": "/data"}, Limits: map[string]ResourceLimit{"nofile": {64, 64}}, Grace: time.Second},
	}
	want.Path, want.Content, want.origins = c.Path, c.Content, c.origins
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("got  %+v\nwant %+v", *c, want)
	}
	for key, line := range map[string]int{
		"home": 1, "agent.user": 3, "agent.env.A": 8, "agent.profile_create": 10, "restart.initial": 15,
		"restart.crash_loop_count": 16, "stop.grace": 17, "control.others": 21, "services.web.command": 24,
		"services.web.restart.immediate_on": 30, "services.web.restart.success_codes": 31, "services.web.limits.core": 37, "services.dashboard.env.X": 40,
		"services.dashboard.restart.max": 15, // line of the common restart policy, which this service inherits
		"services.dashboard.stop.signal": 17,
		"logs.profiles.coder.archives":   19, "logs.profiles.default.archives": 19,
	} {
		if got, want := c.Origin(key), fmt.Sprintf("%s:%d", c.Path, line); got != want {
			t.Errorf("origin of %s is %q, want %q", key, got, want)
		}
	}
	for key, want := range map[string]string{
		"agent.env.HERMES_SUPERVISED_CHILD": "default", "services.dashboard.command": "default", "services.dashboard.log": "default",
		"agent.env.NONE": "", "restart": "", "nonsense": "",
	} {
		if got := c.Origin(key); got != want {
			t.Errorf("origin of %s is %q, want %q", key, got, want)
		}
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hinit.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHarmlessForms(t *testing.T) {
	for name, text := range map[string]string{
		"empty sections":   "restart:\nservices:\nagent:\n  env:\n",
		"empty dashboard":  "services:\n  dashboard:\n",
		"byte order mark":  "\xef\xbb\xbf{}\n",
		"carriage returns": "restart:\r\n  factor: 2\r\n",
	} {
		c := mustLoadConfig(t, text, nil)
		if changes := Diff(DefaultConfig(), c); len(changes) != 0 {
			t.Errorf("%s: changes %v", name, changes)
		}
	}
	c := mustLoadConfig(t, "stop: &s {grace: 5s}\nservices: {w: {command: &c [a], stop: *s}, v: {command: *c}}", nil)
	if got := c.Services["w"].Stop.Grace; got != 5*time.Second {
		t.Errorf("grace through an alias is %s", got)
	}
}

func TestEnvironmentWins(t *testing.T) {
	c := mustLoadConfig(t, "home: /file\nshutdown: {budget: 1s}\nlogs: {console: off}\ncontrol: {socket: /a/b}\n", map[string]string{
		"HERMES_HOME": "/env/", "HINIT_STOP_TIMEOUT": "7.5", "HINIT_LOG_CONSOLE": "json", "HINIT_RUNTIME_DIR": "/run/h",
	})
	if c.Home != "/env" || c.Shutdown.Budget != 7500*time.Millisecond || c.Logs.Console != "json" || c.Control.Socket != "/run/h/control.sock" {
		t.Errorf("got %q %s %q %q", c.Home, c.Shutdown.Budget, c.Logs.Console, c.Control.Socket)
	}
	if c.Logs.Dir != "/env/logs/gateways" || c.Services["dashboard"].Cwd != "/env" {
		t.Errorf("what follows the home: %q %q", c.Logs.Dir, c.Services["dashboard"].Cwd)
	}
	for key, want := range map[string]string{
		"home": "env HERMES_HOME", "shutdown.budget": "env HINIT_STOP_TIMEOUT", "logs.console": "env HINIT_LOG_CONSOLE",
		"control.socket": "env HINIT_RUNTIME_DIR",
	} {
		if got := c.Origin(key); got != want {
			t.Errorf("origin of %s is %q", key, got)
		}
	}
	c = mustLoadConfig(t, "home: /file", map[string]string{"HERMES_HOME": "", "HINIT_STOP_TIMEOUT": "1m", "HERMES_DASHBOARD_PORT": ""})
	if c.Home != "/file" || c.Shutdown.Budget != time.Minute {
		t.Errorf("empty variable and Go duration: %q %s", c.Home, c.Shutdown.Budget)
	}
}

func TestDashboard(t *testing.T) {
	argv := func(words ...string) []string {
		return append([]string{"/opt/hermes/.venv/bin/hermes", "dashboard"}, words...)
	}
	for _, tt := range []struct {
		name, text string
		env        map[string]string
		command    []string
		enabled    bool
		origin     string
		warnings   int
	}{
		{"off", "", nil, argv("--host", "0.0.0.0", "--port", "9119", "--no-open"), false, "default", 0},
		{"on", "", map[string]string{"HERMES_DASHBOARD": "1"}, argv("--host", "0.0.0.0", "--port", "9119", "--no-open"), true, "env HERMES_DASHBOARD", 0},
		{"on is no yes", "", map[string]string{"HERMES_DASHBOARD": "on"}, nil, false, "env HERMES_DASHBOARD", 1},
		{"tRuE is no yes", "", map[string]string{"HERMES_DASHBOARD": "tRuE"}, nil, false, "env HERMES_DASHBOARD", 1},
		{"no is plain", "", map[string]string{"HERMES_DASHBOARD": "no"}, nil, false, "env HERMES_DASHBOARD", 0},
		{
			"address", "",
			map[string]string{"HERMES_DASHBOARD_HOST": "::1", "HERMES_DASHBOARD_PORT": "80", "HERMES_DASHBOARD_INSECURE": "yes"},
			argv("--host", "::1", "--port", "80", "--no-open", "--insecure"), false, "default", 0,
		},
		{"not insecure by host", "", map[string]string{"HERMES_DASHBOARD_INSECURE": "0"}, argv("--host", "0.0.0.0", "--port", "9119", "--no-open"), false, "default", 0},
		{"enabled by the file", "services: {dashboard: {enabled: true}}", nil, nil, true, "hinit.yaml:1", 0},
		{"the variable wins", "services: {dashboard: {enabled: true}}", map[string]string{"HERMES_DASHBOARD": "0"}, nil, false, "env HERMES_DASHBOARD", 0},
		{"another variable", "services: {dashboard: {enabled_by: D}}", map[string]string{"D": "Yes"}, nil, true, "env D", 0},
		{"no variable", `services: {dashboard: {enabled_by: ""}}`, nil, nil, true, "default", 0},
		{"own command", "services: {dashboard: {command: [d]}}", map[string]string{"HERMES_DASHBOARD_HOST": "::1"}, []string{"d"}, false, "default", 0},
		{"another agent", "agent: {binary: /a}", nil, []string{"/a", "dashboard", "--host", "0.0.0.0", "--port", "9119", "--no-open"}, false, "default", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mustLoadConfig(t, tt.text, tt.env)
			s := c.Services["dashboard"]
			if tt.command != nil && !slices.Equal(s.Command, tt.command) {
				t.Errorf("command is %q", s.Command)
			}
			if s.Enabled != tt.enabled {
				t.Errorf("enabled is %t", s.Enabled)
			}
			if got := strings.ReplaceAll(c.Origin("services.dashboard.enabled"), c.Path, "hinit.yaml"); got != tt.origin {
				t.Errorf("origin of enabled is %q", got)
			}
			if len(c.Warnings) != tt.warnings {
				t.Errorf("warnings are %q", c.Warnings)
			}
		})
	}
	c := mustLoadConfig(t, "", map[string]string{"HERMES_DASHBOARD_HOST": "::1", "HERMES_DASHBOARD_PORT": "80"})
	if got := c.Origin("services.dashboard.command"); got != "env HERMES_DASHBOARD_HOST, HERMES_DASHBOARD_PORT" {
		t.Errorf("origin of the command is %q", got)
	}
}

func TestOwnServiceIsEnabledUnlessAVariableDecides(t *testing.T) {
	for _, tt := range []struct {
		text string
		env  map[string]string
		want bool
	}{
		{"{command: [a]}", nil, true},
		{"{command: [a], enabled: false}", nil, false},
		{"{command: [a], enabled_by: W}", nil, false},
		{"{command: [a], enabled_by: W}", map[string]string{"W": "true"}, true},
		{"{command: [a], enabled_by: W, enabled: true}", map[string]string{"W": ""}, true},
	} {
		c := mustLoadConfig(t, "services: {w: "+tt.text+"}", tt.env)
		if s := c.Services["w"]; s.Enabled != tt.want || !s.HasLogFile {
			t.Errorf("%s with %v: enabled %t, log %t", tt.text, tt.env, s.Enabled, s.HasLogFile)
		}
	}
}

const otherUID = 10000

func TestBootFromEnvironmentAndOrigins(t *testing.T) {
	path := writeFile(t, "boot:\n  strict: true\n  hooks:\n  - command: [a]\n    timeout: 5s\n")
	c, err := Load(Options{Path: path, Env: envLookup(map[string]string{"HINIT_BOOT_STRICT": "no"})})
	if err != nil {
		t.Fatal(err)
	}
	if c.Boot.Strict || c.Origin("boot.strict") != "env HINIT_BOOT_STRICT" {
		t.Errorf("strict is %v, from %s", c.Boot.Strict, c.Origin("boot.strict"))
	}
	for key, want := range map[string]string{
		"boot.hooks.0.timeout": path + ":5", "boot.hooks.0.required": "default", "boot.hooks.1.command": "",
	} {
		if got := c.Origin(key); got != want {
			t.Errorf("origin of %s is %q, want %q", key, got, want)
		}
	}
	if c, err = Load(Options{Path: writeFile(t, "boot: {hooks: []}"), Env: envLookup(nil)}); err != nil || len(c.Boot.Hooks) != 0 {
		t.Errorf("an empty list leaves %v (%v)", c.Boot.Hooks, err)
	}
}
