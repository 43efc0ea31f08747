// Command hinit is PID 1 and supervisor of a container that hosts many agent profiles, and the command line that asks it.
// Its name decides which: called as init or tini it is the init, called as hinit it is the command line, whose verb
// "init" is the init too.
//
// It is the composition root, the one place that knows all rooms. As the init, the supervisor's loop runs in the main
// goroutine; the boot, the reporting of events, the work that follows them on the data volume, the watching of profiles
// and the control server have a goroutine each, so that none of them can hold up the loop.
package main
