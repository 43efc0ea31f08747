// Package local makes a Tracker of runs for a program that does not use PID 1, such as the task board on its own. PID 1 does not
// link this package. It owns one goroutine, the loop of a supervisor.
package local

import (
	"os"
	"os/signal"
	"syscall"

	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/runs"
	"hinit/supervisor"
)

// NewTracker returns a Tracker with a supervisor of its own. This process becomes a subreaper, so that descendants of runs
// become its children. Runs that are alive when the process ends keep running. Call NewTracker once in a process.
func NewTracker() (*runs.Tracker, error) {
	proc.RestoreIgnoredSignals()
	procs, err := proc.New()
	if err != nil {
		return nil, err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	b := runs.NewTracker()
	loop := supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: runLogs{b}, SIGCHLD: children, MuteSIGCHLD: proc.SIGCHLDSilencer(), OOMKills: proc.OOMKillCounter(),
		OnSignal: func(os.Signal) supervisor.Event { return nil },
	})
	guard.Go("supervising the runs", func() { loop.Run() })
	b.Attach(loop)
	return b, nil
}

// runLogs is the LogSink of a supervisor that has only runs.
type runLogs struct{ *runs.Tracker }

// Tail does nothing, because the output of a run is in its file.
func (runLogs) Tail(string, func([]string)) {}
