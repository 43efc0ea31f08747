// Package e2e has the tests that need a container engine. They run the image of docker/Dockerfile, stop it, kill it and
// control it with docker exec, as a user does. They use only the docker command line, and nothing inside the program.
//
// Without an engine the tests are skipped; with CI=true they fail. They leave no image, container or volume behind. The
// package owns no goroutine.
package e2e
