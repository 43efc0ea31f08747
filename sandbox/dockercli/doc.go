// Package dockercli emulates the docker command for an agent that wants to run docker. It handles only the calls that the
// agent makes, with docker's flags, formats, exit codes and messages.
//
// [Parse] parses a command line, and [Emulator] executes it on the sandboxes of a manager. It differs from the real docker
// command on purpose in three ways. Two processes that find no container at the same time get the same new one. A failed
// command is not run again just because its output looks as if the container was lost. When a client is killed, its command
// in the container is killed too.
//
// No goroutine of an Emulator outlives a call.
package dockercli
