package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hinit/internal/testkit"
)

// maxSize is the largest permitted size of the released shim in bytes.
const maxSize = 2 << 20

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	os.Exit(m.Run())
}

func build(t *testing.T, pkg, out string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, text)
	}
}

func TestSize(t *testing.T) {
	shim := filepath.Join(t.TempDir(), "shim")
	build(t, ".", shim)
	info, err := os.Stat(shim)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxSize {
		t.Errorf("the shim has %d bytes, more than %d", info.Size(), maxSize)
	}
}

// TestHermesImage checks the released binary in a root directory with the layout of the Hermes image, in which all programs are
// static.
func TestHermesImage(t *testing.T) {
	testkit.NeedRoot(t)
	root := t.TempDir()
	must(t, os.Chmod(root, 0o755))
	for path, content := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nhermes:x:10000:10000::/opt/data:/bin/sh\n",
		"/etc/group":  "root:x:0:\nhermes:x:10000:\nrender:x:109:hermes\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(root+path), 0o755))
		must(t, os.WriteFile(root+path, []byte(content), 0o644))
	}
	for _, dir := range []string{"/opt/data", "/opt/hermes/bin", "/opt/hermes/.venv/bin", "/proc"} {
		must(t, os.MkdirAll(root+dir, 0o755))
	}
	must(t, os.Chown(root+"/opt/data", 10000, 10000))
	build(t, ".", root+"/opt/hermes/bin/hermes")
	build(t, "./testdata/probe", root+"/opt/hermes/.venv/bin/hermes")

	const target = "/opt/hermes/.venv/bin/hermes"
	for _, c := range []struct {
		name       string
		uid        uint32
		env        []string
		args       []string
		code       int
		stdout     string
		configUser uint32
	}{
		{
			name: "root", args: []string{"config", "set", "k", "a  b"}, code: 4, configUser: 10000,
			stdout: `10000:10000 [109 10000] /opt/data /opt/hermes ["` + target + `" "config" "set" "k" "a  b"]`,
		},
		{
			name: "opt-out", env: []string{"HERMES_DOCKER_EXEC_AS_ROOT=True"}, args: []string{"config"}, code: 1, configUser: 0,
			stdout: `0:0 [] /root /opt/hermes ["` + target + `" "config"]`,
		},
		{
			name: "no opt-out", env: []string{"HERMES_DOCKER_EXEC_AS_ROOT=2"}, args: []string{"config"}, code: 1, configUser: 10000,
			stdout: `10000:10000 [109 10000] /opt/data /opt/hermes ["` + target + `" "config"]`,
		},
		{
			name: "real home", env: []string{"HERMES_REAL_HOME=/srv"}, args: []string{"config"}, code: 1, configUser: 10000,
			stdout: `10000:10000 [109 10000] /srv /opt/hermes ["` + target + `" "config"]`,
		},
		{
			name: "--user hermes", uid: 10000, args: []string{"config"}, code: 1, configUser: 10000,
			stdout: `10000:10000 [] /root /opt/hermes ["` + target + `" "config"]`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("/opt/hermes/bin/hermes", c.args...)
			cmd.Args[0] = "hermes"
			cmd.Dir = "/opt/hermes"
			cmd.Env = append([]string{"HOME=/root"}, c.env...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if _, ok := errors.AsType[*exec.ExitError](err); !ok {
				t.Fatalf("%v, %s", err, stderr.String())
			}
			if got := cmd.ProcessState.ExitCode(); got != c.code || stdout.String() != c.stdout+"\n" || stderr.Len() > 0 {
				t.Errorf("exit code %d, stdout %s, stderr %s\nwant %d, %s", got, stdout.String(), stderr.String(), c.code, c.stdout)
			}
			info, err := os.Stat(root + "/opt/data/config.yaml")
			must(t, err)
			if got := info.Sys().(*syscall.Stat_t).Uid; got != c.configUser {
				t.Errorf("config.yaml belongs to %d, want %d", got, c.configUser)
			}
			must(t, os.Remove(root+"/opt/data/config.yaml"))
		})
	}

	t.Run("no real program", func(t *testing.T) {
		must(t, os.Remove(root+target))
		cmd := exec.Command("/opt/hermes/bin/hermes")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		out, _ := cmd.CombinedOutput()
		want := "hermes-shim: " + target + " not found or not executable\n"
		if code := cmd.ProcessState.ExitCode(); code != 127 || string(out) != want {
			t.Errorf("exit code %d, output %q, want 127, %q", code, out, want)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
