// Package dockercli answers command lines of docker in the place of the docker command. It knows the calls of the agent's
// contract with their flags, formats, exit codes and texts, and no others.
//
// [Parse] says which call a command line is. [Personality] answers it, on an engine and a manager of sandboxes. It differs from
// the docker command in three ways. Two processes that find no container at the same time get the same one. A failed command is
// not run again because its output looks like a lost container. A killed client takes its command with it.
//
// A Personality owns no goroutine beyond the call that it answers.
package dockercli
