// Package dockercli answers command lines of docker in the place of the docker command, for an agent that knows nothing else: the calls
// of its contract with their flags, formats, exit codes and texts, and no others.
//
// [Parse] says which call a command line is. [Personality] answers it, on an engine and a manager of sandboxes. Beyond what the docker
// command does, two processes that find no container at the same time get the same one, a command that failed is not run a second time
// because its output looked as if the container were gone, and a client that is killed takes its command with it.
//
// A Personality owns no goroutine beyond the call that it answers.
package dockercli
