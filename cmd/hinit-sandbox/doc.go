// Command hinit-sandbox runs the commands of agents in containers that survive them: package program on the engine that
// HINIT_SANDBOX_ENGINE names. It owns no goroutine.
package main
