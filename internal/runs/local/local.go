// Package local makes the book of runs of a program that no PID 1 works for. PID 1's program does not link it. It owns a goroutine, the loop
// of a supervisor.
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

// Book returns the runs of a supervisor of its own. The program becomes a subreaper, so
// that what a run leaves behind comes to it. Runs that are alive when the program ends go on. It may be called once in a process.
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

// sink is the output of runs for a supervisor that has nothing else.
type sink struct{ *runs.Book }

// Tail implements supervisor.LogSink. The end of a run's log stays in its file.
func (sink) Tail(string, func([]string)) {}
