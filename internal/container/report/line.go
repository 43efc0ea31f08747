package report

import (
	"fmt"
	"strings"

	"hinit/internal/container/units"
	"hinit/internal/control/show"
	"hinit/internal/probe"
	"hinit/internal/runs"
	"hinit/supervisor"
)

// Line converts a record of the history to a line for the container log. It returns "" if the record is not important enough.
func Line(r supervisor.Record) string {
	if r.By != nil {
		r.Reason += ", by " + show.By(r.By)
	}
	switch {
	case r.Service == "":
		return r.Reason
	case strings.HasPrefix(r.Service, units.HookPrefix):
		return "" // hooks are reported by the boot
	case runs.Owns(r.Service): // commands of clients: there are many, and the client learns the result
		if r.Exit != nil && r.Exit.Cause == supervisor.CauseOOM {
			return fmt.Sprintf("%s: %s", r.Service, show.Ending(new(r.Exit.Wire())))
		}
		return ""
	case r.Service == units.CmdName:
		if r.Exit != nil && r.Exit.Cause == supervisor.CauseSpawn {
			return "cmd: " + r.Reason
		}
		return ""
	case r.Exit != nil && strings.HasSuffix(r.Reason, supervisor.SuffixProfileGone): // the exit itself was reported before
		return fmt.Sprintf("%s: no crash: it %s", r.Service, r.Reason)
	case r.Exit != nil:
		return fmt.Sprintf("%s: %s", r.Service, show.Ending(new(r.Exit.Wire())))
	case r.From == r.To && strings.HasPrefix(r.Reason, supervisor.ReasonLoop):
		return fmt.Sprintf("%s: %s; see: hinit status %s", r.Service, r.Reason, r.Service)
	case r.From == r.To && probe.IsOwnRemark(r.Reason):
		return r.Service + ": " + r.Reason
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
			return "" // reported once, for the whole container
		}
		return fmt.Sprintf("%s: stopping: %s", r.Service, r.Reason)
	case supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Finishing, supervisor.Backoff:
	}
	return ""
}

// lastEvents is the number of events that a fault report includes.
const lastEvents = 50

// LastEvents returns the last events as text, for a fault report.
func LastEvents(history *supervisor.Ring) string {
	newest := history.Last()
	records, _ := history.Since(newest - min(newest, lastEvents))
	var b strings.Builder
	for _, r := range records {
		fmt.Fprintf(&b, "%s  %s: ", r.At.Format("2006-01-02 15:04:05.000"), show.Line(r.Service))
		if r.From != r.To {
			fmt.Fprintf(&b, "%s → %s: ", r.From, r.To)
		}
		fmt.Fprintf(&b, "%s [pid %d]\n", show.Line(r.Reason), r.PID)
	}
	return b.String()
}
