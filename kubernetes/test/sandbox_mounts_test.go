package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/kubernetes/internal/cluster"
)

// TestNoMountOfASandboxLeadsElsewhere exchanges the target of a mount's path while sandboxes with
// this mount start. No sandbox may get another directory.
func TestNoMountOfASandboxLeadsElsewhere(t *testing.T) {
	cluster.SkipIfShort(t)
	a := withSandboxes(t)
	t.Run("links below mounts", func(t *testing.T) { a.linksBelowMounts(t, "hermes-0000002a") })
	t.Run("a race", a.mountRace)
}

// mountRace repeatedly exchanges a directory of the agents with a link to a directory of the node.
func (a *agentPod) mountRace(t *testing.T) {
	hidden, err := os.MkdirTemp("/run/volumes", "hidden-") //nolint:usetesting // the nodes see this directory, too
	if err != nil {
		t.Fatal(err)
	}
	work, link := filepath.Join(a.volume, "work"), filepath.Join(a.volume, "elsewhere")
	err = errors.Join(
		os.Chmod(hidden, 0o755), os.WriteFile(filepath.Join(hidden, "secret"), []byte("the node's secret"), 0o644), //nolint:gosec // everybody may read this directory
		os.Mkdir(work, 0o777), os.WriteFile(filepath.Join(work, "mine"), nil, 0o644), //nolint:gosec // the agents may use this directory
		os.Chown(work, 10000, 10000), os.Symlink(hidden, link),
	)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Microsecond): // The pause leaves the nodes some processor time.
				_ = unix.Renameat2(unix.AT_FDCWD, work, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	const look = "cat /work/*; ls /work"
	made, refused := 0, map[string]int{}
	for i := range 8 {
		name := fmt.Sprintf("hermes-0000003%d", i)
		running, looked := make(chan struct{}), make(chan struct{})
		go func() { // This goroutine must not read the mounted files before the check of the mount.
			defer close(looked)
			for {
				if r := a.shellIn(name, look); strings.Contains(r.output, "secret") {
					t.Errorf("round %d, before the gate was open: %v", i, r)
				}
				select {
				case <-running:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
		r := a.runSandbox(name, "-v", "/opt/data/work:/work")
		close(running)
		<-looked
		if r.exitCode != 0 {
			words := strings.Fields(r.output)
			refused[strings.Join(words[:min(12, len(words))], " ")]++
			continue
		}
		made++
		if r := a.shellIn(name, look); strings.Contains(r.output, "secret") || !strings.Contains(r.output, "mine") {
			t.Errorf("round %d: %v", i, r)
		}
		a.docker("stop", "-t", "0", name)
		if r := a.docker("start", name); r.exitCode == 0 {
			if r := a.shellIn(name, look); r.exitCode == 0 && (strings.Contains(r.output, "secret") || !strings.Contains(r.output, "mine")) {
				t.Errorf("round %d, after a start: %v", i, r)
			}
		}
		a.docker("rm", "-f", name)
	}
	t.Logf("%d made, refused %v", made, refused)
	a.eventually("nothing is left", func() string { return a.mustRun("get", "pods", "-l", "hinit.dev/sandbox", "-o", "name") })
}

// helperDir returns the directory of the helper in the container.
func (a *agentPod) helperDir(name string) string {
	return a.mustRun("get", "pod", objectName(name), "-o", `jsonpath={.spec.containers[0].volumeMounts[?(@.name=="tools")].mountPath}`)
}

// linksBelowMounts uses a link in one mount to redirect another mount to the helper, which must not be replaced.
func (a *agentPod) linksBelowMounts(t *testing.T, name string) {
	t.Helper()
	links, evil := filepath.Join(a.volume, "links"), filepath.Join(a.volume, "evil")
	program := []byte("#!/bin/sh\necho replaced > /work/replaced; exec sleep infinity\n")
	err := errors.Join(
		os.Mkdir(links, 0o755), os.Symlink("/sbin", filepath.Join(links, "s")), os.Chown(links, 10000, 10000), //nolint:gosec // the agents read these directories
		os.WriteFile(evil, program, 0o755), os.Chown(evil, 10000, 10000), //nolint:gosec // the agents run this program
	)
	if err != nil {
		t.Fatal(err)
	}
	a.createdID(a.runSandbox(name, "-v", "/opt/data/links:/work", "-v", "/opt/data/evil:/work/s/gate"))
	first := func() {
		t.Helper()
		if r := a.shellIn(name, `tr '\0' ' ' < /proc/1/cmdline`); !strings.Contains(r.output, "/gate gate-init /root sleep infinity") {
			t.Error("the first process is", r)
		}
		if _, err := os.Stat(filepath.Join(links, "replaced")); err == nil {
			t.Error("the agent's program was the first one")
		}
	}
	first()
	// The agent now knows the helper's directory, and a link redirects a mount to it.
	known := a.helperDir(name)
	a.docker("stop", "-t", "0", name)
	if err := errors.Join(os.Remove(filepath.Join(links, "s")), os.Symlink(known, filepath.Join(links, "s"))); err != nil {
		t.Fatal(err)
	}
	if r := a.docker("start", name); r.exitCode == 0 {
		if now := a.helperDir(name); now == known || now == "" {
			t.Errorf("the program inside was in %s, and is in %s", known, now)
		}
		first()
	} else {
		t.Log("the start is refused:", r)
	}
	a.docker("rm", "-f", name)
	a.awaitNoPod(name)
}
