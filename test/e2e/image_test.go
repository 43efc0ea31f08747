package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/testkit"
)

var (
	built        atomic.Bool            // Whether a test has already used the engine.
	buildContext atomic.Pointer[string] // Build context, created once.
)

// engine returns an error if no container can run on this machine.
var engine = sync.OnceValue(func() error {
	r := docker("version", "--format", "{{.Server.Os}}/{{.Server.Arch}}")
	if r.code != 0 {
		return fmt.Errorf("there is no container engine: %s", strings.TrimSpace(r.err))
	}
	if want, got := "linux/"+runtime.GOARCH, r.last(); got != want {
		return fmt.Errorf("the engine runs %s, these tests make images for %s", got, want)
	}
	return nil
})

// hinitImage builds the target "hinit" once and returns its tag.
var hinitImage = sync.OnceValues(func() (string, error) { return buildTarget("hinit", imageTag("hinit")) })

// demoImage builds the target "demo" once and returns its tag. It tags "hinit" too, because the
// classic builder leaves an unnamed image otherwise.
var demoImage = sync.OnceValues(func() (string, error) {
	if _, err := hinitImage(); err != nil {
		return "", err
	}
	return buildTarget("demo", imageTag("demo"))
})

// buildTarget builds a target of docker/Dockerfile and returns its tag.
func buildTarget(target, tag string, args ...string) (string, error) {
	dir, err := makeContext()
	if err != nil {
		return "", err
	}
	args = append([]string{
		"--file", filepath.Join(dir, "docker", "Dockerfile"), "--target", target, "--build-arg", "ARCH=" + runtime.GOARCH,
	}, args...)
	return tag, build(dir, tag, args...)
}

// imageTag returns an image name of this run. removeLeftoverContainers finds images by name.
func imageTag(kind string) string { return "hinit-e2e-" + runID + ":" + kind }

// buildTime limits the time of a build, for an engine that hangs.
const buildTime = 6 * time.Minute

// build makes an image from a directory.
func build(dir, tag string, args ...string) error {
	built.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	args = append([]string{"build", "--tag", tag}, args...)
	if r := command(exec.CommandContext(ctx, "docker", append(args, dir)...)); r.code != 0 {
		return errors.New(r.String())
	}
	return nil
}

// makeContext creates a build context like "make build", with its own binaries.
var makeContext = sync.OnceValues(func() (string, error) {
	repo, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "hinit-e2e-")
	if err != nil {
		return "", err
	}
	built.Store(true)
	buildContext.Store(&dir)
	dist := filepath.Join(dir, "dist", "linux-"+runtime.GOARCH)
	if err := errors.Join(
		os.MkdirAll(dist, 0o755),
		os.CopyFS(filepath.Join(dir, "docker"), os.DirFS(filepath.Join(repo, "docker"))),
		copyFile(filepath.Join(repo, ".dockerignore"), filepath.Join(dir, ".dockerignore"), 0o644),
	); err != nil {
		return "", err
	}
	if err := testkit.Build(dist, "hinit", "hinit-shim", "hinit-kanban", "hinit-web", "hinit-sandbox", "hinit-sandbox-helper", "hinit-tools", "hinit-top", "hinit-actions", "hinit-import", "hinit-isolate", "hinit-profile", "example-agent"); err != nil {
		return "", err
	}
	return dir, busybox(repo, filepath.Join(dist, "busybox"))
})

// busybox installs a static busybox at a path, from a cache if possible.
func busybox(repo, to string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	kept := filepath.Join(cache, "hinit", "busybox-static-"+runtime.GOARCH)
	for _, from := range []string{filepath.Join(repo, "dist", "linux-"+runtime.GOARCH, "busybox"), kept} {
		if copyFile(from, to, 0o755) == nil {
			return nil
		}
	}
	if r := command(exec.Command(filepath.Join(repo, "docker", "busybox"), runtime.GOARCH, to)); r.code != 0 {
		return errors.New(r.String())
	}
	temp := kept + fmt.Sprintf(".%d", os.Getpid())
	if os.MkdirAll(filepath.Dir(kept), 0o755) == nil && copyFile(to, temp, 0o755) == nil {
		return os.Rename(temp, kept) // Rename it into place, because other test runs may be reading the file.
	}
	return nil
}

func copyFile(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}
