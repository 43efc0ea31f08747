// Package dockercli stands in for the docker command. It handles the calls that are in the agent's contract, with their flags,
// formats, exit codes and texts, and no others.
//
// [Parse] parses a command line. [Emulator] handles it with a manager of sandboxes. There are three differences to the real
// docker command. Two processes that find no container at the same time get the same one. A failed command is not run again just
// because its output looks as if the container was lost. When a client is killed, its command is ended, too.
//
// An Emulator owns no goroutine that outlives a call.
package dockercli
