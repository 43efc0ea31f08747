// Command hinit-sandbox runs the commands of agents in containers that survive them. Its name decides what it is: called as docker or
// podman, or by the path that HERMES_DOCKER_BINARY has, it answers in the place of the docker command; else it is "hinit sandbox", whose
// verb "serve" is the service that owns the sandboxes of a volume.
//
// Where the service runs, everything else asks it; where it doesn't, the command asks the engine itself. It owns the goroutines of one
// terminal and, as the service, one that looks for sandboxes nobody uses any more.
package main
