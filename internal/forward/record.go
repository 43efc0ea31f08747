package forward

import (
	"time"

	"hinit/client"
	"hinit/internal/loglevel"
)

// The kinds of a Record.
const (
	KindLog   = "log"
	KindEvent = "event"
	KindGap   = "gap" // lines are missing here
)

// Record is a line of a log, an event, or a note about a gap.
type Record struct {
	Time    time.Time      `json:"time"`
	Kind    string         `json:"kind"`
	Service string         `json:"service"`
	Profile string         `json:"profile,omitempty"`
	Text    string         `json:"message"`
	Level   loglevel.Level `json:"level"`
}

func gap(service, profile, why string) Record {
	return Record{time.Now(), KindGap, service, profile, "[hinit-web] lines are missing here: " + why, loglevel.Warning}
}

// eventRecord makes a record of an event. The level is error if a run failed or the service does not start again. It is warning if
// the service waits for its next start.
func eventRecord(e client.Event) Record {
	r := Record{Time: e.At, Kind: KindEvent, Level: loglevel.Info, Service: e.Service, Text: e.Reason}
	if e.To != "" {
		r.Text = e.From + " -> " + e.To + ": " + e.Reason
	}
	if e.To == client.StateBackoff {
		r.Level = loglevel.Warning
	}
	if e.To == client.StateFailed || e.To == client.StateParked {
		r.Level = loglevel.Error
	}
	if e.Exit != nil {
		switch e.Exit.Cause {
		case "clean", "operator", "shutdown", "replaced":
		default:
			r.Level = loglevel.Error
		}
	}
	return r
}
