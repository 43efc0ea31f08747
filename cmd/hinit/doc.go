// Command hinit is PID 1 and supervisor of a container that hosts many agent profiles. Called as init or tini, or with the verb
// init or run, it is the init. With any other verb, and by the name of a tool of s6, it executes hinit-tools, which has the
// command line. It owns no goroutine.
package main
