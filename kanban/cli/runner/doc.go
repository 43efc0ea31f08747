// Package runner starts the workers of the task board as one-shot runs, and knows how each one ended.
//
// There are two hosts for the runs. [ByPID1] asks the PID 1 of the container: its runs go on when this program ends. A later program
// finds them by their tag, which names board, task and attempt. [Local] supervises them in this process as a subreaper. They also go
// on when it ends, but then their end is unknown.
//
// The same attempt never starts twice. An end is reported exactly or not at all. A worker is ended with all processes that it has
// left. A [Runner] owns one goroutine, which follows the runs until Close. It owns one more for each living worker of an earlier
// process, and one for a scan of all processes.
package runner
