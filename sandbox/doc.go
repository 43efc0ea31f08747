// Package sandbox runs the commands of an agent in containers that outlive the agent. A command starts within milliseconds, and
// unused containers are removed.
//
// A [Manager] finds or makes the container of a [Key] (task and profile). It returns a [Sandbox], in which any number of commands
// run at the same time. Any process finds the container by its labels. A lock on the volume prevents two processes from making
// two containers. A small program inside the container, the helper (package inside), starts the commands, so a command needs no
// call of the engine. It ends the whole process tree of a command at its time limit. The image must have the program's
// architecture, and a file system to which the program can be copied.
//
// For the sandbox: manager.go, acquire.go and sandbox.go find or make the container, sweep.go removes it, link.go is the
// connection to the helper. For a command: exec.go. For the engine: engine.go is the interface, docker.go the client.
//
// Only the engine reports the state of a container; it is never read from the output of a command. A command that may have begun
// is not run again unless [Request.Repeatable] allows it: the error is a [LostError], with the known facts.
//
// [Engine] is the interface of container engines. [Docker] implements it for Docker and for engines with the same API.
//
// A Manager owns one goroutine that closes idle sandboxes, from the first [Manager.Open] to [Manager.Close]. A Sandbox owns two
// for its connection to the helper, and two for each running command. Several goroutines may call all methods of all types.
package sandbox
