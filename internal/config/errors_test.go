package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

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
		{"nothing near", "profiles: {wibble: 1}", nil, `hinit.yaml:1: unknown key "profiles.wibble"; known here: marker, max, names of profiles, as in {wibble: {restart: never}}`},
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
				"crash_loop_window, factor, immediate_on, initial, jitter, max, max_restarts, max_restarts_window, park_on, policy, reset_after, success_codes, got the number 5",
		},
		{
			"list for file", "- a", nil, "hinit.yaml:1: cannot read the file: expected a mapping with keys agent, boot, control, " +
				"home, isolation, logs, on, profiles, restart, runs, services, shutdown, start, stop, got a list",
		},
		{
			"number for duration", "stop: {grace: 30}", nil,
			`hinit.yaml:1: cannot set stop.grace: expected a duration such as 30s, got the number 30; write "30s"`,
		},
		{"bad duration", "stop: {grace: 30 s}", nil, `hinit.yaml:1: cannot set stop.grace: expected a duration such as 30s, got the text "30 s"; write "30s"`},
		{"zero duration", "stop: {grace: 0s}", nil, "hinit.yaml:1: cannot set stop.grace: expected a duration above zero, got 0s"},
		{"negative duration", "stop: {grace: -1h}", nil, "hinit.yaml:1: cannot set stop.grace: expected a duration above zero, got -1h"},
		{"yes is no boolean", "boot: {strict: yes}", nil, `hinit.yaml:1: cannot set boot.strict: expected true or false, got the text "yes"`},
		{"text for number", "logs: {archives: many}", nil, `hinit.yaml:1: cannot set logs.archives: expected a whole number, got the text "many"`},
		{"fraction for whole", "logs: {archives: 1.5}", nil, "hinit.yaml:1: cannot set logs.archives: expected a whole number, got the number 1.5"},
		{"too many digits", "logs: {archives: 99999999999999999999}", nil, "hinit.yaml:1: cannot set logs.archives: expected a number with fewer digits, got the number 99999999999999999999"},
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
		{"name of a profile", "logs:\n  profiles: {Coder: {archives: 1}}", nil, `hinit.yaml:2: cannot use "Coder" as the name of a profile: a name is 1 to 64 of "a" to "z", "0" to "9", "_" and "-", and begins with a letter or digit`},
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
		{"hook of root with inputs", "boot: {hooks: [{command: [a], user: root, inputs: [/a]}]}", nil, `hinit.yaml:1: cannot set boot.hooks.0.inputs: only a hook that runs as the agent's user can be skipped, because the agent can write the record of its inputs; leave out the inputs, or user "root"`},
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
		{"syntax", "home: /x\n  a: b\n", nil, "hinit.yaml:2: cannot parse YAML: mapping values are not allowed in this context; is the line indented like the other lines of its level?"},
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
hinit.yaml:5: unknown key "x"; known here: agent, boot, control, home, isolation, logs, on, profiles, restart, runs, services, shutdown, start, stop
cannot use HERMES_DASHBOARD_PORT="y": expected a port from 1 to 65535
cannot use HINIT_STOP_TIMEOUT="x": expected a duration such as 8s, or a number of seconds`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := loadConfig(t, tt.text, tt.env); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestProblemIsATypeOfItsOwn(t *testing.T) {
	_, err := Load(Options{Path: writeFile(t, "x: 1"), Env: envLookup(nil)})
	var p *Problem
	if !errors.As(err, &p) || p.Line != 1 || p.File == "" || p.Env != "" {
		t.Errorf("error %v holds problem %+v", err, p)
	}
}

func TestAMistakeIsOnTheLineThatHasIt(t *testing.T) {
	for text, want := range map[string]string{
		"services:\n  one:\n    command: [a]\n   log: false\n":                "hinit.yaml:4: cannot parse YAML: did not find expected key; is the line indented like the other lines of its level?",
		"home: /x\nagent:\n    user: a\n  binary: b\nstop: {}\n":              "hinit.yaml:4: cannot parse YAML: did not find expected key; is the line indented like the other lines of its level?",
		"services:\n  one:\n    command: [a]\n     user: b\n    log: false\n": "hinit.yaml:4: cannot parse YAML: did not find expected key; is the line indented like the other lines of its level?",
		"home: \"/x\nagent: {user: a}\n":                                      "hinit.yaml:1: cannot parse YAML: found unexpected end of stream; is a quote, a bracket or a brace left open?",
		"home: /x\n# c\nagent:\n  user: x\xff\n":                              "hinit.yaml:4: cannot parse YAML: the byte 0xff in column 10 is no UTF-8; save the file as UTF-8",
		"home: /x\nlogs: {dir: a\x01b}\n":                                     "hinit.yaml:2: cannot parse YAML: the character U+0001 in column 14 is a control character, which YAML doesn't allow",
	} {
		_, err := Load(Options{Path: "hinit.yaml", Content: []byte(text), Env: func(string) (string, bool) { return "", false }})
		if err == nil || err.Error() != want {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestASizeIsUnderstoodOrExplained(t *testing.T) {
	none := func(string) (string, bool) { return "", false }
	load := func(limits string) (*Config, error) {
		return Load(Options{Path: "hinit.yaml", Content: []byte("services: {one: {command: [a], limits: {" + limits + "}}}"), Env: none})
	}
	for text, want := range map[string]uint64{"2G": 2 << 30, "512M": 512 << 20, "4k": 4 << 10, "1TiB": 1 << 40, "3gb": 3 << 30, "17": 17} {
		c, err := load("as: " + text)
		if err != nil || c.Services["one"].Limits["as"] != (ResourceLimit{want, want}) {
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
	_, err := Load(Options{Path: "hinit.yaml", Content: []byte("logs: {max_size_mb: 2G}"), Env: none})
	if err == nil || !strings.Contains(err.Error(), "expected a whole number of megabytes, here 2048, got the text \"2G\"") {
		t.Errorf("%v", err)
	}
}

// FuzzLoad looks for input that makes Load panic, return neither or both of its results, or report a problem on more
// than one line.
func FuzzLoad(f *testing.F) {
	f.Add("home: /x\nservices: {w: {command: [a], limits: {core: unlimited}}}", "1m")
	f.Add("a: &a {a: *a}\nrestart: &r [*r]", "1")
	f.Add("agent: {env: &e {<<: *e}}\n? [x]\n: y", "")
	f.Add("services:\n  dashboard:\n    restart: {max: 1ns}\n", "x")
	f.Add("stop: !!binary aGk=\nhome: !!float x\nlogs: {archives: !!int y}", "nan")
	f.Add("---\n...\n---\n{}\n", "1e400")
	f.Fuzz(func(t *testing.T, text, timeout string) {
		// Everything that Load does, without reading the file, which would make fuzzing slow.
		env := envLookup(map[string]string{"HINIT_STOP_TIMEOUT": timeout, "HERMES_DASHBOARD_HOST": timeout})
		l := &loader{cfg: Defaults(), Options: Options{Env: env}, problems: problems{file: "hinit.yaml"}}
		c, err := l.buildConfig([]byte(text))
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

// A file whose YAML aliases expand to more than the limit must be refused. The agent can write a file of a few kilobytes that
// expands to more than the container's memory.
func TestAFileOfAliasesTakesNoMemory(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("x: &a0 {x: y}\n")
	for i := range 40 {
		fmt.Fprintf(&laughs, "x%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), ", "))
	}
	long := strings.Repeat("{agent} ", 50_000)
	for name, test := range map[string]struct{ text, want string }{
		"aliases of aliases": {laughs.String(), "cannot read more than 100000 values, and with its aliases (*name) the file has more; write out what is needed"},
		"a service a line":   {"agent: {env: &e {" + strings.Repeat("A: b, ", 3000) + "}}\nservices:\n" + strings.Repeat("  s: {env: *e}\n", 20_000), "cannot read more than 100000 values"},
		"a long text":        {"agent: {env: {A: &l \"" + long + "\"}}\nservices:\n" + strings.Repeat("  s: {cwd: *l}\n", 20_000), "cannot read more than 100000 values"},
		"an alias of itself": {"services: &s {x: *s}\n", "cannot"},
		"commas":             {"services: [" + strings.Repeat(",", 500_000) + "]", "cannot read more than 100000 values; remove what is not needed here"},
		"mistakes":           {strings.Repeat("wrong: {", 1) + strings.Repeat("a: b, ", 20_000) + "}\n" + strings.Repeat("k: v\n", 20_000), "more problems are not shown"},
	} {
		t.Run(name, func(t *testing.T) {
			if len(test.text) > maxFileSize {
				t.Fatalf("%d bytes are refused anyway", len(test.text))
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Load(Options{Content: []byte(test.text), Env: envLookup(nil)})
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				text := fmt.Sprint(err)
				t.Errorf("got %.300s, want %q", text, test.want)
			}
			if taken := (after.TotalAlloc - before.TotalAlloc) >> 20; taken > 200 {
				t.Errorf("it took %d MB to read %d bytes", taken, len(test.text))
			}
		})
	}
}
