// Command hinit-sandbox runs the commands of agents in containers that outlive the agents. The name by which it is called selects
// its command line. Called as docker or podman, or by the path in HERMES_DOCKER_BINARY, it replaces the docker command. Else it is
// "hinit sandbox". "hinit sandbox serve" is the service that owns the sandboxes of a volume.
//
// If the service runs, every other process of this program sends its request to the service; else it asks the engine itself. The
// program owns the goroutines of one terminal. As the service, it also owns a goroutine that looks for unused sandboxes.
package main
