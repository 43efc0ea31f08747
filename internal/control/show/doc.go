// Package show formats answers of the control API for people. PID 1 itself formats the table of `hinit status`, because the command
// runs often and would otherwise decode hundreds of services. Text that the agent may have chosen is escaped ([Line]). The
// functions depend only on their arguments and the clock. The package owns no goroutine.
package show
