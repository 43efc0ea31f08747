// Package runner starts the workers of the task board as one-shot runs, and reports how each one ended.
//
// Two hosts can start the runs. With [NewPID1Runner], the container's PID 1 starts them. They continue when this program ends. A
// later program finds them by their tag, which consists of board, task and attempt. With [NewLocalRunner], this process starts
// the runs and becomes a subreaper. They also continue when it ends, but then their exit status is lost.
//
// The same attempt never starts twice. The package reports exactly how a worker ended, or that this is unknown. When it stops a
// worker, it also stops all processes that the worker has left behind. A [Runner] owns one goroutine that follows the runs until
// Close. It owns another for each living worker of an earlier process, and one during a scan of all processes.
package runner
