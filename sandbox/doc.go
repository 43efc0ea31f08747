// Package sandbox runs the commands of an agent in containers that outlive the agent, so that a command starts within
// milliseconds. It removes containers that are no longer used.
//
// A [Manager] finds or makes the container of a [Key] (task and profile), and returns a [Sandbox] for it. Any number of
// commands can run in a Sandbox at the same time. Any process finds the container by its labels. A lock on the volume keeps
// two processes from making two containers for one key.
//
// A small program inside the container, the helper (package inside), starts the commands, so a command needs no call of the
// engine. The helper ends the whole process tree of a command at its time limit. The image must have the helper's
// architecture, and a file system to which the helper can be copied.
//
// Where to look: manager.go, acquire.go and sandbox.go find or make the container of a sandbox, sweep.go removes it, and
// link.go is the connection to the helper. exec.go runs a command. engine.go is the interface of container engines, and
// docker.go the client of one.
//
// The state of a container always comes from the engine, and is never guessed from the output of a command. A command that
// may have begun is not run again unless [Request.Repeatable] allows it. Otherwise the error is a [LostError] with the known
// facts.
//
// [Engine] is the interface of container engines. [Docker] implements it for Docker and for engines with the same API.
//
// A Manager owns one goroutine that closes idle sandboxes, from the first [Manager.Open] to [Manager.Close]. A Sandbox owns
// two goroutines for its connection to the helper, and two for each running command. Several goroutines may use any of the
// types at the same time.
package sandbox
