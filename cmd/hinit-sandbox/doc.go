// Command hinit-sandbox runs commands of agents in containers (sandboxes) that are kept after a command has exited. It runs
// package program with the container engine that HINIT_SANDBOX_ENGINE selects. It owns no goroutine.
package main
