package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// NextImage is another name of the demo image. Tests of an update use it as the next version.
const NextImage = "hinit-demo:next"

// demoImageNames are the names that the demo image gets on each node: the names in the manifests and the tutorial, and the name of
// a sandbox image.
var demoImageNames = []string{
	"docker.io/library/hinit-demo:latest", "docker.io/library/" + NextImage, "registry.example.org/hermes-hinit:1", "registry.example.org/hermes-hinit:2",
	"docker.io/nikolaik/python-nodejs:python3.11-nodejs20",
}

var (
	builtImage = "hinit-kubernetes-test" + cacheSuffix() + ":latest"
	pauseName  = "hinit-kubernetes-pause" + cacheSuffix() + ":latest"
	pauseImage = "docker.io/library/" + pauseName
)

// buildImages builds the demo image from the binaries of the repository, and saves it with the pause image into a file. If that is
// not possible on this machine, left says why.
func buildImages(bin, repository, file string) (left string, err error) {
	dist := "dist/linux-" + runtime.GOARCH
	for _, name := range []string{"hinit", "busybox", "hinit-lease-kubernetes", "hinit-fleet", "hinit-sandbox-kubernetes"} {
		if !fileExists(filepath.Join(repository, dist, name)) {
			return dist + "/" + name + " is missing; make build build-kubernetes " + dist + "/busybox", nil
		}
	}
	docker, err := exec.LookPath("docker")
	if err != nil {
		return "no docker command, which builds the image of the pods", nil
	}
	if out, err := exec.Command(docker, "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		return "no Docker engine answers, which builds the image of the pods: " + strings.TrimSpace(string(out)), nil
	}
	pause := exec.Command("sh", "-c", `tar -C "$1" -c pause | "$2" import -c 'USER 65535:65535' -c 'ENTRYPOINT ["/pause"]' - "$3"`, "sh", bin, docker, pauseName)
	demo := exec.Command(docker, "build", "-q", "--network=none", "-t", builtImage, "-f", "docker/Dockerfile", "--target", "demo", "--build-arg", "ARCH="+runtime.GOARCH, ".")
	more := exec.Command(docker, "build", "-q", "--network=none", "-t", builtImage, "-f", "kubernetes/Dockerfile", "--build-arg", "ARCH="+runtime.GOARCH,
		"--build-arg", "IMAGE="+builtImage, ".")
	save := exec.Command(docker, "save", "-o", file, builtImage, pauseName)
	forget := exec.Command(docker, "rmi", builtImage, pauseName)
	for _, cmd := range []*exec.Cmd{pause, demo, more, save, forget} {
		cmd.Dir, cmd.Env = repository, os.Environ()
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot make the image of the pods: %s: %w: %s", cmd, err, out)
		}
	}
	return "", nil
}
