// Package show formats answers of the control API for people. PID 1 itself formats the table of `hinit status`: the command runs
// often, and would otherwise have to decode hundreds of services. Text that the agent may have chosen is escaped ([Line]). The
// functions depend only on their arguments and the clock. The package owns no goroutine.
package show
