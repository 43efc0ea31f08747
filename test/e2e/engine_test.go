package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// patience limits one docker command other than a build. It is long, because a busy engine is slow.
const patience = 3 * time.Minute

// result is the output and exit code of a command.
type result struct {
	args     []string
	out, err string
	code     int // Exit code; -1 if the command could not run or was given up.
}

func (r result) String() string {
	return fmt.Sprintf("%s: exit code %d\nstdout: %s\nstderr: %s", strings.Join(r.args, " "), r.code, r.out, r.err)
}

func (r result) last() string {
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func command(cmd *exec.Cmd) result {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	r := result{args: cmd.Args, out: out.String(), err: stderr.String(), code: cmd.ProcessState.ExitCode()}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.code, r.err = -1, r.err+err.Error()
	}
	return r
}

func docker(args ...string) result { return dockerWithin(patience, args...) }

// dockerWithin runs a docker command with a timeout.
func dockerWithin(limit time.Duration, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return command(exec.CommandContext(ctx, "docker", args...))
}

func mustDocker(t *testing.T, args ...string) string {
	t.Helper()
	r := docker(args...)
	if r.code != 0 {
		t.Fatal(r)
	}
	return strings.TrimSpace(r.out)
}

// requireImage returns the test image. Without an engine, it skips the test, or fails it in CI.
func requireImage(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a container engine")
	}
	if err := engine(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	image, err := demoImage()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// parallel marks a test as independent of others.
func parallel(t *testing.T) {
	t.Helper()
	requireImage(t)
	testkit.Parallel(t)
}

// eventually repeats a check until it returns no error.
func eventually(t *testing.T, within time.Duration, ask func() error) {
	t.Helper()
	if err := poll(within, ask); err != nil {
		t.Fatalf("not within %v: %v", within, err)
	}
}

// poll repeats ask with growing pauses, because most checks start a process in a container.
func poll(within time.Duration, ask func() error) error {
	deadline := time.Now().Add(within)
	for pause := 50 * time.Millisecond; ; pause = min(pause*5/4, 500*time.Millisecond) {
		err := ask()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// never fails the test if ask succeeds within a second.
func never(t *testing.T, what string, ask func() error) {
	t.Helper()
	if poll(time.Second, ask) == nil {
		t.Fatal(what)
	}
}
