package script_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageVar holds the order of a stage: this test binary as the first process of the namespaces.
const stageVar = "HINIT_TEST_STAGE"

// stageConfig describes what a stage prepares before the init.
type stageConfig struct {
	Mode      string
	Program   string
	Argv      []string
	Dir       string
	UID, GID  int      // User and group of the init; 0 keeps root.
	ReadOnly  []string // Mount points to remount read-only.
	Tmpfs     []string
	NoFile    uint64 // Limit of open files; 0 leaves it unchanged.
	Leftovers string // File for the list of processes that outlived an init below another PID 1.
	TTY       bool   // Whether descriptor 0 is the controlling terminal.
}

// stage prepares the mounts, and executes the init or a PID 1 that starts it.
func stage(text string) int {
	runtime.LockOSThread() // The init ends with this thread, and so with the test.
	var o stageConfig
	var left *os.File
	err := json.Unmarshal([]byte(text), &o)
	if err == nil && o.Leftovers != "" {
		left, err = os.Create(o.Leftovers)
	}
	if err == nil {
		err = os.Unsetenv(stageVar)
	}
	if err == nil {
		err = o.mounts()
	}
	if err == nil && o.Dir != "" {
		err = os.Chdir(o.Dir)
	}
	if err == nil && o.NoFile != 0 {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: o.NoFile, Max: o.NoFile})
	}
	if err == nil && o.UID != 0 {
		err = o.dropPrivileges()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		return 125
	}
	if o.Mode == pid1 {
		fmt.Fprintln(os.Stderr, "stage:", syscall.Exec(o.Program, o.Argv, os.Environ()))
		return 125
	}
	code, err := o.watch(left)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		return 125
	}
	return code
}

// mounts mounts /proc and the scenario's directories.
func (o stageConfig) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	for _, dir := range o.Tmpfs {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
			return fmt.Errorf("cannot mount a tmpfs on %s: %w", dir, err)
		}
	}
	for _, dir := range o.ReadOnly {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("cannot make %s read-only: %w", dir, err)
		}
	}
	return nil
}

// dropPrivileges gives up root.
func (o stageConfig) dropPrivileges() error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(o.GID), syscall.Setuid(o.UID)); err != nil {
		return err
	}
	// A change of user clears the parent death signal (prctl(2)).
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// watch imitates docker run --init: it starts the init, reaps orphans, and exits with the init's
// exit code.
func (o stageConfig) watch(left *os.File) (int, error) {
	cmd := exec.Command(o.Program)
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = o.Argv, os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if o.TTY {
		cmd.SysProcAttr.Foreground = true
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR || err == nil && pid != cmd.Process.Pid {
			continue
		}
		if err != nil {
			return 0, err
		}
		if _, err := left.WriteString(strings.Join(otherProcesses(), "\n")); err != nil {
			return 0, err
		}
		if status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return status.ExitStatus(), nil
	}
}

// otherProcesses lists the processes of this PID namespace except for the first.
func otherProcesses() []string {
	var list []string
	for _, p := range allProcesses() {
		if p.pid != 1 && p.state != 'Z' && p.state != 'X' {
			list = append(list, fmt.Sprintf("%d %s", p.pid, p.command()))
		}
	}
	return list
}

// startStage runs a stage in new namespaces, which end with the calling thread. The caller has
// locked the thread.
func startStage(cmd *exec.Cmd, o stageConfig) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd.Path, cmd.Args = self, []string{self}
	cmd.Env = append(cmd.Env, stageVar+"="+string(text))
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	sys := cmd.SysProcAttr
	sys.Setsid = true
	sys.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS
	sys.Pdeathsig = unix.SIGKILL
	if os.Geteuid() != 0 {
		sys.Cloneflags |= unix.CLONE_NEWUSER
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return cmd.Start()
}

// probeNamespaces checks once whether namespaces can be created.
var probeNamespaces = sync.OnceValue(func() error {
	if _, err := exec.LookPath("nsenter"); err != nil {
		return err
	}
	program, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Env: os.Environ()}
	if err := startStage(cmd, stageConfig{Mode: pid1, Program: program, Argv: []string{"true"}}); err != nil {
		return err
	}
	return cmd.Wait()
})

type process struct {
	pid, ppid int
	state     byte
}

func allProcesses() []process {
	entries, _ := os.ReadDir("/proc") // Without /proc, no processes are visible.
	var list []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		ppid, _ := strconv.Atoi(fields[1])
		list = append(list, process{pid, ppid, fields[0][0]})
	}
	return list
}

// descendants lists the processes below a process.
func descendants(root int) []process {
	all := allProcesses()
	var list []process
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, p := range all {
			if p.ppid == queue[0] && !slices.Contains(list, p) {
				list, queue = append(list, p), append(queue, p.pid)
			}
		}
	}
	return list
}

func (p process) command() string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	return strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))
}

// innerPID returns the PID in the process's own PID namespace.
func (p process) innerPID() int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			numbers := strings.Fields(rest)
			n, _ := strconv.Atoi(numbers[len(numbers)-1])
			return n
		}
	}
	return 0
}
