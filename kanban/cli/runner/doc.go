// Package runner starts the workers of the task board as one-shot runs, and knows how each one ended.
//
// There are two hosts for them. [ByPID1] asks the PID 1 of the container: its runs go on when this program ends. A later program
// finds them by their tag, which names board, task and attempt. [Local] supervises them in this process as a subreaper: they go
// on, too, when it ends, but then their end is not seen.
//
// The package promises: the same attempt never starts twice; an end is told exactly or not at all; a worker is ended with
// everything it left. A [Runner] owns one goroutine, which follows the runs until Close. It owns one more for each living worker
// of an earlier process, and one for a scan of all processes.
package runner
