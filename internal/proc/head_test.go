package proc

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// PID 1 must read only a limited part of a process's environment. A process of the agent can show 64 GB. The test uses the
// maximum of execve(2).
func TestAnEnvironmentOfAnySizeIsNotReadWhole(t *testing.T) {
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &unix.Rlimit{Cur: min(64<<20, stack.Max), Max: stack.Max}); err != nil {
		t.Skip(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_STACK, &stack) }() // restore the limit
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
	for i := range 24 {
		cmd.Env = append(cmd.Env, "X"+strconv.Itoa(i)+"="+strings.Repeat("x", 100_000))
	}
	cmd.Env = append([]string{"FIRST=1"}, cmd.Env...)
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	file := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/environ"
	testkit.Until(t, "the kernel has laid the environment out", func() bool { // Start may return before execve is complete
		data, err := os.ReadFile(file)
		return err == nil && len(data) > 0
	})
	s := newScanner()
	if _, ok := s.readAll(strconv.Itoa(cmd.Process.Pid) + "/environ"); ok {
		t.Error("the scanner takes all of it")
	}
}
