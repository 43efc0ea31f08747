// Command hinit is PID 1 and the supervisor in a container that hosts many agent profiles. It is the init if it is called as
// init or tini, or with the verb init or run. With any other verb, or under the name of an s6 tool, it executes hinit-tools,
// which has the rest of the command line. It owns no goroutine.
package main
