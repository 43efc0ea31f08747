package notify_test

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"hinit/internal/notify"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]notify.Message{
		"READY=1":                                  {Ready: true},
		"READY=1\nSTATUS=on\n":                     {Ready: true, Status: "on", HasStatus: true},
		"READY=0\nREADY":                           {},
		"ready=1\n READY=1":                        {},
		"STOPPING=1\nRELOADING=1":                  {Stopping: true, Reloading: true},
		"STATUS=":                                  {HasStatus: true},
		"STATUS=a=b\nSTATUS=c=d":                   {Status: "c=d", HasStatus: true},
		"STATUS=a\tb\x1b[31m\x00\xffc":             {Status: "a b [31m \ufffdc", HasStatus: true},
		"STATUS=\u0085\u009b x ":                   {Status: "x", HasStatus: true},
		"WATCHDOG=1":                               {Alive: true},
		"WATCHDOG=trigger":                         {Failed: true},
		"WATCHDOG=triggers":                        {},
		"WATCHDOG_USEC=2500000":                    {WatchdogInterval: 2500 * time.Millisecond, HasWatchdogInterval: true},
		"WATCHDOG_USEC=0":                          {HasWatchdogInterval: true},
		"WATCHDOG_USEC=18446744073709551615":       {HasWatchdogInterval: true}, // 2^64-1 means no limit
		"WATCHDOG_USEC=18446744073709551614":       {WatchdogInterval: 24 * time.Hour, HasWatchdogInterval: true},
		"WATCHDOG_USEC=18446744073709551616":       {},
		"WATCHDOG_USEC=-1\nEXTEND_TIMEOUT_USEC=x":  {},
		"EXTEND_TIMEOUT_USEC=1000":                 {ExtendTimeout: time.Millisecond},
		"MAINPID=1\nFDSTORE=1\nBARRIER=1\nERRNO=2": {},
		"": {}, "\n\n=\n": {},
	} {
		if got := notify.Parse([]byte(text)); got != want {
			t.Errorf("%q says %+v, want %+v", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"READY=1\nSTATUS=x", "WATCHDOG_USEC=99999999999999999999", "STATUS=\xff\x1b\u202e" + strings.Repeat("é", 300), "EXTEND_TIMEOUT_USEC=1"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := notify.Parse(data)
		if len(m.Status) > 256 || !utf8.ValidString(m.Status) || strings.ContainsFunc(m.Status, unicode.IsControl) {
			t.Errorf("status %q", m.Status)
		}
		if m.WatchdogInterval < 0 || m.WatchdogInterval > 24*time.Hour || m.ExtendTimeout < 0 || m.ExtendTimeout > 24*time.Hour {
			t.Errorf("times %v, %v", m.WatchdogInterval, m.ExtendTimeout)
		}
		if !strings.Contains(string(data), "READY=1") && m.Ready {
			t.Error("nobody said that it is ready")
		}
	})
}
