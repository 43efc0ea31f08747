// Package proc starts, signals and reaps processes. It is the only package of hinit that forks or waits.
//
// A [Table] belongs to one goroutine. Because that goroutine alone spawns, signals and reaps, a process id in the table
// can't have been recycled: it stays taken until the table itself reaps the process. Children are looked at before they
// are reaped (waitid with WNOWAIT): one that the table started is reported with its run, any other is an orphan that was
// handed to this process because it is PID 1 or a subreaper, and is reaped. The package owns no goroutine.
//
// What a service started is found again by what processes inherit: their process group and session, a resource limit
// that marks the run, an entry in the environment that names it, and the parents they had when they were last seen. No
// process is signalled on a guess.
//
// spawn.go starts a process, and setup.go gives it its limits. table.go signals and reaps. tree.go finds the processes of a run, with
// scan.go and mark.go, and ends those that have escaped. child.go is for programs that have no table, and others.go for processes
// that some other program started.
package proc
