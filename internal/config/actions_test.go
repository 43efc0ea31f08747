package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestActions(t *testing.T) {
	c := mustLoadConfig(t, `
on:
  parked: {webhook: "https://example.org/h", secret_file: /run/s, timeout: 5s}
  ready: [{exec: [say, hello]}, {webhook: "http://[::1]:80/x"}]
services:
  db: {command: [db], on: {parked: [], oom: {exec: [page]}}}
  web: {command: [web]}
profiles:
  coder: {on: {ready: {exec: [coder]}}}
agent: {on: {unhealthy: {exec: [all]}, ready: [], oom: {exec: [oom]}}}
`, nil)
	s, ok := c.Services[ActionsName]
	if want := []string{ActionsName, "serve", "--config", c.Path}; !ok || !s.Enabled || !reflect.DeepEqual(s.Command, want) || s.User != c.Agent.User {
		t.Errorf("the service is %+v", s)
	}
	if from := c.Origin("on.parked.0.webhook"); !strings.HasSuffix(from, ":3") {
		t.Errorf("on.parked.0.webhook is from %q", from)
	}
	for text, want := range map[string]bool{
		"{}": false, "services: {x: {command: [x]}}": false, "services: {x: {command: [x], on: {oom: {exec: [y]}}}}": true, "profiles: {a: {on: {ready: {exec: [y]}}}}": true, "agent: {on: {ready: {exec: [y]}}}": true,
	} {
		if _, is := mustLoadConfig(t, text, nil).Services[ActionsName]; is != want {
			t.Errorf("%s: the service exists: %v", text, is)
		}
	}
}

func TestErrorsOfActions(t *testing.T) {
	for text, want := range map[string]string{
		"on: {parkd: {exec: [a]}}":                                        "did you mean \"on.parked\"?",
		"on: {parked: page}":                                              "cannot set on.parked.0: expected an action such as {exec: [notify]}",
		"on: {parked: {}}":                                                "cannot use on.parked.0: an action has either exec or webhook",
		`on: {oom: {exec: [a], webhook: "http://x/"}}`:                    "an action has either exec or webhook",
		"on: {oom: {exec: [a], secret_file: /x}}":                         "secret_file is for a webhook",
		"on: {oom: [{webhook: ftp://x}]}":                                 "cannot set on.oom.0.webhook: expected a URL such as https://example.org/hooks/1",
		`on: {oom: {webhook: "https://x/", secret_file: s}}`:              "cannot set on.oom.0.secret_file: expected an absolute path",
		"on: {oom: {exec: [a], timeout: 0s}}":                             "cannot set on.oom.0.timeout: expected a duration above zero",
		"services: {x: {command: [a], on: {oom: {exec: a}}}}":             "cannot set services.x.on.oom.0.exec: expected a list of words",
		"agent: {on: {oom: {exec: a}}}":                                   "cannot set agent.on.oom.0.exec: expected a list of words",
		"on: {oom: {exec: [a]}}\nservices: {hinit-actions: {user: root}}": "cannot let services.hinit-actions run as root: the commands that wait would be in a file that the agent can write",
		"on: [a]": "cannot read on: expected a mapping with keys crash-loop, parked",
		"on: {oom: [" + strings.Repeat("{exec: [a]}, ", 17) + "]}": "an event can have 16 actions, here are 17",
	} {
		if _, err := Load(Options{Path: writeFile(t, text), Env: envLookup(nil)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
}
