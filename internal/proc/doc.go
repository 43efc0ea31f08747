// Package proc starts, signals and reaps processes. It is the only package of hinit that forks or waits.
//
// A [Table] belongs to one goroutine. That goroutine alone spawns, signals and reaps. So no other process can get a process id
// that is in the table: the id stays taken until the table itself reaps the process. The table examines a dead child before it
// reaps it (waitid with WNOWAIT). It reports a child that it started with the run of the child. Every other child is an orphan,
// which came to this process because it is PID 1 or a subreaper. It is reaped too. The package owns no goroutine.
//
// The table finds the descendants of a service by inherited attributes. These are the process group, the session, a resource
// limit that marks the run, and an entry in the environment. It also uses the parents that they had in the last scan. It signals
// no process on a guess.
//
// spawn.go starts a process, and setup.go gives it its limits. table.go signals and reaps. tree.go finds the processes of a run,
// with scan.go and mark.go, and ends them. child.go is for programs without a table, and others.go is about processes that
// another program started.
package proc
