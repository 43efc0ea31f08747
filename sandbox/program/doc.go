// Package program is hinit-sandbox, the program, for any engine. Its name decides what it is. Called as docker or podman, or by
// the path in HERMES_DOCKER_BINARY, it replaces the docker command. Else it is "hinit sandbox". The verb "serve" of that is the
// service that owns the sandboxes of a volume.
//
// Where the service runs, everything else asks it; where it doesn't, the command asks the engine itself. The package owns the
// goroutines of one terminal and, as the service, one that looks for unused sandboxes.
package program
