// Command hinit is PID 1 and supervisor of a container that hosts many agent profiles, and the command line that asks it.
// Its name decides which: called as init or tini it is the init, called as hinit it is the command line, whose verb
// "init" is the init too, and called by the name of a tool of s6 it answers as that. It owns no goroutine.
package main
