// Command hinit-sandbox runs commands of agents in containers (sandboxes), which stay after a command has ended. It is package
// program with the container engine that HINIT_SANDBOX_ENGINE names. It owns no goroutine.
package main
