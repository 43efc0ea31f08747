package program

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/internal/testkit"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// TestRootWithoutTheService checks that root's sandbox command is refused in an agent's home and
// while the enabled service is down. Otherwise root would run the agent's .profile.
func TestRootWithoutTheService(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	t.Setenv("HERMES_HOME", dir)
	t.Setenv("HINIT_SANDBOX_SOCKET", dir+"/none.sock")
	t.Setenv("DOCKER_HOST", "unix://"+dir+"/no-engine.sock")
	ask := func() string {
		t.Helper()
		var errs bytes.Buffer
		if code := (Program{sandbox.Docker}).dispatch(t.Context(), daemon.Request{Args: []string{"ls"}}, daemon.Streams{Out: io.Discard, Err: &errs}); code != cmdline.ExitUnreachable {
			t.Errorf("code %d", code)
		}
		return errs.String()
	}
	if output := ask(); !strings.Contains(output, "no container engine answers") {
		t.Errorf("with a home of root's: %s", output)
	}
	if err := os.Chown(dir, 10000, 10000); err != nil {
		t.Fatal(err)
	}
	if output := ask(); !strings.Contains(output, "as root: "+dir+" belongs to uid 10000") {
		t.Errorf("with the agent's home: %s", output)
	}
	// An agent could create or replace these directories later.
	if err := errors.Join(os.Mkdir(dir+"/roots", 0o755), os.Symlink("/", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	for _, home := range []string{dir + "/missing", dir + "/missing/profiles/x", dir + "/roots", dir + "/link"} {
		t.Setenv("HERMES_HOME", home)
		if output := ask(); !strings.Contains(output, "as root: "+dir+" belongs to uid 10000") {
			t.Errorf("with a home in a directory of the agent: %s", output)
		}
	}
	t.Setenv("HERMES_HOME", "/root/.hermes")
	t.Setenv("TERMINAL_SANDBOX_DIR", dir+"/missing")
	if output := ask(); !strings.Contains(output, "as root: "+dir+" belongs to uid 10000") {
		t.Errorf("with sandboxes in a directory of the agent: %s", output)
	}
	t.Setenv("HINIT_SANDBOX", "1")
	if output := ask(); !strings.Contains(output, "their service is not up; start it with: hinit start sandbox") {
		t.Errorf("with a service that is not up: %s", output)
	}
}

// TestRootRanADockerOfTheAgent checks that root never executes a docker program that an agent has
// put into PATH.
func TestRootRanADockerOfTheAgent(t *testing.T) {
	const inChild = "TEST_AS_DOCKER"
	if os.Getenv(inChild) != "" {
		os.Exit((Program{}).runAsDocker([]string{"images"}))
	}
	testkit.NeedRoot(t)
	agents, roots := t.TempDir(), t.TempDir()
	for _, dir := range []string{agents, roots} {
		if err := os.WriteFile(dir+"/docker", []byte("#!/bin/sh\necho $0 $*\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "bin") // a link that root made may lead to the agent's directory
	if err := errors.Join(os.Chown(agents, 10000, 10000), os.Symlink(agents, link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		roots: roots + "/docker images\n", agents + ":" + roots: roots + "/docker images\n", roots + "x": "there is no docker command in PATH\n",
		agents: "there is no docker command in PATH that root may trust: " + agents + " belongs to uid 10000\n",
		link:   "there is no docker command in PATH that root may trust: " + agents + " belongs to uid 10000\n",
	} {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestRootRanADockerOfTheAgent$")
		cmd.Env = append(os.Environ(), inChild+"=1", "PATH="+path+":/usr/bin-that-is-missing")
		output, _ := cmd.CombinedOutput()
		if !strings.HasSuffix(string(output), want) {
			t.Errorf("with the PATH %s: %s", path, output)
		}
	}
}
