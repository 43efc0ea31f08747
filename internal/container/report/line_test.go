package report

import (
	"testing"
	"time"

	"hinit/supervisor"
)

func TestWhatPeopleAreTold(t *testing.T) {
	crash := &supervisor.Exit{Code: 3, Cause: supervisor.CauseCrash, Uptime: 3200 * time.Millisecond}
	for want, r := range map[string]supervisor.Record{
		"the boot is done": {Reason: "the boot is done"},
		"web: up (pid 7)":  {Service: "web", From: supervisor.Starting, To: supervisor.Up, PID: 7},
		"web: exited with code 3 after 3.2s (crash)": {Service: "web", From: supervisor.Up, To: supervisor.Backoff, Exit: crash},
		"web: parked: exit 78":                       {Service: "web", From: supervisor.Up, To: supervisor.Parked, Reason: "exit 78"},
		"web: stopping: asked to":                    {Service: "web", From: supervisor.Up, To: supervisor.Stopping, Reason: "asked to"},
		"cmd: no such file":                          {Service: "cmd", Reason: "no such file", Exit: &supervisor.Exit{Cause: supervisor.CauseSpawn}},
	} {
		if got := LogLine(r); got != want {
			t.Errorf("%+v\ngot  %q\nwant %q", r, got, want)
		}
	}
	for _, r := range []supervisor.Record{
		{Service: "hook-1", Exit: crash},
		{Service: "cmd", From: supervisor.Up, To: supervisor.Down, Exit: crash},
		{Service: "web", From: supervisor.Up, To: supervisor.Stopping, Reason: supervisor.ReasonShutdown},
		{Service: "web", From: supervisor.Down, To: supervisor.Starting},
	} {
		if got := LogLine(r); got != "" {
			t.Errorf("%+v is told of: %q", r, got)
		}
	}
}
