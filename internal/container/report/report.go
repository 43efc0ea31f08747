// Package report follows the event history of the supervisor. It writes important records to the container log, and passes
// every record to the other parts of PID 1.
//
// Each record is reported once, also across a re-execution, by the goroutine that calls [Reporter.Run].
package report

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"hinit/internal/container/units"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/internal/probe"
	"hinit/internal/runs"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// Options are the parts of hinit that a Reporter uses. The Reporter calls one function at a time. None of them may block.
type Options struct {
	Loop          *supervisor.Loop
	Say           func(format string, args ...any) // function that writes a line to the container log
	Observe       func(supervisor.Record)
	OnRecordsLost func() // function that is called when the history has dropped records that were not reported
	OnStopping    func() // function that is called when the container is stopping, perhaps several times
}

// Reporter reports the records of the event history.
type Reporter struct {
	options  Options
	activity chan struct{} // channel of capacity 1 that holds a token after NoteActivity

	mu              sync.Mutex // a goroutine holds mu during a report, and during a re-execution
	lastReportedSeq uint64     // Seq of the last reported record
}

// New returns a Reporter that has not reported any record.
func New(o Options) *Reporter { return &Reporter{options: o, activity: make(chan struct{}, 1)} }

// Pause stops all reports until release is called. It returns the Seq of the last reported record.
func (r *Reporter) Pause() (reported uint64, release func()) {
	r.mu.Lock()
	return r.lastReportedSeq, r.mu.Unlock
}

// TakeOver sets the Seq of the last reported record to the one that [Reporter.Pause] returned before the re-execution.
func (r *Reporter) TakeOver(reported uint64) { r.lastReportedSeq = reported }

// Run reports records until the supervisor has ended or ctx ends. After a quiet time it also returns unused memory to the
// kernel.
func (r *Reporter) Run(ctx context.Context) {
	history := r.options.Loop.History()
	var memory tuning.Releaser
	quiet := time.NewTimer(tuning.ReleaseDelay)
	defer quiet.Stop()
	releasedOnce := false
	stir := func() {
		releasedOnce = false
		quiet.Reset(tuning.ReleaseDelay)
	}
	for {
		changed := history.Changed()
		cursor, some := r.reportNew(history)
		if some {
			stir()
			continue
		}
		select {
		case <-changed:
		case <-r.activity:
			stir()
		case <-quiet.C: // for the time ReleaseDelay, there was no record and no other work
			memory.Release(releasedOnce)
			if !releasedOnce {
				releasedOnce = true
				quiet.Reset(tuning.SecondReleaseDelay)
			}
		case <-r.options.Loop.Ended():
			if history.Last() == cursor {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// NoteActivity tells the Reporter about work that causes no record, such as a request of a client or the reading of a profile.
// Run then also waits for a quiet time, and returns unused memory to the kernel.
func (r *Reporter) NoteActivity() {
	pause.Wake(r.activity)
}

// reportNew reports new records. cursor is the Seq of the last reported record. some is false if there was no new record.
func (r *Reporter) reportNew(history *supervisor.Ring) (cursor uint64, some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	records, lost := history.Since(r.lastReportedSeq)
	if len(records) > 0 && r.options.Loop.Snapshot().Stopping {
		r.options.OnStopping()
	}
	r.lastReportedSeq += lost
	if lost > 0 {
		r.options.Say("%d events are not shown here", lost)
		r.options.OnRecordsLost()
	}
	for _, record := range records {
		r.lastReportedSeq = record.Seq
		if line := LogLine(record); line != "" {
			r.options.Say("%s", line)
		}
		r.options.Observe(record)
	}
	return r.lastReportedSeq, len(records) > 0
}

// LogLine returns the line about a record for the container log, or "" if the record is not important enough.
func LogLine(r supervisor.Record) string {
	if r.By != nil {
		r.Reason += ", by " + show.AuthorText(r.By)
	}
	switch {
	case r.Service == "":
		return r.Reason
	case strings.HasPrefix(r.Service, units.HookPrefix):
		return "" // the boot reports its hooks itself
	case runs.IsRun(r.Service): // clients run many commands, and each client learns the result of its own
		if r.Exit != nil && r.Exit.Cause == supervisor.CauseOOM {
			return fmt.Sprintf("%s: %s", r.Service, show.RunEndText(new(r.Exit.ToClient())))
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
		return fmt.Sprintf("%s: %s", r.Service, show.RunEndText(new(r.Exit.ToClient())))
	case r.From == r.To && strings.HasPrefix(r.Reason, supervisor.ReasonCrashLoop):
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
			return "" // this event is reported once, for the whole container
		}
		return fmt.Sprintf("%s: stopping: %s", r.Service, r.Reason)
	case supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Finishing, supervisor.Backoff:
	}
	return ""
}

// maxLastEvents is how many events the report of a fault contains.
const maxLastEvents = 50

// LastEvents returns the last events as text, for the report of a fault.
func LastEvents(history *supervisor.Ring) string {
	newest := history.Last()
	records, _ := history.Since(newest - min(newest, maxLastEvents))
	var b strings.Builder
	for _, r := range records {
		fmt.Fprintf(&b, "%s  %s: ", r.At.Format("2006-01-02 15:04:05.000"), show.EscapeLine(r.Service))
		if r.From != r.To {
			fmt.Fprintf(&b, "%s → %s: ", r.From, r.To)
		}
		fmt.Fprintf(&b, "%s [pid %d]\n", show.EscapeLine(r.Reason), r.PID)
	}
	return b.String()
}
