// Package show formats answers of the control API for people. PID 1 renders the table of `hinit status` itself, so that the command,
// which runs often, need not decode hundreds of services. Text that the agent may have chosen is escaped ([Line]). The functions are
// pure but for the clock, and the package owns no goroutine.
package show
