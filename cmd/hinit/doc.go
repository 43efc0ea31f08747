// Command hinit is PID 1 and the supervisor in a container that hosts many agent profiles. It runs as the init when it is called
// as init or tini, or with the verb init or run. For any other verb, or under the name of an s6 tool, it executes hinit-tools,
// which implements all other commands. It owns no goroutine.
package main
