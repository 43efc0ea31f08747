// Package show writes for people what the control API answers. PID 1 renders the table of `hinit status` itself, so that the
// command, which is started for every look, neither decodes nor lays out hundreds of services. What the agent may have chosen is escaped ([Line]). The functions are pure but
// for the clock, and the package owns no goroutine.
package show
