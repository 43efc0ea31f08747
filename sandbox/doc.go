// Package sandbox runs the commands of an agent in containers that survive the agent. A command starts within milliseconds, and no
// container is forgotten.
//
// A [Manager] finds or makes the container of a [Key] (task and profile). It hands out a [Sandbox], on which any number of
// commands run at the same time. The container is found again by its labels, by this process or another. A lock on the volume
// keeps two processes from making two. A small program inside the container (package inside) starts the commands, so that none
// costs a call of the engine. It ends the whole tree of a command that has run out of time. The image must have the program's
// architecture, and a file system that the program can be copied to.
//
// The sandbox: manager.go, acquire.go and sandbox.go find or make the container, sweep.go removes it, link.go is the connection to
// the program inside. A command: exec.go, by that program. The engine: engine.go is the interface,
// docker.go the client.
//
// The engine reports the state of a container; it is never read from the output of a command. A command that may have begun is
// not run again unless [Request.Safe] allows it: the answer is a [LostError], with what is known.
//
// The engine is behind one interface, [Engine]; [Docker] is the one for Docker and what speaks its API.
//
// A Manager owns one goroutine that closes idle sandboxes, from the first [Manager.Open] to [Manager.Close]. A Sandbox owns two
// for its connection to the program inside while it has one, and two for each command that runs. All methods of all types may
// be called from several goroutines.
package sandbox
