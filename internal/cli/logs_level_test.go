package cli

import "testing"

func TestLevelsInCommonShapes(t *testing.T) {
	for _, c := range []struct {
		line string
		want level
	}{
		{"2026-11-22 10:00:00,123 WARNING gateway.telegram: slow", levelWarning}, // Python
		{"WARNING:root:slow", levelWarning},
		{"INFO:     127.0.0.1:5000 - \"GET /error HTTP/1.1\" 200 OK", levelInfo}, // uvicorn
		{`{"ts":1,"level":"error","msg":"level=debug"}`, levelError},
		{`{"level":50,"time":1,"msg":"x"}`, levelError}, // pino
		{`{"severity":"NOTICE","message":"x"}`, levelInfo},
		{`time=2026-11-22T10:00:00Z level=WARN msg="disk is full"`, levelWarning}, // slog
		{"W1122 10:00:00.123456       1 main.go:12] slow", levelWarning},          // klog
		{"<3>device is gone", levelError},
		{"<12>daemon: low", levelWarning},
		{"[error] 12#12: *1 open() failed", levelError}, // nginx
		{"[2026-11-22 10:00:00] [CRITICAL] out of memory", levelCritical},
		{"\x1b[31mERROR\x1b[0m: red", levelError},
		{"2026/11/22 10:00:00 error: no such host", levelError},
		{"2026-11-22T10:00:00Z  INFO my_crate: ERROR later does not count", levelInfo}, // tracing
		{"10:00:00 | DEBUG    | module:function:12 - text", levelDebug},                // loguru
		{"panic: runtime error", levelCritical},
		{"there was no error in the report", 0},
		{"I would say: WARNINGS are not a level", 0},
		{"  File \"x.py\", line 3, in f", 0},
		{"", 0},
	} {
		if got := levelOf([]byte(c.line)); got != c.want {
			t.Errorf("%q has level %d, want %d", c.line, got, c.want)
		}
	}
}

func TestALineWithoutALevelBelongsToTheOneBefore(t *testing.T) {
	match := atLeast(levelWarning)
	for _, c := range []struct {
		line  string
		shown bool
	}{
		{"starts", false}, {"ERROR: failed", true}, {"Traceback (most recent call last):", true}, {"  File x", true}, {"INFO: goes on", false}, {"  details", false},
	} {
		if got := match([]byte(c.line)); got != c.shown {
			t.Errorf("%q is shown: %v", c.line, got)
		}
	}
}
