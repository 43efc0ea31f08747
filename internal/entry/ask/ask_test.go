//go:build linux && (amd64 || arm64)

package ask

import (
	"testing"
	"unsafe"

	"hinit/internal/cmdline"
	"hinit/internal/entry/bare"
)

// newCStrings lays arguments out in memory as the kernel does.
func newCStrings(text ...string) bare.CStrings {
	list := make([]uintptr, 0, len(text)+1)
	for _, t := range text {
		word := append([]byte(t), 0)
		keptWords = append(keptWords, word)
		list = append(list, uintptr(unsafe.Pointer(&word[0])))
	}
	keptArgv = append(keptArgv, append(list, 0))
	return bare.CStrings{First: &keptArgv[len(keptArgv)-1][0], Len: len(text)}
}

var (
	keptArgv  [][]uintptr
	keptWords [][]byte
)

func TestWhatACommandAsksWhereNoThreadCanBeMade(t *testing.T) {
	for _, tt := range []struct {
		name   string
		argv   []string
		target string
		body   string
	}{
		{"hinit", []string{"stop", "bomb"}, "POST /v1/services/bomb/stop", `{"wait":true}`},
		{"hinit", []string{"start", "a.b-c_D9", "--no-wait"}, "POST /v1/services/a.b-c_D9/start", `{"wait":false}`},
		{"hinit", []string{"restart", "x"}, "POST /v1/services/x/restart", `{"wait":true}`},
		{"hinit", []string{"status"}, "GET /v1/status?as=table", ""},
		{"hinit", []string{"status", "a", "b"}, "GET /v1/status?as=table&name=a&name=b", ""},
		{"hinit", []string{"healthcheck"}, "GET /v1/health", ""},
		{"hinit", []string{"healthcheck", "--live"}, "GET /v1/health?probe=live", ""},
		{"s6-svc", []string{"-d", "/run/service/gateway-x"}, "POST /v1/slots/control", `{"dir":"/run/service/gateway-x","flags":"d"}`},
		{"hinit", []string{"stop"}, "", ""},
		{"hinit", []string{"stop", "a", "b"}, "", ""},
		{"hinit", []string{"stop", "../reexec?"}, "", ""},
		{"hinit", []string{"stop", "--all"}, "", ""},
		{"hinit", []string{"status", "--json"}, "", ""},
		{"hinit", []string{"healthcheck", "x"}, "", ""},
		{"hinit", []string{"logs", "x"}, "", ""},
		{"hinit", nil, "", ""},
		{"s6-svc", []string{"-d", "relative"}, "", ""},
		{"s6-svc", []string{"-d", `/a"b`}, "", ""},
		{"s6-svc", []string{"-wd", "/a"}, "", ""},
		{"s6-svc", []string{"/a"}, "", ""},
		{"s6-svstat", []string{"/a"}, "", ""},
	} {
		bodyBuffer.Len = 0
		q, ok := parseCommand(tt.name, newCStrings(append([]string{tt.name}, tt.argv...)...))
		target := q.method + " " + q.pathPrefix + q.serviceName + q.pathSuffix
		if !ok && tt.target == "" {
			continue
		}
		if q.action == "" {
			t.Errorf("%s %q: a refusal says only that it cannot", tt.name, tt.argv)
		}
		if !ok || target != tt.target || q.body != tt.body {
			t.Errorf("%s %q: %v, %q with %q; want %q with %q", tt.name, tt.argv, ok, target, q.body, tt.target, tt.body)
		}
	}
}

// A busy init must pass the liveness probe. Otherwise an agent that opens many connections could have its pod restarted.
func TestABusyInitIsLive(t *testing.T) {
	busy := "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n" + `{"error":{"kind":"busy","message":"users such as uid 1 have 128 connections to hinit open"}}`
	for probe, want := range map[string]int{"--live": 0, "--ready": cmdline.ExitFailed} {
		bodyBuffer.Len, lineBuffer.Len = 0, 0
		q, ok := parseCommand("hinit", newCStrings("hinit", "healthcheck", probe))
		if got := printAnswer(q, busy); !ok || got != want {
			t.Errorf("%s: %v, exit code %d, want %d", probe, ok, got, want)
		}
	}
}

func TestTheEnvironmentIsReadAsTheKernelLaysIt(t *testing.T) {
	env := newCStrings("A=1", "HINIT_RUNTIME_DIR=/run/x", "EMPTY=", "B")
	for name, want := range map[string]string{"A": "1", "HINIT_RUNTIME_DIR": "/run/x", "HINIT_RUNTIME": "", "EMPTY": "", "B": "", "C": ""} {
		if got := env.Getenv(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
