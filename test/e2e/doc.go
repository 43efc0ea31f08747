// Package e2e holds the tests that need a container engine: the image of docker/Dockerfile, run, stopped, killed and driven
// by docker exec as a user would. Everything is in its tests, which talk to the docker command line and to nothing inside
// the program.
//
// Without an engine the tests are skipped, with CI=true they fail. They leave no image, container or volume behind. It owns
// no goroutine.
package e2e
