//go:build linux && (amd64 || arm64)

package entry_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// execAsAgent executes hinit as PID 1 does for a service of the agent, with a variable of the agent that ends every Go program at
// its start. It returns the user of the process at its end, its exit code and its output.
func execAsAgent(t *testing.T, words ...string) (user string, code int, output string) {
	t.Helper()
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	dir := t.TempDir()
	if err := testkit.Build(dir, "hinit"); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.Command(filepath.Join(dir, "hinit"))
	cmd.Args, cmd.Env = append([]string{"hinit-limits"}, words...), []string{"GOMEMLIMIT=whatever the agent writes"}
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nUid:\t")
	user, _, _ = strings.Cut(rest, "\n")
	_ = cmd.Wait()
	return user, cmd.ProcessState.ExitCode(), out.String()
}

// A service with limits or a niceness must not run the Go runtime as root. The agent's .env may contain GODEBUG and GOMEMLIMIT,
// which the runtime obeys.
func TestVariablesOfTheAgentsAreObeyedAsTheAgent(t *testing.T) {
	testkit.SkipIfShort(t)
	const agent = "10000\t10000\t10000\t10000"
	for _, words := range [][]string{
		{"user=10000:10000", "7:1024:1024", "--", "/bin/true", "true"},
		{"nice=-5", "io=2:7", "cpus=0", "umask=022", "user=10000:10000:4:5", "dir=/", "4:0:0", "--", "/bin/true", "true"},
		{"user=10000:10000", "dir=/nowhere", "--", "/bin/true", "true"},
		{"user=10000:10000", "env=/nowhere", "--", "/bin/true", "true"},
	} {
		user, code, said := execAsAgent(t, words...)
		if user != agent || code != 2 || !strings.Contains(said, "GOMEMLIMIT") {
			t.Errorf("%q: the runtime began as %q; %d: %s", words, user, code, said)
		}
	}
}

// A service with a niceness but without limits must start without any Go runtime, and with all settings that its
// arguments name.
func TestAServiceWithANicenessBeginsWithoutTheRuntime(t *testing.T) {
	testkit.SkipIfShort(t)
	own, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	const look = `echo $(id -u) $(id -g) $(id -G) $(pwd) $(cut -d' ' -f19 /proc/self/stat) $(grep NoNewPrivs /proc/self/status)`
	for _, nice := range []int{3, -3} {
		_, code, said := execAsAgent(t, fmt.Sprintf("nice=%d", nice), "io=2:7", "user=10000:10001:4:5", "dir=/usr", fmt.Sprintf("bound=%d", os.Getpid()), "no_new_privs=1",
			"--", "/bin/sh", "sh", "-c", look)
		if want := fmt.Sprintf("10000 10001 10001 4 5 /usr %d NoNewPrivs: 1\n", 20-own+nice); code != 0 || said != want {
			t.Errorf("nice %d: %d %q, want %q", nice, code, said, want)
		}
	}
}

// A setting that root can't apply must be reported and end the start before the Go runtime begins.
func TestAFailureAsRootEndsTheStart(t *testing.T) {
	user, code, said := execAsAgent(t, "io=6:0", "user=10000:10000", "7:1:1", "--", "/bin/true", "true")
	if code != 126 || said != "[hinit] cannot set io=6:0: invalid argument\n" {
		t.Errorf("%q, %d: %s", user, code, said)
	}
}

// A control group must be made and entered as root, before the process gets the user of its command. If the group can't be
// made, the error must name it.
func TestAControlGroupIsEnteredBeforeTheUserIsChanged(t *testing.T) {
	testkit.SkipIfShort(t)
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
		root += "/unified"
	}
	group := fmt.Sprintf("%s/hinit-entry-%d", root, os.Getpid())
	if err := unix.Access(root+"/cgroup.procs", unix.W_OK); err != nil {
		testkit.SkipOrFail(t, "needs a writable hierarchy of control groups of version 2")
	}
	t.Cleanup(func() { _ = unix.Rmdir(group) })
	for range 2 {
		_, code, said := execAsAgent(t, "cgroup="+group, "put=0:"+group+"/cgroup.procs", "user=10000:10000", "--", "/bin/sh", "sh", "-c", "id -u; grep ^0: /proc/self/cgroup")
		if code != 0 || !strings.HasPrefix(said, "10000\n0::") || !strings.HasSuffix(said, "/hinit-entry-"+fmt.Sprint(os.Getpid())+"\n") {
			t.Errorf("%d: %s", code, said)
		}
	}
	for word, want := range map[string]string{
		"cgroup=/proc/x": "no such file or directory", "put=5:" + group + "/memory.nothing": "no such file or directory", "put=x:" + group + "/cgroup.max.depth": "invalid argument",
	} {
		if _, code, said := execAsAgent(t, word, "user=10000:10000", "--", "/bin/true", "true"); code != 126 || said != "[hinit] cannot set "+word+": "+want+"\n" {
			t.Errorf("%s: %d: %s", word, code, said)
		}
	}
}

// Without /proc, hinit doesn't know the directory of its programs. A command that root ran executed a file hinit-tools in the
// working directory, which may belong to the agent.
func TestACommandWithoutProcExecutesNothingInTheWorkingDirectory(t *testing.T) {
	testkit.SkipIfShort(t)
	testkit.NeedRoot(t)
	root := t.TempDir()
	if err := testkit.Build(root+"/bin", "hinit"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(root+"/agent", 0o777), os.Rename(root+"/bin/hinit-tools", root+"/agent/hinit-tools")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/hinit", "version")
	cmd.Dir, cmd.SysProcAttr = "/agent", &syscall.SysProcAttr{Chroot: root}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "hinit-tools") {
		t.Errorf("%v: %s", err, out)
	}
}
