// Package dockercli handles command lines of docker in the place of the docker command. It knows the calls in the agent's
// contract, with their flags, formats, exit codes and texts, and no others.
//
// [Parse] parses a command line. [Personality] handles it, with an engine and a manager of sandboxes. It differs from the docker
// command in three ways. Two processes that find no container at the same time get the same one. A failed command is not run
// again because its output looks like a lost container. When a client is killed, its command ends too.
//
// A Personality owns no goroutine that outlives a call.
package dockercli
