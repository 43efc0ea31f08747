// Package show formats answers of the control API for people. PID 1 itself makes the table of `hinit status`, so that the
// command, which runs often, need not decode hundreds of services. Text that the agent may have chosen is escaped ([Line]). The
// functions depend only on their arguments and the clock, and the package owns no goroutine.
package show
