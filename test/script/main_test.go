package script_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// agentID is the uid and gid of the agent's user in the scenarios that root runs.
const agentID = 10000

// binaries holds two directories: bin for the programs, and root for the scenarios' files.
type binaries struct{ root, bin string }

// built is set once by TestMain.
var built binaries

func TestMain(m *testing.M) {
	if order := os.Getenv(stageVar); order != "" {
		os.Exit(stage(order))
	}
	if os.Geteuid() == 0 && os.Getenv(ownRunVar) == "" {
		fmt.Fprintln(os.Stderr, "other programs may disturb the scenarios:", hideOtherInits())
	}
	testkit.ShareSlots(10) // Run more scenarios than processors, because they mostly wait.
	os.Exit(run(m))
}

// ownRunVar is set in the process that hideOtherInits has executed.
const ownRunVar = "HINIT_TEST_OWN_RUN"

// hideOtherInits executes this program again with an empty /run, and returns only after an error. Otherwise a command before the
// init of its scenario would find a hinit that runs elsewhere on the machine.
func hideOtherInits() error {
	runtime.LockOSThread() // only this thread leaves the namespace
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), ownRunVar+"=1"))
}

func run(m *testing.M) int {
	testkit.IsolateProcess()
	root, err := scratch()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(root) // an error does not matter: only a temporary directory is left
	built = binaries{root: root, bin: filepath.Join(root, "bin")}
	if err := installPrograms(built.bin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// scratch creates a directory that every user can enter.
func scratch() (string, error) {
	root, err := os.MkdirTemp(cmp.Or(testkit.MemoryDir(), "/var/tmp"), "hinit-script-")
	if err != nil {
		return "", err
	}
	return root, os.Chmod(root, 0o755)
}

// installPrograms installs the binaries: those in HINIT_TEST_BIN, or freshly built ones.
func installPrograms(dir string) error {
	if from := os.Getenv("HINIT_TEST_BIN"); from != "" {
		return os.CopyFS(dir, os.DirFS(from))
	}
	return build(dir)
}

// faulty returns the path of a hinit that can be made to panic.
func faulty() string { return filepath.Join(built.bin, "faulty", "hinit") }

// build makes the static binaries as they are shipped, and a binary that can be made to panic. Scenarios with the panic take long.
func build(dir string) error {
	names := []string{"hinit", "hinit-shim", "hinit-actions", "hinit-import", "hinit-isolate", "hinit-profile", "hinit-web", "hinit-kanban", "example-agent"}
	if !testing.Short() {
		names = append(names, "faulty/hinit")
	}
	return testkit.Build(dir, names...)
}

// Ways to run the init.
const (
	pid1      = "pid1"
	subreaper = "subreaper"
)

// bothModes marks scenarios that run in both ways.
const bothModes = "# As PID 1 and as a subreaper.\n"

// TestPID1 runs the scenarios with hinit as PID 1. With -short, a third of them runs: each takes a fifth of a second of the processor.
func TestPID1(t *testing.T) { scenarios(t, pid1) }

// TestSubreaper runs the scenarios whose text has bothModes below another PID 1, which passes hinit's exit code on. These scenarios are
// about orphans, signals, terminals, stops or re-execution. With -short, each scenario runs in one of the two ways.
func TestSubreaper(t *testing.T) { scenarios(t, subreaper) }

func scenarios(t *testing.T, mode string) {
	t.Parallel()
	requireNamespaces(t)
	root, err := os.MkdirTemp(built.root, mode[:1]) //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	deadline, limited := t.Deadline() // All scenarios share one deadline.
	if deadline = deadline.Add(-time.Minute); !limited {
		deadline = time.Now().Add(time.Hour)
	}
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	both, one := 0, 0
	files = slices.DeleteFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(text), bothModes) {
			one++
			return mode != pid1 || testing.Short() && one%3 != 0
		}
		both++
		if !testing.Short() {
			return false
		}
		// With -short, every sixth of these scenarios runs, alternately as PID 1 and as a subreaper.
		if mode == pid1 {
			return both%12 != 0
		}
		return both%12 != 6
	})
	testscript.Run(t, testscript.Params{
		Files: files, WorkdirRoot: root, Setup: func(e *testscript.Env) error { return setup(e, mode) },
		Condition: func(name string) (bool, error) {
			switch name {
			case pid1, subreaper:
				return name == mode, nil
			case "root":
				return os.Geteuid() == 0, nil
			case "faults":
				_, err := os.Stat(faulty())
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: commands(), RequireUniqueNames: true, Deadline: deadline,
	})
}

// requireNamespaces skips the test if a PID namespace can't be made.
func requireNamespaces(t *testing.T) {
	t.Helper()
	err := probeNamespaces()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("cannot make a PID namespace, and CI must not skip: %v", err)
	default:
		t.Skipf("cannot make a PID namespace: %v", err)
	}
}

// setOldTimes sets old file times on a volume. Fresh files would make a parked gateway start once more.
func setOldTimes(home string) error {
	old := time.Now().Add(-time.Minute)
	return filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, old, old)
	})
}

// setup gives a scenario its volume, its configuration and its environment.
func setup(e *testscript.Env, mode string) error {
	e.Defer(testkit.TakeSlot())
	home := filepath.Join(e.WorkDir, "home")
	runtime := filepath.Join(e.WorkDir, "run")
	for _, dir := range []string{home, runtime} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	user, other := "0:0", "0:0" // Without root, the user namespace has only this user.
	if os.Geteuid() == 0 {
		other = "12345:12345"
		user = fmt.Sprintf("%d:%d", agentID, agentID)
		if err := chownTree(home, agentID); err != nil {
			return err
		}
	}
	if err := setOldTimes(home); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(e.WorkDir, ".tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	e.Setenv("PATH", built.bin+":"+os.Getenv("PATH"))
	e.Setenv("HERMES_HOME", home)
	e.Setenv("H", home)
	e.Setenv("HINIT_CONFIG", filepath.Join(e.WorkDir, "hinit.yaml"))
	e.Setenv("HINIT_RUNTIME_DIR", runtime)
	e.Setenv("AGENT", filepath.Join(built.bin, "example-agent"))
	e.Setenv("HINIT", filepath.Join(built.bin, "hinit"))
	e.Setenv("AGENT_USER", user)
	e.Setenv("OTHER_USER", other)
	// A process that ends by itself has enough time on a slow machine.
	e.Setenv("HINIT_STOP_TIMEOUT", "90")
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		return err
	}
	e.Setenv("EXAMPLES", examples)
	port, err := freePort()
	if err != nil {
		return err
	}
	e.Setenv("PORT", port)
	c := &container{mode: mode, work: e.WorkDir}
	e.Values[containerKey{}] = c
	e.Defer(func() {
		c.destroy()
		if tb, ok := e.T().(testing.TB); ok && tb.Failed() {
			tb.Log(c.lastWords())
		}
	})
	config := filepath.Join(e.WorkDir, "hinit.yaml")
	text, err := os.ReadFile(config)
	if os.IsNotExist(err) {
		text = []byte(plainConfig)
	} else if err != nil {
		return err
	}
	return os.WriteFile(config, expand(e.Getenv, text), 0o644)
}

// plainConfig is the default configuration of a scenario.
const plainConfig = `agent: {user: "$AGENT_USER", binary: $AGENT}
restart: {initial: 50ms, max: 2s}
`

// expand replaces the scenario's variables in a configuration.
func expand(get func(string) string, text []byte) []byte {
	return []byte(os.Expand(string(text), func(name string) string {
		switch name {
		case "AGENT", "HINIT", "AGENT_USER", "OTHER_USER", "WORK", "H":
			return get(name)
		}
		return "$" + name
	}))
}

// lastPort is the last assigned port.
var lastPort atomic.Int32

// freePort finds a free port of the loopback interface that no other process gets.
func freePort() (string, error) {
	const first, last = 20000, 32000 // A range below the kernel's ephemeral ports (ip_local_port_range).
	lastPort.CompareAndSwap(0, int32(first+os.Getpid()%(last-first)))
	var err error
	for range 100 {
		port := strconv.Itoa(first + int(lastPort.Add(1)-first)%(last-first))
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			return port, l.Close()
		}
	}
	return "", err
}

func chownTree(dir string, id int) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	})
}
