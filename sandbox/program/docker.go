package program

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/client/dial"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
	"hinit/sandbox/dockercli"
)

// asDocker runs a command line of the docker command and returns the exit code.
func (p Program) asDocker(args []string) int {
	call, err := dockercli.Parse(args, permittedWords())
	if other := (*dockercli.UnhandledError)(nil); errors.As(err, &other) {
		return realDocker(args, err)
	}
	if err != nil {
		_, none := os.Stat(dial.SandboxSocket(os.LookupEnv))
		return dockercli.PrintError(os.Stderr, err, none == nil)
	}
	_, _ = unix.FcntlInt(os.Stdout.Fd(), unix.F_SETPIPE_SZ, 1<<20) // fails unless stdout is a pipe; a larger pipe needs fewer writes
	req := daemon.Request{Docker: true, Args: args, Env: sandbox.OwnEnvironment(call.Env), Stdin: call.Stdin}
	return p.run(req, daemon.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
}

// permittedWords returns the words of HINIT_SANDBOX_ALLOW.
func permittedWords() []string {
	return strings.FieldsFunc(os.Getenv("HINIT_SANDBOX_ALLOW"), func(r rune) bool { return r == ',' || r == ' ' })
}

// realDocker replaces this process by the real docker command if PATH has one. Otherwise it prints the error in the parameter
// why.
func realDocker(args []string, why error) int {
	self, err := os.Stat("/proc/self/exe")
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, "docker")
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || os.SameFile(self, info) {
			continue
		}
		if err := syscall.Exec(path, append([]string{"docker"}, args...), os.Environ()); err != nil {
			fmt.Fprintf(os.Stderr, "cannot run %s: %v\n", path, err)
			return 126
		}
	}
	fmt.Fprintf(os.Stderr, "docker: %v, and there is no docker command in PATH\n", why)
	return 1
}
