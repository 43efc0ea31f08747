package actions

import (
	"reflect"
	"testing"
	"time"

	"hinit/internal/config"
)

func TestTheNearestActionsCount(t *testing.T) {
	c, err := config.Load(config.Options{Content: []byte(`
on:
  parked: {webhook: "https://example.org/h", secret_file: /run/s, timeout: 5s}
  ready: [{exec: [say, hello]}, {webhook: "http://[::1]:80/x"}]
services:
  db: {command: [db], on: {parked: [], oom: {exec: [page]}}}
  web: {command: [web]}
profiles:
  coder: {on: {ready: {exec: [coder]}}}
agent: {on: {unhealthy: {exec: [all]}, ready: [], oom: {exec: [oom]}}}
`), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	hook := []config.Action{{Webhook: "https://example.org/h", SecretFile: "/run/s", Timeout: 5 * time.Second}}
	say := []config.Action{{Exec: []string{"say", "hello"}, Timeout: 30 * time.Second}, {Webhook: "http://[::1]:80/x", Timeout: 30 * time.Second}}
	for _, tt := range []struct {
		service, profile, event string
		want                    []config.Action
	}{
		{"web", "", config.EventParked, hook},
		{"web", "", config.EventReady, say},
		{"db", "", config.EventParked, []config.Action{}},
		{"db", "", config.EventOOM, []config.Action{{Exec: []string{"page"}, Timeout: 30 * time.Second}}},
		{"gateway-coder", "coder", config.EventReady, []config.Action{{Exec: []string{"coder"}, Timeout: 30 * time.Second}}},
		{"gateway-coder", "coder", config.EventParked, hook},
		{"gateway-coder", "coder", config.EventOOM, []config.Action{{Exec: []string{"oom"}, Timeout: 30 * time.Second}}},
		{"gateway-default", "default", config.EventReady, []config.Action{}},
		{"web", "", config.EventOOM, nil},
		{"gateway-coder", "coder", config.EventFailed, nil},
	} {
		if got := actionsOf(c, tt.service, tt.profile, tt.event); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s of %s: got %+v, want %+v", tt.event, tt.service, got, tt.want)
		}
	}
}
