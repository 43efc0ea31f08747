package report

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"

	"hinit/internal/proc"
	"hinit/supervisor"
)

// noLogs is the log output of a supervisor that runs nothing.
type noLogs struct{}

func (noLogs) Pipes(string) (stdout, stderr *os.File, err error) { return nil, nil, os.ErrInvalid }
func (noLogs) Tail(_ string, done func([]string))                { done(nil) }

// TestEachRecordIsReportedOnce checks that each record of the history is reported exactly once, also across a
// re-execution.
func TestEachRecordIsReportedOnce(t *testing.T) {
	procs, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	loop := supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: noLogs{}, SIGCHLD: children, MuteSIGCHLD: proc.SIGCHLDSilencer(), OnSignal: func(os.Signal) supervisor.Event { return nil },
	})
	go loop.Run()
	var messages []string
	seen := 0
	reporter := func() *Reporter {
		return New(Options{
			Loop: loop, Say: func(format string, a ...any) { messages = append(messages, fmt.Sprintf(format, a...)) },
			Observe: func(supervisor.Record) { seen++ }, OnRecordsLost: func() { t.Error("records were lost") }, OnStopping: func() {},
		})
	}
	remark := func(text string) {
		if err := loop.Do(t.Context(), supervisor.Remark{Text: text}); err != nil {
			t.Fatal(err)
		}
	}
	first := reporter()
	remark("one")
	first.reportNew(loop.History())
	reported, release := first.Pause()
	remark("two")
	second := reporter()
	second.TakeOver(reported)
	release()
	second.reportNew(loop.History())
	if cursor, some := second.reportNew(loop.History()); some || cursor != loop.History().Last() {
		t.Errorf("it reports again, up to %d", cursor)
	}
	if !slices.Equal(messages, []string{"one", "two"}) || seen != 2 {
		t.Errorf("it said %q and passed on %d records", messages, seen)
	}
	second.NoteActivity() // the second reporter has no receiver; the call must not block
	second.NoteActivity()
	loop.Post(supervisor.Shutdown{})
	second.Run(t.Context())
}
