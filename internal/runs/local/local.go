// Package local makes a book of runs for a program that has no PID 1 to ask. PID 1's program does not link it. It owns a
// goroutine, the loop of a supervisor.
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

// Book returns a book with its own supervisor. The program becomes a subreaper, so that the descendants of a run become its
// children. Runs that are alive when the program ends go on. It may be called once in a process.
func Book() (*runs.Book, error) {
	proc.Unignore()
	procs, err := proc.New()
	if err != nil {
		return nil, err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	b := runs.NewBook()
	loop := supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: sink{b}, Children: children, Mute: proc.MuteChildren(), OOMKills: proc.OOMKills(),
		OnSignal: func(os.Signal) supervisor.Event { return nil },
	})
	guard.Go("supervising the runs", func() { loop.Run() })
	b.Attach(loop)
	return b, nil
}

// sink is the LogSink of a supervisor that has only runs.
type sink struct{ *runs.Book }

// Tail implements supervisor.LogSink. It does nothing: the output of a run is in its file.
func (sink) Tail(string, func([]string)) {}
