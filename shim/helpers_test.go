package shim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// imageEnv is an environment variable. If it is set, the test binary runs as the shim, with the options in the value, one field
// a line.
const imageEnv = "SHIM_TEST_IMAGE"

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(typeTextEnv); ok {
		os.Exit(typeIntoTerminals(text))
	}
	image, ok := os.LookupEnv(imageEnv)
	if !ok {
		testkit.IsolateProcess()
		os.Exit(m.Run())
	}
	f := strings.Split(image, "\n")
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, imageEnv+"=") })
	os.Exit(run(os.Args, env, options{
		target: f[0], user: f[1], home: f[2], config: f[3], root: f[4], hinitPath: f[5], s6BaseDir: f[6],
	}))
}

const (
	agentUID = 10000
	passwd   = "root:x:0:0:root:/root:/bin/bash\n" +
		"hermes:x:10000:10001::/opt/data:/bin/sh\n" +
		"toor:x:0:0::/root:/bin/sh\n" +
		"second:x:20000:20000::/home/second:/bin/sh\n" +
		"homeless:x:20001:20001:::/bin/sh\n"
	group = "hermes:x:10001:\nvideo:x:44:other,hermes\nrender:x:109:hermes\nsecret:x:50:other\n"
)

// image is a Hermes image in a directory. Its real agent program is a shell script.
type image struct {
	options
	dir string
}

// newImage makes an image that every user can reach, unlike a plain t.TempDir().
func newImage(t *testing.T, script string) *image {
	t.Helper()
	dir := t.TempDir()
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		must(t, os.Chmod(p, 0o755))
	}
	write(t, dir+"/etc/passwd", passwd, 0o644)
	write(t, dir+"/etc/group", group, 0o644)
	write(t, dir+"/bin/hermes", "#!/bin/sh\n"+script, 0o755)
	return &image{dir: dir, options: options{
		target: dir + "/bin/hermes", user: "hermes", home: "/opt/data", config: dir + "/etc/hinit/shim", root: dir,
		hinitPath: dir + "/bin/hinit", s6BaseDir: dir + "/run/s6/basedir",
	}}
}

// command returns a command that runs the image's shim as root, with an environment of two variables. Tests may change it
// first.
func (i *image) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "hermes"
	cmd.Dir = "/"
	cmd.Env = []string{
		imageEnv + "=" + strings.Join([]string{i.target, i.user, i.home, i.config, i.root, i.hinitPath, i.s6BaseDir}, "\n"),
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root",
	}
	return cmd
}

// result is the output and the exit code of a finished command.
type result struct {
	stdout, stderr string
	code           int // -1 if a signal ended the command
	status         syscall.WaitStatus
}

func runCommand(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, isExit := errors.AsType[*exec.ExitError](err); err != nil && !isExit {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), cmd.ProcessState.Sys().(syscall.WaitStatus)}
}

// want checks the exit code and both outputs.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || r.stderr != stderr {
		t.Errorf("exit code %d, stdout %q, stderr %q\nwant %d, %q, %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
}

func asUser(cmd *exec.Cmd, uid uint32) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// withoutCapability calls fn on a thread whose children can't have the capability, even as root.
func withoutCapability(t *testing.T, capability uintptr, fn func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if err == nil {
			fn()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Errorf("cannot drop capability %d: %v", capability, err)
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, testkit.WriteProgram(path, []byte(content)))
	must(t, os.Chmod(path, mode))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func shimMessage(line ...string) string {
	return "hermes-shim: " + strings.Join(line, "\nhermes-shim: ") + "\n"
}

func asRootAdvice(user string) string {
	return fmt.Sprintf("use docker exec --user %s, or set HERMES_DOCKER_EXEC_AS_ROOT=1 to run it as root on purpose", user)
}
