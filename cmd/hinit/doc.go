// Command hinit is PID 1 and supervisor of a container that hosts many agent profiles, and the command line that asks it. Its
// name decides which. Called as init or tini it is the init. Called as hinit it is the command line, whose verb "init" is the
// init too. Called by the name of a tool of s6 it is that tool. It owns no goroutine.
package main
