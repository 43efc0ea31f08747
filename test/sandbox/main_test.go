// Package sandbox_test tests the finished sandbox programs on a real container engine. The example agent calls hinit-sandbox
// as its docker command. hinit-sandbox also runs as the service and as the command line.
package sandbox_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// runID identifies this run, in the profile's name and so in the labels of all containers and
// volumes.
var runID = "s2t" + strings.ToLower(rand.Text()[:8])

// agentUID is the user ID of the agent in these tests.
const agentUID = 12345

// built is the directory of the binaries; "" before the build.
var built string

func TestMain(m *testing.M) {
	if socket := os.Getenv(receiverVar); socket != "" {
		if err := receiveDirectory(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(0)
	}
	testkit.IsolateProcess()
	testkit.ShareSlots(4)
	code := m.Run()
	if built != "" {
		docker("rmi", "-f", image())
		if helper, err := os.ReadFile(filepath.Join(built, "hinit-sandbox-helper")); err == nil { // the name of the volume contains the name of the program
			docker("volume", "rm", fmt.Sprintf("hinit-sandbox-gate-%.6x", sha256.Sum256(helper)))
		}
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

func image() string { return "hinit-sandbox-test:" + runID }

type result struct {
	out, err string
	code     int
}

func (r result) String() string {
	return fmt.Sprintf("code %d\nstdout: %s\nstderr: %s", r.code, r.out, r.err)
}

const patience = 2 * time.Minute

// runAs runs a program with additional environment variables.
func runAs(env []string, uid int, name string, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(cleanEnv(), env...)
	setUser(cmd, uid)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	r := result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.err += err.Error()
	}
	return r
}

func setUser(cmd *exec.Cmd, uid int) {
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
}

// cleanEnv returns the environment without the sandbox variables.
func cleanEnv() (env []string) {
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "HERMES_") && !strings.HasPrefix(kv, "TERMINAL_") && !strings.HasPrefix(kv, "HINIT_") {
			env = append(env, kv)
		}
	}
	return env
}

func docker(args ...string) result { return runAs(nil, 0, "docker", args...) }

// binaries builds the tested programs and the image.
var binaries = sync.OnceValue(func() (err error) {
	if built, err = os.MkdirTemp("", "hinit-sandbox-e2e-"); err != nil {
		return err
	}
	if err := os.Chmod(built, 0o755); err != nil {
		return err
	}
	if err := testkit.Build(built, "hinit-sandbox", "hinit-sandbox-helper", "example-agent"); err != nil {
		return err
	}
	if err := os.Symlink("hinit-sandbox", filepath.Join(built, "docker")); err != nil {
		return err
	}
	return buildImage(filepath.Join(built, "context"))
})

func buildImage(dir string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(cache, "hinit"), 0o755), os.Mkdir(dir, 0o755)); err != nil {
		return err
	}
	for _, name := range []string{"bash", "busybox"} {
		kept := filepath.Join(cache, "hinit", name+"-static-"+runtime.GOARCH)
		if _, err := os.Stat(kept); err != nil {
			temp := kept + "." + strconv.Itoa(os.Getpid())
			if out, err := exec.Command("../../docker/"+name, runtime.GOARCH, temp).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if err := os.Rename(temp, kept); err != nil {
				return err
			}
		}
		data, err := os.ReadFile(kept)
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name), data, 0o755)); err != nil {
			return err
		}
	}
	text := "FROM scratch\nLABEL hinit-sandbox-test=" + runID + "\nENV PATH=/bin\nCOPY bash busybox /bin/\nRUN [\"/bin/busybox\", \"sh\", \"-c\", \"busybox --install -s /bin && " +
		"mkdir -p /tmp /root /etc && chmod 1777 /tmp && echo 'root:x:0:0::/root:/bin/bash' > /etc/passwd\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("docker", "build", "-q", "--network=none", "-t", image(), dir)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the test image: %w: %s", err, out)
	}
	return nil
}

// requireEngine skips the test if no engine runs.
func requireEngine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a container engine")
	}
	testkit.NeedRoot(t)
	if r := docker("version"); r.code != 0 {
		testkit.SkipOrFail(t, "needs a container engine: "+r.err)
	}
	if err := binaries(); err != nil {
		t.Fatal(err)
	}
}

// installation is the directory, profile, user and environment of one test's agents.
type installation struct {
	t       *testing.T
	dir     string
	profile string
	uid     int
	env     []string
}

// newInstallation creates an installation without a service. Its agents are root and use the engine directly.
func newInstallation(t *testing.T) *installation {
	t.Helper()
	requireEngine(t)
	dir, err := os.MkdirTemp("", "hinit-sandbox-place-") //nolint:usetesting // other users must be able to reach this directory
	if err != nil {
		t.Fatal(err)
	}
	p := &installation{t: t, dir: dir, profile: runID + strings.ToLower(rand.Text()[:4])}
	t.Cleanup(func() {
		for _, id := range p.containers() {
			docker("rm", "-fv", id)
		}
		for name := range strings.FieldsSeq(docker("volume", "ls", "-q", "--filter", "name=hinit-private-"+p.profile).out) {
			docker("volume", "rm", name)
		}
		_ = os.RemoveAll(dir)
	})
	if err := errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(p.home(), 0o755), os.Symlink(filepath.Join(built, "docker"), p.docker())); err != nil {
		t.Fatal(err)
	}
	p.env = []string{
		"HERMES_HOME=" + p.home(), "HERMES_DOCKER_BINARY=" + p.docker(), "TERMINAL_DOCKER_IMAGE=" + image(), "HINIT_SANDBOX_SOCKET=" + filepath.Join(dir, "run", "sandbox.sock"),
		`TERMINAL_DOCKER_EXTRA_ARGS=["--network=none"]`, "TERMINAL_CONTAINER_DISK=0", "TERMINAL_CONTAINER_MEMORY=512", "EXAMPLE_AGENT_SLOW=6", "HINIT_SANDBOX_STATE=" + filepath.Join(dir, "state"), "HOME=" + p.home(), "TMPDIR=" + dir,
		"PATH=" + built + ":" + os.Getenv("PATH"),
	}
	return p
}

func (p *installation) root() string { return filepath.Join(p.dir, "data") }
func (p *installation) home() string { return filepath.Join(p.root(), "profiles", p.profile) }

func (p *installation) docker() string { return filepath.Join(p.dir, "docker") }

func (p *installation) containers() []string {
	return strings.Fields(docker("ps", "-aq", "--no-trunc", "--filter", "label=hermes-profile="+p.profile).out)
}

func (p *installation) call(args ...string) result { return runAs(p.env, p.uid, p.docker(), args...) }

// sandbox runs hinit sandbox as the agent's user.
func (p *installation) sandbox(args ...string) result {
	return runAs(p.env, p.uid, filepath.Join(built, "hinit-sandbox"), args...)
}

// labels returns the docker flags with which an agent labels its containers.
func (p *installation) labels(task string) []string {
	return []string{"--label", "hermes-agent=1", "--label", "hermes-task-id=" + task, "--label", "hermes-profile=" + p.profile}
}
