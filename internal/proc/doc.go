// Package proc starts, signals and reaps processes. It is the only package of hinit that forks or waits.
//
// A [Table] belongs to one goroutine. Because that goroutine alone spawns, signals and reaps, a process id in the table can't
// have been recycled: it stays taken until the table itself reaps the process. The table looks at a dead child before it reaps it
// (waitid with WNOWAIT). A child that the table started is reported with its run. Any other is an orphan, which this process gets
// as PID 1 or subreaper, and is reaped. The package owns no goroutine.
//
// The descendants of a service are found by inherited attributes: process group, session, a resource limit that marks the run,
// and an entry in the environment. The parents that they had in the last scan count too. No process is signalled on a guess.
//
// spawn.go starts a process, and setup.go gives it its limits. table.go signals and reaps. tree.go finds the processes of a run, with
// scan.go and mark.go, and ends those that have escaped. child.go is for programs that have no table, and others.go for processes
// that some other program started.
package proc
