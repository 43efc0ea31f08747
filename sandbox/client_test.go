package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// helperVar is the environment variable that makes this test binary a client of the sandboxes.
const helperVar = "HINIT_SANDBOX_TEST_CLIENT"

// helperProcess starts this test binary as another client of the same sandboxes.
func helperProcess(t *testing.T, o Options, what, command string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), helperVar+"="+what, "CLIENT_COMMAND="+command, "CLIENT_DIR="+o.Dir, "CLIENT_PROFILE="+o.Profile, "CLIENT_HELPER="+o.HelperPath,
		"CLIENT_IMAGE="+o.Image, "CLIENT_LABEL="+testRun, "CLIENT_DOCKER="+o.EngineAddress)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// runClient is the main function of the client that helperProcess starts.
func runClient(what string) error {
	if text := os.Getenv("CLIENT_USER"); text != "" {
		uid, err := strconv.Atoi(text)
		var st syscall.Stat_t
		if err = errors.Join(err, syscall.Stat("/var/run/docker.sock", &st), syscall.Setgroups([]int{int(st.Gid)}), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
			return err
		}
	}
	o := DefaultOptions()
	o.Image, o.Network, o.DiskMB, o.MemoryMB = os.Getenv("CLIENT_IMAGE"), "none", 0, 256
	o.Dir, o.Profile, o.HelperPath = os.Getenv("CLIENT_DIR"), os.Getenv("CLIENT_PROFILE"), os.Getenv("CLIENT_HELPER")
	o.ExtraArgs = []string{"--label", os.Getenv("CLIENT_LABEL") + "=1"}
	o.Warn = func(text string) { fmt.Fprintln(os.Stderr, "client:", text) }
	e, err := Docker(os.Getenv("CLIENT_DOCKER"))
	if err != nil {
		return err
	}
	m, err := NewManager(e, o)
	if err != nil {
		return err
	}
	point, crashes := strings.CutPrefix(what, "crash-")
	if crashes {
		reachCrashPoint = func(at string) {
			if at == point {
				_ = os.Stdout.Sync()
				self, _ := os.FindProcess(os.Getpid())
				_ = self.Kill()
				select {}
			}
		}
	}
	ctx := context.Background()
	s, err := m.Open(ctx, Key{})
	if err != nil {
		return err
	}
	if way := os.Getenv("CLIENT_WAY"); way != "" {
		if d, err := s.Describe(ctx); err != nil || d.Exec != way {
			return fmt.Errorf("commands run %q because of %q; %w", d.Exec, d.Reason, err)
		}
	}
	req := Request{Command: os.Getenv("CLIENT_COMMAND")}
	if what == "start" {
		_, err = s.Start(ctx, req)
	} else {
		_, err = s.Exec(ctx, req)
	}
	return err
}
