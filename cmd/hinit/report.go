package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/supervisor"
)

// report follows the history: it writes a line for people about what matters, and hands each record to the keeper.
func (c *container) report(ctx context.Context) {
	history := c.loop.History()
	cursor := uint64(0)
	for {
		news := history.News()
		records, lost := history.Since(cursor)
		cursor += lost
		if lost > 0 {
			c.say("[hinit] %d events are not shown here", lost)
		}
		for _, r := range records {
			cursor = r.Seq
			if line := reportLine(r); line != "" {
				c.say("[hinit] %s", line)
			}
			c.keeper.observe(r)
			if r.Dropped && c.loop.Snapshot().Find(r.Service) == nil { // else it is back already
				c.logs.drop(r.Service)
			}
		}
		if len(records) > 0 {
			continue
		}
		select {
		case <-news:
		case <-c.loop.Ended():
			if history.Last() == cursor {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// reportLine is what the container log says of a record, "" for what would only be noise.
func reportLine(r supervisor.Record) string {
	switch {
	case r.Service == "":
		return r.Reason
	case strings.HasPrefix(r.Service, "hook-"):
		return "" // the boot tells about it
	case r.Service == cmdName:
		if r.Exit != nil && r.Exit.Cause == supervisor.CauseSpawn {
			return "cmd: " + r.Reason
		}
		return ""
	case r.Exit != nil:
		return fmt.Sprintf("%s: %s", r.Service, exitPhrase(r.Exit))
	case r.From == r.To:
		return ""
	}
	switch r.To {
	case supervisor.Up:
		return fmt.Sprintf("%s: up (pid %d)", r.Service, r.PID)
	case supervisor.Killing, supervisor.Parked, supervisor.Failed:
		return fmt.Sprintf("%s: %s: %s", r.Service, r.To, r.Reason)
	case supervisor.Stopping:
		if r.Reason == supervisor.ReasonShutdown {
			return "" // said once, for the container
		}
		return fmt.Sprintf("%s: stopping: %s", r.Service, r.Reason)
	case supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Backoff:
	}
	return ""
}

// exitPhrase tells how a run ended, for people: "exited with code 1 after 3.2s (crash)".
func exitPhrase(x *supervisor.Exit) string {
	if x.Cause == supervisor.CauseSpawn {
		return x.Error
	}
	how := fmt.Sprintf("exited with code %d", x.Code)
	if x.Signal != 0 {
		how = "ended by " + signalName(x.Signal)
	}
	return fmt.Sprintf("%s after %s (%s)", how, shortDuration(x.Uptime), x.Cause)
}

func signalName(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

// shortDuration writes a duration with one or two units: 3.2s, 4m10s, 2h5m, 3d4h.
func shortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
