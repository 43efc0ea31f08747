package loglevel

import "testing"

func TestLevelsInCommonShapes(t *testing.T) {
	for _, c := range []struct {
		line string
		want Level
	}{
		{"2026-11-22 10:00:00,123 WARNING gateway.telegram: slow", Warning},
		{"WARNING:root:slow", Warning},
		{"INFO:     127.0.0.1:5000 - \"GET /error HTTP/1.1\" 200 OK", Info},
		{`{"ts":1,"level":"error","msg":"level=debug"}`, Error},
		{`{"level":50,"time":1,"msg":"x"}`, Error},
		{`{"severity":"NOTICE","message":"x"}`, Info},
		{`time=2026-11-22T10:00:00Z level=WARN msg="disk is full"`, Warning},
		{"W1122 10:00:00.123456       1 main.go:12] slow", Warning},
		{"<3>device is gone", Error},
		{"<12>daemon: low", Warning},
		{"[error] 12#12: *1 open() failed", Error},
		{"[2026-11-22 10:00:00] [CRITICAL] out of memory", Critical},
		{"\x1b[31mERROR\x1b[0m: red", Error},
		{"2026/11/22 10:00:00 error: no such host", Error},
		{"2026-11-22T10:00:00Z  INFO my_crate: ERROR later does not count", Info},
		{"10:00:00 | DEBUG    | module:function:12 - text", Debug},
		{"panic: runtime error", Critical},
		{"there was no error in the report", 0},
		{"I would say: WARNINGS are not a level", 0},
		{"  File \"x.py\", line 3, in f", 0},
		{"", 0},
	} {
		if got := OfLine([]byte(c.line)); got != c.want {
			t.Errorf("%q has level %d, want %d", c.line, got, c.want)
		}
	}
}

func TestALineWithoutALevelBelongsToTheOneBefore(t *testing.T) {
	var log Tracker
	for _, c := range []struct {
		line  string
		shown bool
	}{
		{"starts", false}, {"ERROR: failed", true}, {"Traceback (most recent call last):", true}, {"  File x", true}, {"INFO: goes on", false}, {"  details", false},
	} {
		if got := log.OfNextLine([]byte(c.line)) >= Warning; got != c.shown {
			t.Errorf("%q is shown: %v", c.line, got)
		}
	}
}
