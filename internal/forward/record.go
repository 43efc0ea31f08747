package forward

import (
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/loglevel"
)

// The kinds of a Record.
const (
	KindLog   = "log"
	KindEvent = "event"
	KindGap   = "gap" // tells that lines or events are missing here
)

// Record is a line of a log, an event, or a note about a gap.
type Record struct {
	Time    time.Time      `json:"time"`
	Kind    string         `json:"kind"`
	Service string         `json:"service"`
	Profile string         `json:"profile,omitempty"`
	Text    string         `json:"message"`
	Level   loglevel.Level `json:"level"`

	dir    string        // directory of the log; "" for an event
	line   position      // position in the log after the record
	events eventPosition // position in the events after the record
}

// gapRecord returns a record with the reason why lines or events are missing.
func gapRecord(why string) Record {
	return Record{Time: time.Now(), Kind: KindGap, Text: "[hinit-web] lines are missing here: " + why, Level: loglevel.Warning}
}

// eventRecord returns the record of an event. Its level is error if a run failed or the service does not start again, and warning
// if the service waits for its next start.
func eventRecord(e client.Event) Record {
	r := Record{Time: e.At, Kind: KindEvent, Level: loglevel.Info, Service: e.Service, Text: e.Reason}
	if e.To != "" {
		r.Text = e.From + " -> " + e.To + ": " + e.Reason
	}
	switch {
	case e.To == client.StateFailed, e.To == client.StateParked,
		e.Exit != nil && !slices.Contains([]string{"clean", "operator", "shutdown", "replaced"}, e.Exit.Cause):
		r.Level = loglevel.Error
	case e.To == client.StateBackoff:
		r.Level = loglevel.Warning
	}
	return r
}
