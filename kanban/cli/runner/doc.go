// Package runner starts the workers of the task board as one-shot runs, and knows how each one ended.
//
// There are two hosts for them. [ByPID1] asks the PID 1 of the container: its runs go on when this program ends, and can be asked for
// again by their tag, which names board, task and attempt. [Local] supervises them in this process as a subreaper: they go on, too, when
// it ends, but then nobody sees how they end.
//
// The package promises: the same attempt never starts twice; an end is told exactly or not at all; a worker is ended with everything
// it left. A [Runner] owns one goroutine, which follows the runs until Close, and one for each worker of an earlier process
// that is still alive, and one for a look at all processes.
package runner
