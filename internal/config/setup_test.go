package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestASetupIsRead(t *testing.T) {
	c := mustLoadConfig(t, `
agent:
  env_file: "{profile_home}/gateway.env"
  nice: 5
  memory: {warn: 512MiB, restart: 1GiB}
services:
  web:
    command: [web]
    env_file: ["{home}/web.env", "-/etc/web.env"]
    nice: -5
    priority: high
    ionice: {class: best-effort, level: 3}
    oom_score: 300
    cpu_affinity: "0-3,6"
    umask: 027
    no_new_privs: true
    rlimits: {nofile: "1024:4096", core: 0, as: "1G:unlimited"}
    limits: {nproc: 64}
    memory: {restart: 1073741824}
    group: payments
    reload_signal: HUP
    stop_command: [webctl, "{home}"]
`, nil)
	agent := newProcessSettings()
	agent.EnvFile, agent.Priority.Nice, agent.Memory = Paths{"{profile_home}/gateway.env"}, 5, Memory{WarnAbove: 512 << 20, RestartAbove: 1 << 30}
	if got := c.Agent.ProcessSettings; !reflect.DeepEqual(got, agent) {
		t.Errorf("gateways have %+v", got)
	}
	want := ProcessSettings{
		EnvFile: Paths{"/opt/data/web.env", "-/etc/web.env"}, Priority: Priority{Nice: -5, Class: PriorityHigh, IONice: IONice{IOBestEffort, 3}, OOMScore: 300, CPUAffinity: "0-3,6"},
		Umask: "027", NoNewPrivs: On, Memory: Memory{RestartAbove: 1 << 30},
		Operator: OperatorSettings{"payments", "HUP", []string{"webctl", "/opt/data"}},
		Limits:   map[string]ResourceLimit{"nofile": {1024, 4096}, "core": {}, "as": {1 << 30, Unlimited}, "nproc": {64, 64}},
	}
	if got := c.Services["web"].ProcessSettings; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	shown := map[string]any{}
	for _, e := range c.Effective() {
		shown[e.Key] = e.Value
		if e.Key == "services.web.limits.core" && !strings.HasSuffix(e.Origin, ":17") {
			t.Errorf("its origin is %s", e.Origin)
		}
	}
	for key, want := range map[string]any{
		"agent.memory.warn": "512MiB", "services.web.limits.nofile": "1024:4096", "services.web.memory.restart": "1GiB", "agent.memory.restart": "1GiB",
	} {
		if shown[key] != want {
			t.Errorf("%s is shown as %v, not %v", key, shown[key], want)
		}
	}
}

// The error for each of these 36 configurations must name the line of the mistake and the correct text.
func TestAWrongSetupNamesItsLineAndTheWayOut(t *testing.T) {
	for _, tt := range [][2]string{
		{"quota: {stop: 5GiB}", `unknown key "services.w.quota"`},
		{"nise: 5", `unknown key "services.w.nise"; did you mean "services.w.nice"?`},
		{"nice: 20", "cannot set services.w.nice: expected a number from -20 to 19, got 20"},
		{"nice: high", `cannot set services.w.nice: expected a whole number, got the text "high"`},
		{"ionice: idle", `cannot read services.w.ionice: expected a mapping with keys class, level, got the text "idle"`},
		{"ionice: {class: batch}", `cannot set services.w.ionice.class: expected one of best-effort, idle, realtime, got "batch"`},
		{"ionice: {class: realtime, level: 8}", "cannot set services.w.ionice.level: expected a number from 0 to 7, got 8"},
		{"ionice: {level: 3}", "cannot set services.w.ionice.level: it has no class; add ionice.class, one of best-effort, idle, realtime"},
		{"ionice: {class: idle, level: 3}", "cannot set services.w.ionice.level: the class idle has no levels; remove it, or set ionice.class to best-effort"},
		{"oom_score: -500", "cannot set services.w.oom_score: expected a number from 0 to 1000, got -500"},
		{"oom_score_adj: 5", `unknown key "services.w.oom_score_adj"`},
		{"cpu_affinity: all", `cannot set services.w.cpu_affinity: expected processors such as "0-3,6", got "all"`},
		{`cpu_affinity: "3-1"`, "cannot set services.w.cpu_affinity: the range 3-1 ends before it begins; write 1-3"},
		{`cpu_affinity: "0-4096"`, "cannot set services.w.cpu_affinity: a processor is from 0 to 1023, got 4096"},
		{"umask: 8", `cannot set services.w.umask: expected three octal digits such as "027", got "8"`},
		{"umask: 01777", `cannot set services.w.umask: expected three octal digits such as "027", got "01777"`},
		{"no_new_privs: 1", "cannot set services.w.no_new_privs: expected true, false or auto, got the number 1"},
		{"rlimits: {nofiles: 5}", `unknown key "services.w.rlimits.nofiles"; did you mean "services.w.rlimits.nofile"?`},
		{`rlimits: {nofile: "9:5"}`, `cannot set services.w.rlimits.nofile: the soft limit 9 is above the hard limit 5; write "5:9"`},
		{`rlimits: {nofile: "5:"}`, "cannot set services.w.rlimits.nofile: expected a number or unlimited, got"},
		{"limits: {core: 0}\n    rlimits: {core: 1}", "cannot set services.w.rlimits.core: it is already set on line 4"},
		{"memory: 1GiB", `cannot read services.w.memory: expected a mapping with keys high, max, restart, warn, got the text "1GiB"`},
		{"memory: {warn: 512}", "cannot set services.w.memory.warn: the number 512 is too small for a limit; write at least 1MiB, or 512MiB if megabytes are meant"},
		{"memory: {warn: 500K}", `cannot set services.w.memory.warn: the text "500K" is too small for a limit; write at least 1MiB`},
		{"memory: {warn: 2X}", `cannot set services.w.memory.warn: expected a size such as 512MiB or 2GiB, got the text "2X"`},
		{"memory: {warn: 2G, restart: 1G}", "cannot set services.w.memory.warn: 2GiB is not below memory.restart (1GiB)"},
		{"memory: {high: 2G, max: 1G}", "cannot set services.w.memory.high: 2GiB is not below memory.max (1GiB)"},
		{"memory: {restart: 1G, max: 1G}", "cannot set services.w.memory.restart: 1GiB is not below memory.max (1GiB)"},
		{"memory: {max: 100}", "cannot set services.w.memory.max: the number 100 is too small for a limit; write at least 1MiB, or 100MiB if megabytes are meant"},
		{"cpu: {weight: 10001}", "cannot set services.w.cpu.weight: expected a number from 0 to 10000, got 10001"},
		{"cpu: {shares: 5}", `unknown key "services.w.cpu.shares"`},
		{"priority: urgent", `cannot set services.w.priority: expected one of low, normal, high, critical, got "urgent"`},
		{"pids: {max: -1}", "cannot set services.w.pids.max: expected a number from 0 to 4194304, got -1"},
		{"pids: 100", "cannot read services.w.pids: expected a mapping with keys max, got the number 100"},
		{"env_file: web.env", `cannot set services.w.env_file: expected an absolute path, got "web.env"; begin with {home} for a file of the data directory`},
		{"env_file: {a: b}", "cannot set services.w.env_file: expected a path, got a mapping"},
		{`env_file: ["{profile_home}/x"]`, "cannot set services.w.env_file: unknown placeholder {profile_home}"},
	} {
		_, msg := loadConfig(t, "services:\n  w:\n    command: [a]\n    "+tt[0]+"\n", nil)
		last := "hinit.yaml:4: "
		if strings.Contains(tt[0], "\n") {
			last = "hinit.yaml:5: "
		}
		if !strings.HasPrefix(msg, last+tt[1]) {
			t.Errorf("%s\ngot  %s\nwant %s%s", tt[0], msg, last, tt[1])
		}
	}
}

// TestServicesOfOtherUsersSealTheAgent lists services with which no_new_privs: auto means true. An explicit value wins.
func TestServicesOfOtherUsersSealTheAgent(t *testing.T) {
	const root, own = "services: {job: {command: [job], user: root}}\n", "services: {job: {command: [job]}}\n"
	for _, tt := range []struct {
		name, yaml string
		env        map[string]string
		want       bool
	}{
		{name: "the agent alone"},
		{name: "a service of the agent's", yaml: own},
		{name: "a service of root's", yaml: root, want: true},
		{name: "sandboxes", env: map[string]string{"HINIT_SANDBOX": "1"}, want: true},
		{name: "sandboxes that are off", env: map[string]string{"HINIT_SANDBOX": "0"}},
		{name: "off", yaml: root + "agent: {no_new_privs: false}\n"},
		{name: "on", yaml: own + "agent: {no_new_privs: true}\n", want: true},
	} {
		if got := mustLoadConfig(t, tt.yaml, tt.env).NoNewPrivs(Auto); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	c := mustLoadConfig(t, root+"profiles: {p: {no_new_privs: false}, q: {nice: 1}}\n", nil)
	if c.NoNewPrivs(c.ProfileOf("p").NoNewPrivs) || !c.NoNewPrivs(c.ProfileOf("q").NoNewPrivs) || !c.NoNewPrivs(c.ProfileOf("r").NoNewPrivs) {
		t.Error("a profile has not what it says, or what it follows")
	}
}

func TestAProfileFollowsTheQuotaOfAllUntilItHasItsOwn(t *testing.T) {
	c := mustLoadConfig(t, "agent: {quota: {warn: 2Gi, stop: 4Gi}}\nprofiles: {p: {quota: {stop: 8GiB}}, q: {nice: 1}}\n", nil)
	for profile, want := range map[string]Quota{"p": {2 << 30, 8 << 30}, "q": {2 << 30, 4 << 30}, "r": {2 << 30, 4 << 30}} {
		if got := c.ProfileOf(profile).Priority.Quota; got != want {
			t.Errorf("%s has %+v", profile, got)
		}
	}
	if _, msg := loadConfig(t, "agent: {quota: {warn: 4Gi, stop: 2Gi}}\n", nil); !strings.Contains(msg, "cannot set agent.quota.warn: 4GiB is not below quota.stop (2GiB)") {
		t.Error(msg)
	}
}
