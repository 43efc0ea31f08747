// Command hinit is PID 1 and supervisor of a container that hosts many agent profiles, and the command line that asks it. The name
// by which it is called selects one. Called as init or tini it is the init. Called as hinit it is the command line; its verb "init"
// is the init too. Called by the name of a tool of s6 it is that tool. It owns no goroutine.
package main
