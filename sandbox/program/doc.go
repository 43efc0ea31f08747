// Package program is the program hinit-sandbox for any container engine. The name by which it is called selects what it does.
// Under the name docker or podman, or under the path in HERMES_DOCKER_BINARY, it replaces the docker command. Otherwise it is
// `hinit sandbox`. Its verb serve is the service that owns the sandboxes of a volume.
//
// If the service runs, all other commands send their requests to it. Otherwise they use the engine directly. The package owns
// the goroutines of one terminal and, as the service, one that looks for unused sandboxes.
package program
