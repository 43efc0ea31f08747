package procusage

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/testkit"
)

// Only a limited part of a process's environment may be read. A process of the agent can show 64 GB. The test uses the maximum
// of execve(2).
func TestAnEnvironmentOfAnySizeIsReadInPart(t *testing.T) {
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &unix.Rlimit{Cur: min(64<<20, stack.Max), Max: stack.Max}); err != nil {
		t.Skip(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_STACK, &stack) }()
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
	file := "/proc/self/environ"
	if data, err := ReadProcFile(file); err != nil || len(data) == 0 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	file = strings.Replace(file, "self", strconv.Itoa(cmd.Process.Pid), 1)
	testkit.Until(t, "the kernel has laid the environment out", func() bool {
		data, err := ReadProcFile(file)
		return err == nil && len(data) > 0
	})
	data, err := ReadProcFile(file)
	if whole, _ := os.ReadFile(file); err != nil || len(data) != maxProcFile || len(whole) <= maxProcFile || !strings.HasPrefix(string(data), "FIRST=1") {
		t.Errorf("%d bytes of %d, %v", len(data), len(whole), err)
	}
}

// The command line of a process must be cut. Many processes with megabytes of arguments would fill the memory of hinit tree.
func TestALongCommandLineIsCut(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read x", strings.Repeat("x", 100_000))
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var got string
	testkit.Until(t, "the kernel has laid the arguments out", func() bool {
		got = CommandLine("/proc", cmd.Process.Pid)
		return strings.HasPrefix(got, "/bin/sh -c")
	})
	if len(got) != MaxTextBytes || !strings.HasSuffix(got, "xxx") {
		t.Errorf("%d bytes are shown", len(got))
	}
}

// Reading the command line of a process must end with an error if the process keeps its memory locked. A FIFO without a writer
// represents its cmdline file.
func TestATreeHungOnAProcessThatLocksItsMemory(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "cmdline")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range maxReads + 1 {
		want := blocking.ErrTimedOut
		if i == maxReads {
			want = blocking.ErrBusy
		}
		if _, err := ReadProcFile(fifo); !errors.Is(err, want) {
			t.Fatal(err)
		}
	}
	writer, err := os.OpenFile(fifo, os.O_RDWR, 0) // this writer ends the waiting readers
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the reads have begun", func() bool { return len(readTokens) == maxReads })
	_ = writer.Close()
	testkit.Until(t, "a file is read again", func() bool {
		data, err := ReadProcFile("/proc/self/environ")
		return err == nil && len(data) > 0
	})
}
