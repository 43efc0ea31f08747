package promises_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stageVar holds the order of a stage: this test binary as the first process of the namespaces.
const stageVar = "HINIT_PROMISES_STAGE"

// stageConfig describes what a stage prepares before it executes the init.
type stageConfig struct {
	Program string
	Argv    []string
	Tmpfs   map[string]string // Mount options by directory.
	Run     bool              // Whether the container has its own empty /run.
	Limits  map[int]uint64    // Resource limits of the init.
	Cgroup  string            // Control group directory that the init joins.
	Memory  string            // Directory of the only memory control group that the init sees.
	Owner   int               // User who owns the volume.
	User    int               // User of the init instead of root.
	Refused []uint            // System calls that seccomp refuses with EPERM.
	Host    string            // Host name. If it is set, the container has its own network and /etc/hostname.
	Named   string            // Content of /etc/hostname.
	Below   bool              // Whether the init is a child of process 1, as with docker run --init.
}

func stage(text string) int {
	var o stageConfig
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.become()
	}
	fmt.Fprintln(os.Stderr, "stage:", err)
	return 125
}

// become executes the order. It returns only after an error.
func (o stageConfig) become() error {
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
		// The mount hides the files of the directory, so copy them into it.
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
	if o.Host != "" {
		if err := errors.Join(unix.Sethostname([]byte(o.Host)), unix.Mount(o.Named, "/etc/hostname", "", unix.MS_BIND, "")); err != nil {
			return fmt.Errorf("cannot be called %s: %w", o.Host, err)
		}
	}
	if o.Cgroup != "" {
		if err := os.WriteFile(filepath.Join(o.Cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if o.Memory != "" {
		if err := os.WriteFile(filepath.Join(o.Memory, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
		if err := unix.Mount(o.Memory, filepath.Dir(o.Memory), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for resource, limit := range o.Limits {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("cannot set limit %d: %w", resource, err)
		}
	}
	if o.User != 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(o.User), syscall.Setuid(o.User)); err != nil {
			return err
		}
	}
	if err := refuse(o.Refused); err != nil {
		return fmt.Errorf("cannot refuse system calls: %w", err)
	}
	if o.Below {
		return syscall.Exec("/bin/sh", append([]string{"sh", "-c", `"$@" & wait`, "sh", o.Program}, o.Argv[1:]...), os.Environ())
	}
	return syscall.Exec(o.Program, o.Argv, os.Environ())
}

// refuse installs a seccomp filter that refuses system calls.
func refuse(calls []uint) error {
	if len(calls) == 0 {
		return nil
	}
	// The filter belongs to the thread, and exec keeps the calling thread's filter.
	runtime.LockOSThread()
	// The first instruction loads the system call number.
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	for _, call := range calls {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(call)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

const agentID = 10000

func chownTree(dir string, id int) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	})
}

// requireRoot skips a test that needs namespaces and several users if they are unavailable.
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
