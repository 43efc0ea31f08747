package config

import (
	"encoding/json"
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

	"hinit/internal/redact"
)

func environ(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// load loads text as a file named hinit.yaml, which stands for its path in the error.
func load(t *testing.T, text string, vars map[string]string) (*Config, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hinit.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Load(Options{Path: path, Env: environ(vars)})
	if err != nil {
		if c != nil {
			t.Error("Load returned both a configuration and an error")
		}
		return nil, strings.ReplaceAll(err.Error(), path, "hinit.yaml")
	}
	return c, ""
}

func mustLoad(t *testing.T, text string, vars map[string]string) *Config {
	t.Helper()
	c, msg := load(t, text, vars)
	if msg != "" {
		t.Fatalf("Load: %s", msg)
	}
	return c
}

func TestDefaultsAreTheImage(t *testing.T) {
	c, err := Load(Options{Path: "", Env: environ(map[string]string{"HINIT_CONFIG": ""})})
	if _, statErr := os.Stat(DefaultPath); statErr == nil {
		t.Skipf("this machine has a %s", DefaultPath)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, Default()) {
		t.Error("Load without a file differs from Default")
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
		"option":   {Path: missing, Env: environ(nil)},
		"variable": {Env: environ(map[string]string{"HINIT_CONFIG": missing})},
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
	if _, err := Load(Options{Path: t.TempDir(), Env: environ(nil)}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: error is %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{Path: fifo, Env: environ(nil)}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a fifo: error is %v", err)
	}
	big := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(big, []byte("#"+strings.Repeat("x", maxFileSize)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{Path: big, Env: environ(nil)}); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: error is %v", err)
	}
}

// TestEverythingCanBeSet writes each key once and finds it in the configuration with its line.
func TestEverythingCanBeSet(t *testing.T) {
	c := mustLoad(t, `home: /data/
agent:
  user: 1000:100
  binary: /usr/bin/agent
  gateway: [run, "{profile}", "{profile_home}"]
  gateway_default: ["{agent}"]
  cwd: "{profile_home}/work"
  env: {A: 1, HOME: /x, API_KEY: hush}
  profile_create: []
  profile_delete: [rm, "{profile}"]
  profile_rename: [mv, "{profile}", "{to}"]
  settle: 1500ms
profiles: {marker: PROFILE, max: 50}
restart: {initial: 2s, factor: 3, max: 2m, jitter: 0, reset_after: 1h, park_on: [], immediate_on: [1, 2],
  crash_loop_count: 3, crash_loop_window: 10s}
stop: {signal: sigint, grace: 1500ms}
shutdown: {budget: 20s}
logs: {dir: "{home}/l", max_size_mb: 5, archives: 0, max_age: 48h, quota_mb: 40, min_free_mb: 100, rate_limit: 7, compress: gzip, console: json, max_line_kb: 8, mask: true, profiles: {coder: {archives: 2, compress: none}, default: {}}}
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
    restart: {initial: 3s, factor: 1, max: 3s, jitter: 0.5, reset_after: 2s, park_on: [0, 255], crash_loop_count: 9, crash_loop_window: 1s}
    stop: {signal: KILL, grace: 1s}
    limits: {nofile: 1024, core: 0, memlock: unlimited}
    log: false
    logs: {max_size_mb: 2, archives: 3, max_age: 1h, quota_mb: 6, min_free_mb: 0, rate_limit: 0, compress: none}
  dashboard: {user: dash, env: {X: y}}
`, nil)
	want := Config{
		Home: "/data",
		Agent: Agent{
			User: "1000:100", Binary: "/usr/bin/agent", Gateway: []string{"run", "{profile}", "{profile_home}"},
			GatewayDefault: []string{"{agent}"}, Cwd: "{profile_home}/work", Ready: ReadyState, Settle: 1500 * time.Millisecond,
			Env: map[string]string{
				"A": "1", "HOME": "/x", "API_KEY": "hush", "HERMES_S6_SUPERVISED_CHILD": "1", "HERMES_SUPERVISED_CHILD": "1",
			},
			ProfileCreate: []string{}, ProfileDelete: []string{"rm", "{profile}"}, ProfileRename: []string{"mv", "{profile}", "{to}"},
		},
		Profiles: Profiles{Marker: "PROFILE", Max: 50},
		Restart: Restart{
			Initial: 2 * time.Second, Factor: 3, Max: 2 * time.Minute, Jitter: 0, ResetAfter: time.Hour,
			ParkOn: []int{}, ImmediateOn: []int{1, 2}, CrashLoopCount: 3, CrashLoopWindow: 10 * time.Second,
		},
		Stop:     Stop{Signal: syscall.SIGINT, Grace: 1500 * time.Millisecond},
		Shutdown: Shutdown{Budget: 20 * time.Second},
		Logs: Logs{
			LogLimits: LogLimits{MaxSizeMB: 5, Archives: 0, MaxAge: 48 * time.Hour, QuotaMB: 40, MinFreeMB: 100, RateLimit: 7, Compress: "gzip"},
			Dir:       "/data/l", Console: "json", MaxLineKB: 8, Mask: true,
			Profiles: map[string]LogLimits{
				"coder":   {MaxSizeMB: 5, Archives: 2, MaxAge: 48 * time.Hour, QuotaMB: 40, MinFreeMB: 100, RateLimit: 7, Compress: "none"},
				"default": {MaxSizeMB: 5, Archives: 0, MaxAge: 48 * time.Hour, QuotaMB: 40, MinFreeMB: 100, RateLimit: 7, Compress: "gzip"},
			},
		},
		Boot: Boot{Strict: true, Hooks: []Hook{
			{Command: []string{"a", "/data"}, User: "1000:100", Timeout: time.Minute, Inputs: []string{"/data/**/*.md", "/etc/x"}},
			{Command: []string{"b"}, User: "root", Timeout: 5 * time.Second, Required: true, IfExists: "/data/c"},
		}},
		Control: Control{Socket: "/run/x/s", Others: "none"},
	}
	want.Services = map[string]Service{
		"web": {
			Name: "web", Command: []string{"httpd", "-p", "80", "/data", "${home}", "{home}"}, EnabledBy: "WEB", User: "www",
			Cwd: "/data/web", Env: map[string]string{"B": "/usr/bin/agent", "HOME": "/data"},
			Restart: Restart{
				Initial: 3 * time.Second, Factor: 1, Max: 3 * time.Second, Jitter: 0.5, ResetAfter: 2 * time.Second,
				ParkOn: []int{0, 255}, ImmediateOn: []int{9}, CrashLoopCount: 9, CrashLoopWindow: time.Second,
			},
			Stop:   Stop{Signal: syscall.SIGKILL, Grace: time.Second},
			Limits: map[string]uint64{"nofile": 1024, "core": 0, "memlock": Unlimited},
			Logs:   LogLimits{MaxSizeMB: 2, Archives: 3, MaxAge: time.Hour, QuotaMB: 6, Compress: "none"},
		},
		"dashboard": {
			Name: "dashboard", User: "dash", EnabledBy: "HERMES_DASHBOARD", Cwd: "/data",
			Command: []string{"/usr/bin/agent", "dashboard", "--host", "0.0.0.0", "--port", "9119", "--no-open"},
			Env:     map[string]string{"HOME": "/data", "X": "y"},
			Restart: want.Restart, Stop: want.Stop, Limits: map[string]uint64{}, Logs: want.Logs.LogLimits,
		},
	}
	want.Path, want.Text, want.origins = c.Path, c.Text, c.origins
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("got  %+v\nwant %+v", *c, want)
	}
	for key, line := range map[string]int{
		"home": 1, "agent.user": 3, "agent.env.A": 8, "agent.profile_create": 9, "restart.initial": 14,
		"restart.crash_loop_count": 15, "stop.grace": 16, "control.others": 20, "services.web.command": 23,
		"services.web.restart.immediate_on": 29, "services.web.limits.core": 32, "services.dashboard.env.X": 35,
		"services.dashboard.restart.max": 14, // inherited from where the restart policy was set
		"services.dashboard.stop.signal": 16,
		"logs.profiles.coder.archives":   18, "logs.profiles.default.archives": 18,
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

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		env        map[string]string
		want       string
	}{
		{"typo", "restart:\n  inital: 1s\n", nil, `hinit.yaml:2: unknown key "restart.inital"; did you mean "restart.initial"?`},
		{"top level typo", "hmoe: /x", nil, `hinit.yaml:1: unknown key "hmoe"; did you mean "home"?`},
		{"wrong place", "grace: 1s", nil, `hinit.yaml:1: unknown key "grace"; did you mean "stop.grace"?`},
		{
			"wrong place in a service", "services:\n  web:\n    command: [a]\n    grace: 1s\n", nil,
			`hinit.yaml:4: unknown key "services.web.grace"; did you mean "services.web.stop.grace"?`,
		},
		{
			"service typo", "services: {dashboard: {comand: [a]}}", nil,
			`hinit.yaml:1: unknown key "services.dashboard.comand"; did you mean "services.dashboard.command"?`,
		},
		{"nothing near", "profiles: {wibble: 1}", nil, `hinit.yaml:1: unknown key "profiles.wibble"; known here: marker, max`},
		{
			"limit typo", "services: {w: {command: [a], limits: {nofiles: 1}}}", nil,
			`hinit.yaml:1: unknown key "services.w.limits.nofiles"; did you mean "services.w.limits.nofile"?`,
		},
		{"list for text", "home: [a]", nil, "hinit.yaml:1: cannot set home: expected a path, got a list"},
		{"nothing for text", "home:", nil, "hinit.yaml:1: cannot set home: expected a path, got nothing"},
		{
			"boolean for text", "agent: {user: true}", nil,
			`hinit.yaml:1: cannot set agent.user: expected a user, got the boolean true; write "true" in quotes`,
		},
		{
			"scalar for mapping", "restart: 5", nil, "hinit.yaml:1: cannot read restart: expected a mapping with keys crash_loop_count, " +
				"crash_loop_window, factor, immediate_on, initial, jitter, max, park_on, reset_after, got the number 5",
		},
		{
			"list for file", "- a", nil, "hinit.yaml:1: cannot read the file: expected a mapping with keys agent, boot, control, " +
				"home, logs, profiles, restart, services, shutdown, stop, got a list",
		},
		{
			"number for duration", "stop: {grace: 30}", nil,
			`hinit.yaml:1: cannot set stop.grace: expected a duration such as 30s, got the number 30; write "30s"`,
		},
		{"bad duration", "stop: {grace: 30 s}", nil, `hinit.yaml:1: cannot set stop.grace: expected a duration such as 30s, got the text "30 s"`},
		{"zero duration", "stop: {grace: 0s}", nil, "hinit.yaml:1: cannot set stop.grace: expected a duration above zero, got 0s"},
		{"negative duration", "stop: {grace: -1h}", nil, "hinit.yaml:1: cannot set stop.grace: expected a duration above zero, got -1h"},
		{"yes is no boolean", "boot: {strict: yes}", nil, `hinit.yaml:1: cannot set boot.strict: expected true or false, got the text "yes"`},
		{"text for number", "logs: {archives: many}", nil, `hinit.yaml:1: cannot set logs.archives: expected a whole number, got the text "many"`},
		{"fraction for whole", "logs: {archives: 1.5}", nil, "hinit.yaml:1: cannot set logs.archives: expected a whole number, got the number 1.5"},
		{"quoted number", `logs: {archives: "1"}`, nil, `hinit.yaml:1: cannot set logs.archives: expected a whole number, got the text "1"`},
		{"out of range", "logs: {archives: -1}", nil, "hinit.yaml:1: cannot set logs.archives: expected a number from 0 to 10000, got -1"},
		{"factor", "restart: {factor: 0.9}", nil, "hinit.yaml:1: cannot set restart.factor: expected a number from 1 to 1000, got 0.9"},
		{"not a number", "restart: {factor: .nan}", nil, "hinit.yaml:1: cannot set restart.factor: expected a number, got the number .nan"},
		{"jitter", "restart: {jitter: 0.6}", nil, "hinit.yaml:1: cannot set restart.jitter: expected a number from 0 to 0.5, got 0.6"},
		{"codes", "restart: {park_on: 78}", nil, "hinit.yaml:1: cannot set restart.park_on: expected a list of numbers such as [78], got the number 78"},
		{"code", "restart: {park_on: [1, x]}", nil, `hinit.yaml:1: cannot set restart.park_on: expected whole numbers, got the text "x"`},
		{"code range", "restart: {park_on: [256]}", nil, "hinit.yaml:1: cannot set restart.park_on: an exit code is from 0 to 255, got 256"},
		{"max below initial", "restart: {initial: 2m}", nil, "hinit.yaml:1: cannot use restart: max (60s) is shorter than initial (2m)"},
		{
			"max below initial in a service", "services:\n  w:\n    command: [a]\n    restart: {max: 1ms}\n", nil,
			"hinit.yaml:4: cannot use services.w.restart: max (1ms) is shorter than initial (1s)",
		},
		{"both lists", "restart: {park_on: [75]}", nil, "hinit.yaml:1: cannot use restart: exit code 75 is in both park_on and immediate_on"},
		{"signal", "stop: {signal: STOP}", nil, `hinit.yaml:1: cannot set stop.signal: expected one of TERM, INT, HUP, QUIT, USR1, USR2, KILL, got the text "STOP"`},
		{"console", "logs: {console: loud}", nil, `hinit.yaml:1: cannot set logs.console: expected one of raw, prefixed, json, off, got "loud"`},
		{"relative home", "home: data", nil, `hinit.yaml:1: cannot set home: expected an absolute path, got "data"`},
		{"root as home", "home: //", nil, "hinit.yaml:1: cannot set home: the root directory cannot be the home"},
		{"compression", "logs: {compress: xz}", nil, `hinit.yaml:1: cannot set logs.compress: expected one of none, gzip, got "xz"`},
		{"name of a profile", "logs:\n  profiles: {Coder: {archives: 1}}", nil, `hinit.yaml:2: cannot set logs.profiles: "Coder" cannot be the name of a profile`},
		{"limit of a profile", "logs:\n  profiles: {coder: {archive: 1}}", nil, `hinit.yaml:2: unknown key "logs.profiles.coder.archive"; did you mean "logs.profiles.coder.archives"?`},
		{"profiles of logs", "logs:\n  profile: {coder: {}}", nil, `hinit.yaml:2: unknown key "logs.profile"; did you mean "logs.profiles"?`},
		{"relative directory", "logs: {dir: l}", nil, `hinit.yaml:1: cannot set logs.dir: expected an absolute path, got "l"`},
		{"marker", "profiles: {marker: a/b}", nil, `hinit.yaml:1: cannot set profiles.marker: expected the name of a file, got "a/b"`},
		{"user", "agent: {user: a b}", nil, `hinit.yaml:1: cannot set agent.user: expected a user name, a uid or user:group, got "a b"`},
		{"socket", "control: {socket: /" + strings.Repeat("x", 107) + "}", nil, "hinit.yaml:1: cannot set control.socket: the path of a socket can have 107 bytes, this one has 108"},
		{"empty command", "agent: {gateway: []}", nil, "hinit.yaml:1: cannot set agent.gateway: a command cannot be empty"},
		{"empty word", `agent: {profile_create: [""]}`, nil, "hinit.yaml:1: cannot set agent.profile_create: the first word of a command cannot be empty"},
		{
			"command as text", "services: {w: {command: sleep 60}}", nil,
			`hinit.yaml:1: cannot set services.w.command: expected a list of words such as ["sleep", "60"], got the text "sleep 60"`,
		},
		{"placeholder", `agent: {gateway: [a, "{profil}"]}`, nil, "hinit.yaml:1: cannot set agent.gateway: unknown placeholder {profil}; did you mean {profile}?"},
		{
			"placeholder elsewhere", `agent: {gateway: ["{to}x"]}`, nil, "hinit.yaml:1: cannot set agent.gateway: unknown placeholder {to}; " +
				"known here: {agent}, {profile}, {home}, {profile_home}; write {{to}} for the text itself",
		},
		{"placeholder in a variable", `agent: {env: {A: "{hoem}"}}`, nil, "hinit.yaml:1: cannot set agent.env: A: unknown placeholder {hoem}; did you mean {home}?"},
		{"variable without value", "agent: {env: {A: }}", nil, "hinit.yaml:1: cannot set agent.env.A: expected text, got nothing"},
		{"variable name", `agent: {env: {"A=B": x}}`, nil, `hinit.yaml:1: cannot set agent.env: "A=B" cannot be the name of an environment variable`},
		{"NUL", `agent: {env: {A: "x\0y"}}`, nil, "hinit.yaml:1: cannot set agent.env.A: it contains a NUL byte"},
		{"hooks", "boot: {hooks: {command: [a]}}", nil, `hinit.yaml:1: cannot set boot.hooks: expected a list of hooks such as [{command: ["sync"]}], got a mapping`},
		{"hook", "boot: {hooks: [sync]}", nil, `hinit.yaml:1: cannot set boot.hooks.0: expected a hook such as {command: ["sync"]}, got the text "sync"`},
		{"hook without command", "boot:\n  hooks:\n  - {command: [a]}\n  - {user: root}\n", nil, "hinit.yaml:4: cannot use boot.hooks.1: its command is missing"},
		{"hook timeout", "boot: {hooks: [{command: [a], timeout: 0s}]}", nil, "hinit.yaml:1: cannot set boot.hooks.0.timeout: expected a duration above zero, got 0s"},
		{"hook input", "boot: {hooks: [{command: [a], inputs: [b]}]}", nil, `hinit.yaml:1: cannot set boot.hooks.0.inputs: expected an absolute path, got "b"`},
		{"hook glob", "boot: {hooks: [{command: [a], inputs: [\"/a/[\"]}]}", nil, `hinit.yaml:1: cannot set boot.hooks.0.inputs: "/a/[" is no glob: syntax error in pattern`},
		{"hook of root with inputs", "boot: {hooks: [{command: [a], user: root, inputs: [/a]}]}", nil, `hinit.yaml:1: cannot set boot.hooks.0.inputs: only a hook that runs as the agent's user can be skipped, for the record of it is the agent's; leave out the inputs, or user "root"`},
		{"hook file", "boot: {hooks: [{command: [a], if_exists: b}]}", nil, `hinit.yaml:1: cannot set boot.hooks.0.if_exists: expected an absolute path, got "b"`},
		{"hook typo", "boot: {hooks: [{comand: [a]}]}", nil, `hinit.yaml:1: unknown key "boot.hooks.0.comand"; did you mean "boot.hooks.0.command"?`},
		{"strict variable", "", map[string]string{"HINIT_BOOT_STRICT": "maybe"}, `cannot use HINIT_BOOT_STRICT="maybe": expected 1, true or yes, or 0, false or no`},
		{"no command", "services:\n  web:\n", nil, `hinit.yaml:2: cannot use service "web": services.web.command is missing`},
		{
			"service name", "services: {Web: {command: [a]}}", nil,
			`hinit.yaml:1: cannot use service name "Web": a name is 1 to 64 of "a" to "z", "0" to "9", "_" and "-", and begins with a letter or digit`,
		},
		{
			"gateway as service", "services: {gateway-x: {command: [a]}}", nil,
			`hinit.yaml:1: cannot use service name "gateway-x": names that begin with "gateway-" belong to the gateways of profiles`,
		},
		{"cmd as service", "services: {cmd: {command: [a]}}", nil, `hinit.yaml:1: cannot use service name "cmd": the name is taken by hinit itself`},
		{"limit", "services: {w: {command: [a], limits: {core: -1}}}", nil, "hinit.yaml:1: cannot set services.w.limits.core: expected a number from 0 to 9223372036854775807 or unlimited, got the number -1"},
		{
			"same list twice", "services:\n  w:\n    command: [a]\n    park_on: [1]\n    restart: {park_on: [1]}\n", nil,
			"hinit.yaml:5: cannot set services.w.restart.park_on: it is already set on line 4",
		},
		{"duplicate", "stop: {grace: 1s}\nhome: /x\nstop: {}\n", nil, `hinit.yaml:3: duplicate key "stop"; it is already set on line 1`},
		{"duplicate below", "stop:\n  grace: 1s\n  grace: 2s\n", nil, `hinit.yaml:3: duplicate key "stop.grace"; it is already set on line 2`},
		{"merge key", "stop: &s {grace: 1s}\nservices: {w: {command: [a], stop: {<<: *s}}}\n", nil, "hinit.yaml:2: merge keys (<<) are not supported; write the keys out"},
		{"two documents", "home: /x\n---\nhome: /y\n", nil, "hinit.yaml:2: cannot read a second document; one file is one configuration"},
		{"syntax", "home: /x\n  a: b\n", nil, "hinit.yaml:2: cannot parse YAML: mapping values are not allowed in this context; is the line indented as those of the same level?"},
		{"home variable", "", map[string]string{"HERMES_HOME": "data"}, `cannot use HERMES_HOME="data": expected an absolute path, got "data"`},
		{"timeout variable", "", map[string]string{"HINIT_STOP_TIMEOUT": "soon"}, `cannot use HINIT_STOP_TIMEOUT="soon": expected a duration such as 8s, or a number of seconds`},
		{"timeout too small", "", map[string]string{"HINIT_STOP_TIMEOUT": "-1"}, `cannot use HINIT_STOP_TIMEOUT="-1": expected a duration above zero, got -1s`},
		{"console variable", "", map[string]string{"HINIT_LOG_CONSOLE": "x"}, `cannot use HINIT_LOG_CONSOLE="x": expected one of raw, prefixed, json, off, got "x"`},
		{"directory variable", "", map[string]string{"HINIT_RUNTIME_DIR": "x"}, `cannot use HINIT_RUNTIME_DIR="x": expected an absolute path`},
		{"port variable", "", map[string]string{"HERMES_DASHBOARD_PORT": "0"}, `cannot use HERMES_DASHBOARD_PORT="0": expected a port from 1 to 65535`},
		{"host variable", "", map[string]string{"HERMES_DASHBOARD_HOST": "a b"}, `cannot use HERMES_DASHBOARD_HOST="a b": expected an address or a host name`},
		{
			"all at once, in order", "restart: {inital: 1s}\nservices: {w: {}}\nhome: 5\nlogs: {archives: x}\nx: &y 1\n",
			map[string]string{"HINIT_STOP_TIMEOUT": "x", "HERMES_DASHBOARD_PORT": "y"},
			`hinit.yaml:1: unknown key "restart.inital"; did you mean "restart.initial"?
hinit.yaml:2: cannot use service "w": services.w.command is missing
hinit.yaml:3: cannot set home: expected an absolute path, got "5"
hinit.yaml:4: cannot set logs.archives: expected a whole number, got the text "x"
hinit.yaml:5: unknown key "x"; known here: agent, boot, control, home, logs, profiles, restart, services, shutdown, stop
cannot use HERMES_DASHBOARD_PORT="y": expected a port from 1 to 65535
cannot use HINIT_STOP_TIMEOUT="x": expected a duration such as 8s, or a number of seconds`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := load(t, tt.text, tt.env); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestProblemIsATypeOfItsOwn(t *testing.T) {
	_, err := Load(Options{Path: writeFile(t, "x: 1"), Env: environ(nil)})
	var p *Problem
	if !errors.As(err, &p) || p.Line != 1 || p.File == "" || p.Env != "" {
		t.Errorf("error %v holds problem %+v", err, p)
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
		"empty":            "",
		"comments":         "# nothing\n",
		"null document":    "---\nnull\n",
		"empty sections":   "restart:\nservices:\nagent:\n  env:\n",
		"empty dashboard":  "services:\n  dashboard:\n",
		"byte order mark":  "\xef\xbb\xbf{}\n",
		"carriage returns": "restart:\r\n  factor: 2\r\n",
	} {
		c := mustLoad(t, text, nil)
		if changes := Diff(Default(), c); len(changes) != 0 {
			t.Errorf("%s: changes %v", name, changes)
		}
	}
	c := mustLoad(t, "stop: &s {grace: 5s}\nservices: {w: {command: &c [a], stop: *s}, v: {command: *c}}", nil)
	if got := c.Services["w"].Stop.Grace; got != 5*time.Second {
		t.Errorf("grace through an alias is %s", got)
	}
}

func TestEnvironmentWins(t *testing.T) {
	c := mustLoad(t, "home: /file\nshutdown: {budget: 1s}\nlogs: {console: off}\ncontrol: {socket: /a/b}\n", map[string]string{
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
	c = mustLoad(t, "home: /file", map[string]string{"HERMES_HOME": "", "HINIT_STOP_TIMEOUT": "1m", "HERMES_DASHBOARD_PORT": ""})
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
		origin     string // of enabled
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
			c := mustLoad(t, tt.text, tt.env)
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
	c := mustLoad(t, "", map[string]string{"HERMES_DASHBOARD_HOST": "::1", "HERMES_DASHBOARD_PORT": "80"})
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
		c := mustLoad(t, "services: {w: "+tt.text+"}", tt.env)
		if s := c.Services["w"]; s.Enabled != tt.want || !s.Log {
			t.Errorf("%s with %v: enabled %t, log %t", tt.text, tt.env, s.Enabled, s.Log)
		}
	}
}

// whoever is who can change the file in the tests of what is root's.
const whoever = 10000

func TestAFileThatTheAgentCanWriteSetsNothingOfRoots(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has something to lose")
	}
	refused := map[string]string{
		"services.x.user":            "services: {x: {command: [id], user: root}}",
		"services.dashboard.user":    `services: {dashboard: {user: "0:0"}}`,
		"services.x.limits":          "services: {x: {command: [id], limits: {nofile: 1000000}}}",
		"boot.hooks":                 "boot: {hooks: [{command: [id], user: root}]}",
		"boot.strict":                "boot: {strict: true}",
		"home":                       "home: /srv",
		"agent.user":                 "agent: {user: root}",
		"agent.binary":               "agent: {binary: /opt/data/hermes}",
		"logs.dir":                   "logs: {dir: /var/log}",
		"logs.max_line_kb":           "logs: {max_line_kb: 65536}",
		"control.socket":             "control: {socket: /opt/data/s}",
		"control.others":             "control: {others: none}",
		"services.x.user, an anchor": "services: {y: &y {command: [id], user: nobody}, x: *y}",
	}
	for key, text := range refused {
		path := writeFile(t, text)
		if _, err := Load(Options{Path: path, Env: environ(nil)}); err != nil {
			t.Errorf("%s in a file of root's: %v", key, err)
		}
		if err := os.Chown(path, whoever, 0); err != nil {
			t.Fatal(err)
		}
		key, _, _ = strings.Cut(key, ",")
		want := "cannot set " + key + " here: it is root's to decide, and " + path + " belongs to uid 10000; chown root " + path
		if _, err := Load(Options{Path: path, Env: environ(nil)}); err == nil || !strings.Contains(err.Error(), path+":1: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s in a file of the agent's: %v", key, err)
		}
		if socket := Socket(Options{Path: path, Env: environ(nil)}); socket != "" {
			t.Errorf("%s: the socket is looked for in %s", key, socket)
		}
	}
}

// TestEveryKeyIsRootsOrHarmless names what an agent that can write the file may set: a new key has to be thought about.
func TestEveryKeyIsRootsOrHarmless(t *testing.T) {
	harmless := strings.Fields(`agent.cwd agent.env agent.gateway agent.gateway_default agent.profile_create agent.profile_delete
		agent.profile_rename agent.ready agent.settle logs.console logs.mask profiles.marker shutdown.budget
		services.command services.cwd services.enabled services.enabled_by services.env services.immediate_on services.log services.park_on`)
	for _, limits := range []string{"logs.", "services.logs."} {
		for name := range strings.FieldsSeq("archives compress max_age max_size_mb min_free_mb quota_mb rate_limit") {
			harmless = append(harmless, limits+name)
		}
	}
	for _, policy := range []string{"", "services."} {
		for name := range strings.FieldsSeq(`restart.crash_loop_count restart.crash_loop_window restart.factor restart.immediate_on restart.initial
			restart.jitter restart.max restart.park_on restart.reset_after stop.grace stop.signal`) {
			harmless = append(harmless, policy+name)
		}
	}
	check := func(path string, privileged bool) {
		if privileged == slices.Contains(harmless, path) {
			t.Errorf("%s: root's is %t; is it safe in the hands of the agent?", path, privileged)
		}
	}
	for _, f := range configFields() {
		check(f.path, f.privileged)
	}
	for _, f := range serviceFields() {
		check("services."+f.path, f.privileged)
	}
}

func TestAFileThatTheAgentCanWriteMaySetTheRest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has something to lose")
	}
	path := writeFile(t, `home: /opt/data
agent: {user: hermes, gateway: [serve, "{profile}"]}
services: {x: {command: [id], user: hermes, env: {A: b}}}
restart: {initial: 2s}`)
	if err := os.Chown(path, whoever, 0); err != nil {
		t.Fatal(err)
	}
	env := environ(map[string]string{"HINIT_BOOT_STRICT": "1", "HERMES_HOME": "/data"})
	c, err := Load(Options{Path: path, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if c.Services["x"].User != "hermes" || c.Home != "/data" || !c.Boot.Strict || c.Restart.Initial != 2*time.Second {
		t.Errorf("got %+v", c)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], path+" belongs to uid 10000; chown root") {
		t.Errorf("warnings %q", c.Warnings)
	}
	// Another image of the same process has what was read and judged before.
	if c, err = Load(Options{Path: path, Text: []byte("home: /srv"), Env: environ(nil)}); err != nil || c.Home != "/srv" {
		t.Errorf("from the image before: %v", err)
	}
}

func TestExpand(t *testing.T) {
	c := Default()
	vars := map[string]string{"profile": "coder", "profile_home": "/p", "to": "b"}
	for in, want := range map[string]string{
		"{agent}": "/opt/hermes/.venv/bin/hermes", "{home}/x": "/opt/data/x", "a{profile}b{to}": "acoderbb", "{profile_home}": "/p",
		"": "", "plain": "plain", "${profile}": "${profile}", "$ {profile}": "$ coder", "{{profile}}": "{profile}", "{}": "{}",
		"{ profile }": "{ profile }", `{"a":{"b":1}}`: `{"a":{"b":1}}`, "{{.Names}}": "{{.Names}}", "{other}": "{other}",
		"{profile": "{profile", "profile}": "profile}", "{{profile}": "{{profile}", "{": "{", "{{": "{{", "{{profile}}}": "{profile}}",
		"{Profile}": "{Profile}",
	} {
		cmd := []string{in}
		if got := c.Expand(cmd, vars); got[0] != want || cmd[0] != in {
			t.Errorf("Expand(%q) = %q, want %q", in, got[0], want)
		}
	}
	if got := c.Expand([]string{"{home}"}, map[string]string{"home": "/h"})[0]; got != "/h" {
		t.Errorf("a variable of the caller does not win: %q", got)
	}
	if got := c.Expand([]string{"{profile}"}, map[string]string{"profile": "{home}"})[0]; got != "{home}" {
		t.Errorf("a value was expanded again: %q", got)
	}
}

func TestSecretsAreMasked(t *testing.T) {
	text := "agent: {env: {API_KEY: one, plain: two}}\nservices: {w: {command: [a], env: {My_Password: three, DB_PASS: five, DATABASE_URL: 'pg://u:six@h/'}}}\n"
	c := mustLoad(t, text, nil)
	out, err := json.Marshal(c.Effective())
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{`"one"`, `"three"`, `"five"`, "six"} {
		if strings.Contains(string(out), secret) {
			t.Errorf("the effective values show %q", secret)
		}
	}
	if !strings.Contains(string(out), `"two"`) {
		t.Error("a value that is no secret is hidden")
	}
	changes := Diff(c, mustLoad(t, strings.ReplaceAll(text, "one", "four"), nil))
	if want := []Change{{"agent.env.API_KEY", redact.Hidden, redact.Hidden}}; !reflect.DeepEqual(changes, want) {
		t.Errorf("changes are %v, want %v", changes, want)
	}
}

func TestDiff(t *testing.T) {
	a := mustLoad(t, "stop: {grace: 5s}\nservices: {w: {command: [a]}}", nil)
	b := mustLoad(t, "services: {w: {command: [a, b], limits: {core: unlimited}}}\nagent: {env: {A: x}}", nil)
	want := []Change{
		{"agent.env.A", nil, "x"},
		{"services.dashboard.stop.grace", "5s", "30s"},
		{"services.w.command", []string{"a"}, []string{"a", "b"}},
		{"services.w.limits.core", nil, "unlimited"},
		{"services.w.stop.grace", "5s", "30s"},
		{"stop.grace", "5s", "30s"},
	}
	if got := Diff(a, b); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := Diff(b, b); len(got) != 0 {
		t.Errorf("no difference is %v", got)
	}
	if got := Diff(b, a); len(got) != len(want) || got[0].Old != "x" || got[0].New != nil {
		t.Errorf("the way back is %v", got)
	}
}

// TestRoundTrip writes the effective defaults as a file and reads the same configuration back.
func TestRoundTrip(t *testing.T) {
	tree := map[string]any{}
	hooks := make([]map[string]any, len(Default().Boot.Hooks))
	for _, e := range Default().Effective() {
		if rest, ok := strings.CutPrefix(e.Key, "boot.hooks."); ok {
			i, name := int(rest[0]-'0'), rest[2:]
			if hooks[i] == nil {
				hooks[i] = map[string]any{}
			}
			hooks[i][name] = e.Value
			continue
		}
		at, path := tree, strings.Split(e.Key, ".")
		for _, name := range path[:len(path)-1] {
			if at[name] == nil {
				at[name] = map[string]any{}
			}
			at = at[name].(map[string]any)
		}
		at[path[len(path)-1]] = e.Value
	}
	tree["boot"].(map[string]any)["hooks"] = hooks
	text, err := json.MarshalIndent(tree, "", " ") // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t, string(text), nil)
	if changes := Diff(Default(), c); len(changes) != 0 {
		t.Errorf("changes are %v", changes)
	}
	for _, e := range c.Effective() {
		if !strings.HasPrefix(e.Origin, c.Path+":") {
			t.Errorf("origin of %s is %q", e.Key, e.Origin)
		}
	}
}

func TestEffectiveIsSortedAndOnePerKey(t *testing.T) {
	entries := mustLoad(t, "services: {a: {command: [x]}, z-2: {command: [x]}}", nil).Effective()
	for i := 1; i < len(entries); i++ {
		if entries[i-1].Key >= entries[i].Key {
			t.Errorf("%q comes before %q", entries[i-1].Key, entries[i].Key)
		}
	}
}

func TestReferenceNamesEveryKey(t *testing.T) {
	text := Reference()
	var paths []string
	paths = append(paths, fieldPaths(configFields())...)
	for _, p := range fieldPaths(serviceFields()) {
		paths = append(paths, "services.NAME."+p)
	}
	for _, p := range fieldPaths(profileLogFields()) {
		paths = append(paths, "logs.profiles.NAME."+p)
	}
	for _, p := range fieldPaths(hookFields()) {
		paths = append(paths, "boot.hooks[]."+p)
	}
	for _, p := range paths {
		if strings.Count(text, "| `"+p+"` |") < 1 {
			t.Errorf("the reference lacks %s", p)
		}
	}
	for _, e := range Default().Effective() {
		key := e.Key
		if rest, ok := strings.CutPrefix(key, "services.dashboard."); ok {
			key = "services.NAME." + rest
		}
		if rest, ok := strings.CutPrefix(key, "boot.hooks."); ok {
			_, name, _ := strings.Cut(rest, ".")
			key = "boot.hooks[]." + name
		}
		if i := strings.Index(key, ".env."); i >= 0 {
			key = key[:i+len(".env")]
		}
		if !slices.Contains(paths, key) {
			t.Errorf("%s is in force but in no schema", key)
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if n := strings.Count(line, "|"); n != 0 && n != 4 && n != 6 {
			t.Errorf("a broken table row: %s", line)
		}
	}
	if text != Reference() {
		t.Error("the reference is different each time")
	}
}

// TestSchemaIsComplete sees to it that each key has its words and a type that can be decoded and shown.
func TestSchemaIsComplete(t *testing.T) {
	check := func(path, doc string, at any) {
		if doc == "" || !strings.HasSuffix(doc, ".") {
			t.Errorf("%s: meaning is %q", path, doc)
		}
		switch at.(type) {
		case *map[string]string, *map[string]uint64, *[]Hook:
		default:
			if plain(at) == nil {
				t.Errorf("%s: a %T cannot be shown", path, at)
			}
		}
	}
	for _, f := range configFields() {
		check(f.path, f.doc, f.at(Default()))
	}
	for _, f := range serviceFields() {
		check(f.path, f.doc, f.at(new(Service)))
	}
	for _, f := range hookFields() {
		check(f.path, f.doc, f.at(new(Hook)))
	}
}

func TestTruth(t *testing.T) {
	for word, want := range map[string][2]bool{ // truthy-3, shell
		"1": {true, true}, "true": {true, true}, "TRUE": {true, true}, "True": {true, true}, "yes": {true, true}, "YES": {true, true},
		"Yes": {true, true}, "tRuE": {true, false}, "yEs": {true, false}, "on": {}, "": {}, "0": {}, " 1": {}, "2": {}, "y": {},
	} {
		if got := [2]bool{Truthy3(word), ShellTruthy(word)}; got != want {
			t.Errorf("%q: got %v, want %v", word, got, want)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 90 * time.Second: "90s", 2 * time.Minute: "2m", time.Hour: "1h", 90 * time.Minute: "1h30m",
		1500 * time.Millisecond: "1.5s", time.Hour + time.Second: "1h0m1s", 10 * time.Hour: "10h", 20 * time.Minute: "20m",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%d: got %q, want %q", d, got, want)
		}
		if back, err := time.ParseDuration(want); err != nil || back != d {
			t.Errorf("%q reads as %s (%v)", want, back, err)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, tt := range []struct {
		word string
		from []string
		want string
	}{
		{"inital", []string{"max", "initial"}, "initial"},
		{"grcae", []string{"grace"}, "grace"}, // neighbours swapped
		{"x", []string{"home"}, ""},
		{"completely", []string{"different"}, ""},
		{"", []string{"ab"}, "ab"},
		{"max", []string{"mix", "max"}, "max"},
		{"mox", []string{"mix", "max"}, "mix"},
	} {
		if got := nearest(tt.word, tt.from); got != tt.want {
			t.Errorf("nearest(%q, %q) = %q, want %q", tt.word, tt.from, got, tt.want)
		}
	}
}

// FuzzLoad looks for input that makes Load panic, return neither or both of its results, or report a problem on more than
// one line.
func FuzzLoad(f *testing.F) {
	f.Add("home: /x\nservices: {w: {command: [a], limits: {core: unlimited}}}", "1m")
	f.Add("a: &a {a: *a}\nrestart: &r [*r]", "1")
	f.Add("agent: {env: &e {<<: *e}}\n? [x]\n: y", "")
	f.Add("services:\n  dashboard:\n    restart: {max: 1ns}\n", "x")
	f.Add("stop: !!binary aGk=\nhome: !!float x\nlogs: {archives: !!int y}", "nan")
	f.Add("---\n...\n---\n{}\n", "1e400")
	f.Fuzz(func(t *testing.T, text, timeout string) {
		// Everything that Load does but reading the file, which would make the search slow.
		env := environ(map[string]string{"HINIT_STOP_TIMEOUT": timeout, "HERMES_DASHBOARD_HOST": timeout})
		l := &loader{cfg: defaults(), env: env, problems: problems{file: "hinit.yaml"}}
		c, err := l.build([]byte(text))
		if (c == nil) == (err == nil) {
			t.Fatalf("got both or neither: %v and %v", c, err)
		}
		if err != nil {
			joined, ok := err.(interface{ Unwrap() []error })
			if !ok {
				t.Fatalf("error %v is not a list of problems", err)
			}
			for _, one := range joined.Unwrap() {
				if strings.ContainsAny(one.Error(), "\n\r") {
					t.Errorf("problem on several lines: %q", one)
				}
			}
			return
		}
		if changes := Diff(c, c); len(changes) != 0 {
			t.Errorf("a configuration differs from itself: %v", changes)
		}
		if _, err := json.Marshal(c.Effective()); err != nil {
			t.Errorf("the effective values are no JSON: %v", err)
		}
		for _, s := range c.Services {
			if len(s.Command) == 0 || s.Command[0] == "" {
				t.Errorf("service %q has no command", s.Name)
			}
		}
	})
}

func TestBootFromEnvironmentAndOrigins(t *testing.T) {
	path := writeFile(t, "boot:\n  strict: true\n  hooks:\n  - command: [a]\n    timeout: 5s\n")
	c, err := Load(Options{Path: path, Env: environ(map[string]string{"HINIT_BOOT_STRICT": "no"})})
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
	if c, err = Load(Options{Path: writeFile(t, "boot: {hooks: []}"), Env: environ(nil)}); err != nil || len(c.Boot.Hooks) != 0 {
		t.Errorf("an empty list leaves %v (%v)", c.Boot.Hooks, err)
	}
}

func TestAMistakeIsOnTheLineThatHasIt(t *testing.T) {
	for text, want := range map[string]string{
		"services:\n  one:\n    command: [a]\n   log: false\n":                "hinit.yaml:4: cannot parse YAML: did not find expected key; is the line indented as those of the same level?",
		"home: /x\nagent:\n    user: a\n  binary: b\nstop: {}\n":              "hinit.yaml:4: cannot parse YAML: did not find expected key; is the line indented as those of the same level?",
		"services:\n  one:\n    command: [a]\n     user: b\n    log: false\n": "hinit.yaml:4: cannot parse YAML: did not find expected key; is the line indented as those of the same level?",
		"home: \"/x\nagent: {user: a}\n":                                      "hinit.yaml:1: cannot parse YAML: found unexpected end of stream",
		"home: /x\n# c\nagent:\n  user: x\xff\n":                              "hinit.yaml:4: cannot parse YAML: the byte 0xff in column 10 is no UTF-8; save the file as UTF-8",
		"home: /x\nlogs: {dir: a\x01b}\n":                                     "hinit.yaml:2: cannot parse YAML: the character U+0001 in column 14 is a control character, which YAML doesn't allow",
	} {
		_, err := Load(Options{Path: "hinit.yaml", Text: []byte(text), Env: func(string) (string, bool) { return "", false }})
		if err == nil || err.Error() != want {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestASizeIsUnderstoodOrExplained(t *testing.T) {
	none := func(string) (string, bool) { return "", false }
	load := func(limits string) (*Config, error) {
		return Load(Options{Path: "hinit.yaml", Text: []byte("services: {one: {command: [a], limits: {" + limits + "}}}"), Env: none})
	}
	for text, want := range map[string]uint64{"2G": 2 << 30, "512M": 512 << 20, "4k": 4 << 10, "1TiB": 1 << 40, "3gb": 3 << 30, "17": 17} {
		c, err := load("as: " + text)
		if err != nil || c.Services["one"].Limits["as"] != want {
			t.Errorf("%s: %v, want %d", text, err, want)
		}
	}
	for limits, want := range map[string]string{
		"nofile: 2K":          "cannot set services.one.limits.nofile: expected a number or unlimited, got the text \"2K\"; it is no size in bytes, write 2048 or 2000",
		"as: 2X":              "cannot set services.one.limits.as: expected a number, a size such as 512M or 2G, or unlimited, got the text \"2X\"",
		"as: 99999999999999T": "expected a number, a size",
		"as: -1G":             "expected a number, a size",
		"nofile: G":           "expected a number or unlimited",
	} {
		if _, err := load(limits); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", limits, err)
		}
	}
	_, err := Load(Options{Path: "hinit.yaml", Text: []byte("logs: {max_size_mb: 2G}"), Env: none})
	if err == nil || !strings.Contains(err.Error(), "expected a whole number of megabytes, here 2048, got the text \"2G\"") {
		t.Errorf("%v", err)
	}
}
