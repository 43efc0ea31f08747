// Package proc starts, signals and reaps processes. It is the only package of hinit that forks or waits.
//
// A [Table] belongs to one goroutine. Only that goroutine spawns, signals and reaps. So no other process can get a process
// ID that is in the table: the ID stays taken until the table itself reaps the process. The table examines a dead child
// before it reaps the child (waitid with WNOWAIT). For each child that the table started, it reports the run to which the
// child belongs. Every other child is an orphan, which became a child because this process is PID 1 or a subreaper. The
// table also reaps orphans. The package owns no goroutine.
//
// The table finds the descendants of a service by inherited attributes. These are the process group, the session, a resource
// limit that marks the run, and an entry in the environment. It also uses the parents that the last scan of /proc has shown. It
// never signals a process on a guess.
//
// spawn.go starts a process, and setup.go sets its limits. table.go signals and reaps. tree.go, with scan.go, finds the processes
// of a run and signals them. child.go is for programs without a table. run_of.go finds the run of one process by its mark or its
// ancestors, also for a process that another program started.
package proc
