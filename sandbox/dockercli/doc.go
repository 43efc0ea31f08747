// Package dockercli emulates the docker command. It handles only the calls that the agent makes, with docker's flags,
// formats, exit codes and messages.
//
// [Parse] parses a command line. [Emulator] handles it with a manager of sandboxes. It differs from the real docker command in
// three ways. Two processes that find no container at the same time get the same one. A failed command is not run again just
// because its output looks as if the container was lost. When a client is killed, its command in the container is ended, too.
//
// An Emulator owns no goroutine that outlives a call.
package dockercli
