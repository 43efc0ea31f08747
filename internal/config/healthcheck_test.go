package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestChecksAreRead checks the settings of health checks and their defaults.
func TestChecksAreRead(t *testing.T) {
	path := writeFile(t, `
agent: {checks: [{kind: alive, http: {port: "{env:PORT}", path: "/{profile}"}, on_failure: report}, {kind: ready, state: {heartbeat: 2m}}]}
services:
  web:
    command: [x]
    checks:
      - {kind: ready, http: {url: "http://localhost:8080/health", status: "200,204-206", matches: "^ok"}, success_threshold: 2}
      - {kind: startup, exec: {command: [test, -e, "{home}/up"]}, failure_threshold: 60, period: 1s}
      - {kind: alive, name: lines, log: {contains: tick, within: 1m}}
      - {kind: alive, unix: {path: "{home}/s"}, initial_delay: 5s}
      - {kind: alive, file: {path: /run/x, fresher_than: 5s}, jitter: 0}
`)
	c, err := Load(Options{Path: path, Env: envLookup(nil)})
	if err != nil {
		t.Fatal(err)
	}
	checks := c.Services["web"].Checks
	if len(checks) != 5 || len(c.Agent.Checks) != 2 {
		t.Fatalf("they are %+v", checks)
	}
	if a := c.Agent.Checks[0]; a.Name != "alive-http" || a.OnFailure != OnFailureReport || a.HTTP.Target() != "http://127.0.0.1:{env:PORT}/{profile}" || a.Period != 10*time.Second || a.FailureThreshold != 3 {
		t.Errorf("the first one of the gateways is %+v", a)
	}
	if a := checks[0]; a.OnFailure != "" || a.SuccessThreshold != 2 || a.HTTP.Target() != "http://localhost:8080/health" {
		t.Errorf("the first one is %+v", a)
	}
	if checks[2].Name != "lines" || checks[1].OnFailure != OnFailureRestart || checks[3].InitialDelay != 5*time.Second || checks[4].Jitter != 0 {
		t.Errorf("the others are %+v", checks[1:])
	}
	if got := c.Origin("services.web.checks.ready-http.http.status"); got == "" {
		t.Error("config does not show the keys of a check")
	}
}

// The error for each wrong check must name the line of the mistake and the correct text.
func TestWrongChecksNameTheWayOut(t *testing.T) {
	for check, want := range map[string]string{
		`tcp: {port: 80}`:             "its kind is missing; it is one of startup, ready, alive",
		`kind: live, tcp: {port: 80}`: `expected one of startup, ready, alive, got "live"`,
		`kind: ready`:                 "its type is missing; add one of http, tcp, unix",
		`kind: ready, tcp: {port: 80}, unix: {path: /s}`:               "a check has one type, here are tcp and unix; write a check for each",
		`kind: ready, htp: {port: 80}`:                                 `did you mean "services.web.checks.0.http"?`,
		`kind: ready, tcp: {prot: 80}`:                                 `did you mean "services.web.checks.0.tcp.port"?`,
		`kind: ready, tcp: {port: 80, path: /}`:                        "unknown key",
		`kind: ready, tcp: {port: 70000}`:                              "expected a port from 1 to 65535 or {env:NAME}",
		`kind: ready, tcp: {host: "::1"}`:                              "tcp.port is missing",
		`kind: ready, tcp: {host: example.com, port: 1}`:               "hinit asks no name server, use an exec check",
		`kind: ready, http: {}`:                                        "http.port is missing, or http.url",
		`kind: ready, http: {url: "https://127.0.0.1/"}`:               "https is not supported; use an exec check",
		`kind: ready, http: {url: "127.0.0.1:80"}`:                     "expected a URL such as http://127.0.0.1:8080/health",
		`kind: ready, http: {url: "http://x.example/"}`:                "hinit asks no name server",
		`kind: ready, http: {url: "http://[::1]:80/", port: 1}`:        "http.url has all parts; remove",
		`kind: ready, http: {port: 1, path: health}`:                   `http.path begins with "/"`,
		`kind: ready, http: {port: 1, status: ok}`:                     "expected status codes such as 200-399",
		`kind: ready, http: {port: 1, status: "300-200"}`:              "expected status codes such as 200-399",
		`kind: ready, http: {port: 1, matches: "("}`:                   "expected a regular expression (RE2)",
		`kind: ready, http: {port: 1, headers: {"a b": x}}`:            `"a b" cannot be the name of a header`,
		`kind: ready, http: {port: 1, headers: {a: "x\ny"}}`:           "the header a has to be one line",
		`kind: ready, http: {port: 1, path: "/{profile}"}`:             "unknown placeholder {profile}",
		`kind: ready, unix: {path: s.sock}`:                            "expected an absolute path",
		`kind: ready, unix: {}`:                                        "unix.path is missing",
		`kind: ready, exec: {command: []}`:                             "a command cannot be empty",
		`kind: ready, exec: {command: true}`:                           "expected a list of words",
		`kind: ready, file: {fresher_than: 1m}`:                        "file.path is missing",
		`kind: ready, file: {path: /x, fresher_than: 60}`:              `write "60s"`,
		`kind: ready, log: {within: 1m}`:                               "log.contains or log.matches is missing",
		`kind: alive, log: {contains: x, never: true, within: 1m}`:     "log.never and log.within contradict each other",
		`kind: ready, state: {heartbeat: 1m}`:                          "only gateways have a state file and can be deaf; put it into agent.checks",
		`kind: ready, tcp: {port: 80}, period: 10`:                     `write "10s"`,
		`kind: ready, tcp: {port: 80}, period: 1ms`:                    "expected a duration from 100ms to 24h",
		`kind: ready, tcp: {port: 80}, timeout: 0s`:                    "expected a duration from 10ms to 24h",
		`kind: ready, tcp: {port: 80}, failure_threshold: 0`:           "expected a number from 1 to 100000",
		`kind: alive, tcp: {port: 80}, success_threshold: 2`:           "success_threshold of an alive check is always 1",
		`kind: ready, tcp: {port: 80}, on_failure: restart`:            "remove on_failure, or use kind alive",
		`kind: alive, tcp: {port: 80}, on_failure: explode`:            "expected one of restart, report, park, shutdown",
		`kind: alive, tcp: {port: 80}, jitter: 2`:                      "expected a number from 0 to 0.5",
		`kind: alive, tcp: {port: 80}, name: "A b"`:                    "a name is 1 to 64",
		`kind: alive, tcp: {port: 80}}, {kind: alive, tcp: {port: 81}`: "give one of them a name",
	} {
		path := writeFile(t, "services:\n  web:\n    command: [x]\n    checks: [{"+check+"}]\n")
		_, err := Load(Options{Path: path, Env: envLookup(nil)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path+":4: ") {
			t.Errorf("%s:\n %v\nexpected %q", check, err, want)
		}
	}
	for text, want := range map[string]string{
		"checks: {kind: alive}":                       "expected a list of checks such as",
		"checks: [alive]":                             "expected a check such as",
		"checks: [" + strings.Repeat("{},", 33) + "]": "a service can have 32 checks, here are 33",
	} {
		path := writeFile(t, "services:\n  web:\n    command: [x]\n    "+text+"\n")
		if _, err := Load(Options{Path: path, Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n %v\nexpected %q", text, err, want)
		}
	}
}

// A profile's check must replace the common check of the same name, and its other checks must be added. Its check for deafness
// must replace the built-in check.
func TestChecksOfOneProfile(t *testing.T) {
	c := mustLoadConfig(t, `
agent:
  deaf: restart
  checks:
    - {kind: alive, tcp: {port: 80}}
    - {kind: ready, name: works, file: {path: "{home}/x"}}
profiles:
  coder:
    checks:
      - {kind: alive, tcp: {port: "{env:PORT}"}, period: 1s, on_failure: report}
      - {kind: alive, state: {heartbeat: 5m}}
  quiet: {deaf: off}
  own: {checks: [{kind: alive, deaf: {after: 9m}}]}
  bare: {}
`, nil)
	names := func(profile string) (out []string) {
		for _, check := range c.ChecksOf(profile) {
			out = append(out, check.Name+" "+check.Period.String()+" "+check.OnFailure)
		}
		return out
	}
	for profile, want := range map[string][]string{
		"coder": {"alive-tcp 1s report", "works 10s ", "alive-state 10s restart"},
		"bare":  {"alive-tcp 10s restart", "works 10s "},
		"other": {"alive-tcp 10s restart", "works 10s "},
		"own":   {"alive-tcp 10s restart", "works 10s ", "alive-deaf 10s restart"},
	} {
		if got := names(profile); !slices.Equal(got, want) {
			t.Errorf("the checks of %s are %q, expected %q", profile, got, want)
		}
	}
	for profile, want := range map[string]string{"coder": OnFailureRestart, "other": OnFailureRestart, "quiet": DeafDetectionOff, "own": DeafDetectionByCheck} {
		if got := c.DeafDetectionOf(profile).Action; got != want {
			t.Errorf("deaf of %s is %q", profile, got)
		}
	}
	if got := c.Origin("profiles.coder.checks.alive-tcp.tcp.port"); !strings.HasSuffix(got, ":10") {
		t.Errorf("the check of coder is from %q", got)
	}
	for text, want := range map[string]string{
		"profiles: {coder: {checks: {kind: alive}}}":                            ":1: cannot set profiles.coder.checks: expected a list of checks such as",
		"profiles: {coder: {checks: [{kind: alive, htp: {port: 80}}]}}":         `did you mean "profiles.coder.checks.0.http"?`,
		"profiles: {coder: {checks: [{kind: ready, tcp: {}}]}}":                 "cannot use profiles.coder.checks.0: tcp.port is missing",
		"profiles: {coder: {checks: [{kind: ready, unix: {path: \"/{to}\"}}]}}": "unknown placeholder {to}",
		"profiles: {coder: {deaf: park}}":                                       "cannot set profiles.coder.deaf: expected one of report, restart, off",
		"agent: {deaf: yes}":                                                    "expected one of report, restart, off",
		"agent: {deaf: {action: report, after: 5}}":                             `write "5s"`,
		"agent: {deaf: {afer: 5m}}":                                             `did you mean "agent.deaf.after"?`,
		"agent:\n  checks: [" + repeatedChecks(20, "a") + "]\nprofiles:\n  coder:\n    checks: [" + repeatedChecks(13, "b") + "]": ":5: cannot set profiles.coder.checks: a gateway can have 32 checks, and this one has 33, including agent.checks; remove some",
	} {
		if _, err := Load(Options{Path: writeFile(t, text), Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n %v\nexpected %q", text, err, want)
		}
	}
}

func repeatedChecks(n int, name string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("{kind: alive, name: %s%d, tcp: {port: 80}}", name, i))
	}
	return strings.Join(list, ", ")
}
