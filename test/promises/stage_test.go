package promises_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// stageVar holds the order of a stage: this test binary, started again as the first process of the namespaces.
const stageVar = "HINIT_PROMISES_STAGE"

// order is what a stage does before it becomes the init.
type order struct {
	Program string
	Argv    []string
	Tmpfs   map[string]string // directory → options
	Run     bool              // with a /run of its own, which is empty
	Limits  map[int]uint64    // resource limits of the init
	Cgroup  string            // directory of the control group that it joins
	Owner   int               // whom the volume belongs to
}

func stage(text string) int {
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.become()
	}
	fmt.Fprintln(os.Stderr, "stage:", err)
	return 125
}

// become prepares everything and executes the program. It returns only with an error.
func (o order) become() error {
	if err := os.Unsetenv(stageVar); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	for dir, options := range o.Tmpfs {
		// What is there goes along.
		held, err := os.MkdirTemp("", "held")
		if err == nil {
			err = os.CopyFS(held, os.DirFS(dir))
		}
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
		}
		if err == nil {
			err = errors.Join(os.CopyFS(dir, os.DirFS(held)), chownTree(dir, o.Owner), os.RemoveAll(held))
		}
		if err != nil {
			return fmt.Errorf("cannot mount a tmpfs on %s: %w", dir, err)
		}
	}
	if o.Run {
		if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("cannot mount a tmpfs on /run: %w", err)
		}
	}
	if o.Cgroup != "" {
		if err := os.WriteFile(filepath.Join(o.Cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	for resource, limit := range o.Limits {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("cannot set limit %d: %w", resource, err)
		}
	}
	return syscall.Exec(o.Program, o.Argv, os.Environ())
}

// agentID is the uid and gid of the agent's user.
const agentID = 10000

func chownTree(dir string, id int) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	})
}

// requireRoot skips a test that needs namespaces and several users where it can't have them.
func requireRoot(t *testing.T) {
	t.Helper()
	switch {
	case os.Geteuid() == 0 && unix.Unshare(0) == nil:
	case os.Getenv("CI") == "true":
		t.Fatal("root is needed, and CI must not skip")
	default:
		t.Skip("root is needed")
	}
	if testing.Short() {
		t.Skip("it needs root and takes seconds")
	}
}
