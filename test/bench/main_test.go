package bench

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// insideVar makes this test binary the first process of new namespaces. It holds the program to
// execute.
const insideVar = "HINIT_BENCH_INSIDE"

func TestMain(m *testing.M) {
	if program := os.Getenv(insideVar); program != "" {
		fmt.Fprintln(os.Stderr, "cannot become the init:", become(program))
		os.Exit(125)
	}
	testkit.IsolateProcess()
	os.Exit(m.Run())
}

// become mounts /proc in the new PID namespace and executes the program with this process's
// arguments.
func become(program string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := os.Unsetenv(insideVar); err != nil {
		return err
	}
	return syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ())
}

// container returns a command that runs the init as process 1 of new namespaces.
func container(program string, env []string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(env, insideVar+"="+program, "PATH="+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// binaries builds the measured programs into dir.
func binaries(tb testing.TB, dir string) (hinit, agent string) {
	tb.Helper()
	hinit, agent = dir+"/hinit", dir+"/example-agent"
	for to, pkg := range map[string]string{hinit: "hinit/cmd/hinit", agent: "hinit/examples/agent"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			tb.Fatalf("%v\n%s", err, out)
		}
	}
	return hinit, agent
}
