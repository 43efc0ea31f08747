package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// Environment variable with the stage of this process: "init" or "tests". It is empty in the
	// process that go test started.
	stageVar = "HINIT_CLUSTER_STAGE"
	binVar   = "HINIT_CLUSTER_BIN"
	logVar   = "HINIT_CLUSTER_LOG"
	leftVar  = "HINIT_CLUSTER_LEFT_OUT"
	imageVar = "HINIT_CLUSTER_IMAGE"
)

// Main runs the tests of a package in the namespaces of a cluster, and returns the exit code. Call it from TestMain.
//
// Main uses three processes. The first builds the image of the pods and waits. The second is process 1 of the new namespaces
// and reaps orphans. The third runs the tests. Without root, there are no namespaces and no nodes, and the second process
// runs the tests.
func Main(m *testing.M) int { return runTests(m, true) }

// MainServer is [Main] for tests that need only an API server, see [StartServer].
func MainServer(m *testing.M) int { return runTests(m, false) }

// SkipIfShort skips the calling test in a short run (go test -short). Such a run tests each requirement only once.
func SkipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a short run tries each requirement once; make test-kubernetes runs all tests")
	}
}

func runTests(m *testing.M, nodes bool) int {
	switch os.Getenv(stageVar) {
	case "init":
		return runInit()
	case "tests":
		return m.Run()
	}
	code, err := runOutside(nodes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 1
	}
	if code == runWithoutCluster {
		return m.Run()
	}
	return code
}

// runWithoutCluster makes Main run the tests without a cluster. Each test then skips and prints the
// reason.
const runWithoutCluster = -1

func runOutside(nodes bool) (int, error) {
	p, err := findDirectories()
	if err != nil {
		return 0, err
	}
	cache, bin := p.cache, p.bin
	logs := filepath.Join(cache, "log", filepath.Base(os.Args[0]))
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return 0, err
	}
	if !p.isBuilt() {
		return runWithoutCluster, os.Setenv(leftVar, "the programs of the cluster are not in "+cache+"; make test-kubernetes builds them")
	}
	if nodes || os.Geteuid() != 0 {
		unlock, err := lockFile(filepath.Join(cache, "lock"))
		if err != nil {
			return 0, err
		}
		defer unlock()
	}
	image := filepath.Join(cache, "images.tar")
	left := noNodesReason()
	if !nodes {
		left = "the tests need none"
	}
	if left == "" {
		left, err = buildImages(bin, filepath.Dir(p.root), image)
		if err != nil {
			return 0, err
		}
	}
	for name, value := range map[string]string{binVar: bin, logVar: logs, leftVar: left, imageVar: image} {
		if err := os.Setenv(name, value); err != nil {
			return 0, err
		}
	}
	if left != "" && nodes {
		fmt.Fprintln(os.Stderr, "cluster: only an API server runs, without nodes:", left)
	}
	return runInside()
}

// lockFile takes an exclusive lock on the file path, and waits while another process holds it. Main has one such file for the
// build of the programs, and one for a run. A run must be alone because of its control groups or, without namespaces, because
// of its ports.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}

// runInside executes this program again to run the tests, and returns the exit code. If this process is root, the new process
// gets its own namespaces.
func runInside() (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Env = append(os.Environ(), stageVar+"=tests")
	if os.Geteuid() == 0 {
		cmd.Env = append(os.Environ(), stageVar+"=init")
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET
		if os.Getenv(leftVar) == "" { // Without nodes there are no groups to remove; those on the machine may belong to another run.
			removeGroups() // Remove control groups of a killed earlier run.
			defer removeGroups()
		}
	}
	runtime.LockOSThread() // Pdeathsig is sent when the starting thread exits, so stay on this thread.
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// runInit is the main function of process 1 of the namespaces. It prepares the namespaces, starts the tests, and reaps children
// until the tests have ended.
func runInit() int {
	if err := prepareNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster: cannot prepare the namespaces:", err)
		return 1
	}
	self, err := os.Executable()
	var tests *os.Process
	if err = errors.Join(err, os.Setenv(stageVar, "tests")); err == nil {
		tests, err = os.StartProcess(self, os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "cluster: cannot wait for the tests:", err)
			return 1
		case pid == tests.Pid && status.Exited():
			return status.ExitStatus()
		case pid == tests.Pid:
			return 1
		}
	}
}

// prepareNamespaces sets up the new namespaces: private mounts on /proc, /run, /var/lib and /var/log, and a network. For nodes, it also
// creates control groups. Only these are visible outside.
func prepareNamespaces() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/lib", "/var/log"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("cannot mount a tmpfs on %s: %w", dir, err)
		}
	}
	if err := unix.Mount("", "/run", "", unix.MS_SHARED, ""); err != nil {
		return err
	}
	for _, line := range []string{
		"link set lo up",
		// Use a bridge, because a node can't have a loopback address, and some kernels lack dummy links.
		"link add " + bridge + " type bridge",
		"addr add " + nodeAddress(1) + "/24 dev " + bridge,
		"addr add " + nodeAddress(2) + "/24 dev " + bridge,
		"addr add " + serviceAddress + "/32 dev " + bridge,
		"link set " + bridge + " up",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	if os.Getenv(leftVar) != "" {
		return nil
	}
	return createGroups()
}
