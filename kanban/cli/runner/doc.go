// Package runner starts the workers of the task board as one-shot runs, and knows how each one ended.
//
// There are two hosts for the runs. [ByPID1] has the PID 1 of the container start them. They go on when this program ends, and a
// later program finds them by their tag, which names board, task and attempt. [Local] supervises the runs in this process, which
// becomes a subreaper. They also go on when it ends, but then it is not known how they end.
//
// The same attempt never starts twice. The package reports exactly how a worker ended, or that it doesn't know. When it ends a
// worker, it also ends all processes that the worker has left behind. A [Runner] owns one goroutine, which follows the runs until
// Close. It owns one more for each living worker of an earlier process, and one for a scan of all processes.
package runner
