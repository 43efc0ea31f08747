// Package isolate confines the calling process for good. Landlock limits the files, ports and signals that it reaches, and a filter
// limits its system calls. Package isolation defines the arguments by which PID 1 asks for it.
//
// If a part of the isolation is not available, it returns an error, unless the plan allows the process to run without. It owns no
// goroutine.
package isolate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"hinit/internal/isolation"
	"hinit/internal/proc"
)

// Main confines this process by the plan in argv, and becomes the command in argv. It returns only on failure, with the exit code.
func Main(argv, env []string) int {
	runtime.LockOSThread() // the filter and the capabilities belong to one thread, which execve(2) keeps
	plan, command, err := Parse(argv)
	if plan.Refused != "" {
		say("cannot start the gateway of profile %s: %s", plan.Name, plan.Refused)
		return refused78
	}
	if err == nil {
		env, err = Confine(plan, env)
	}
	if err != nil {
		say("cannot isolate %s: %v", plan.Name, err)
		return 126
	}
	path, err := proc.LookPath(command[0], env)
	if err == nil {
		err = unix.Exec(path, command, env)
	}
	failed := &proc.SpawnError{What: command[0], Err: err}
	say("%v", failed)
	return failed.ShellCode()
}

// refused78 is the exit code that makes PID 1 park a gateway until its configuration changes.
const refused78 = 78

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "[hinit] "+format+"\n", args...) }

// webToken begins the variable with the token of the status page. A program with the token can control all gateways.
const webToken = "HINIT_WEB_TOKEN="

// Confine isolates the calling thread, and returns the environment for the command. The goroutine must stay on the thread.
func Confine(p isolation.Plan, env []string) ([]string, error) {
	if err := judge(isolation.LandlockABI()); err != nil {
		if !p.Degrade {
			return nil, err
		}
		say("%s is not isolated as configured: %v", p.Name, err)
	}
	own, err := temporary(p.Name)
	if err != nil {
		return nil, err
	}
	// The process is not root any more, so it has capabilities only if the container gives some to every user.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("cannot drop the capabilities: %w", err)
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return nil, fmt.Errorf("cannot drop the capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot set no_new_privs: %w", err)
	}
	if err := restrict(p, own); err != nil {
		return nil, err
	}
	switch err := seal(p.Control); {
	case err != nil && p.Degrade && !p.Marked:
		say("%s is not isolated as configured: %v", p.Name, err)
	case err != nil:
		return nil, err
	case p.Degrade && p.Marked: // kernels with Landlock count filters
		status, _ := os.ReadFile("/proc/self/status") // if it is missing, PID 1 can't read it either
		if err := marked(string(status)); err != nil {
			return nil, err
		}
	}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, webToken) })
	return proc.SetEnv(env, map[string]string{"TMPDIR": own}), nil
}

// marked returns an error if PID 1 can't recognise a process with this status by its number of filters.
func marked(status string) error {
	if !strings.Contains(status, "\nSeccomp_filters:") {
		return errors.New("cannot keep it from the control socket: the kernel does not count filters of system calls (Linux 5.9 does)" +
			"; start the container on a newer kernel, or set isolation.control, or isolation to user")
	}
	return nil
}

// parts are the parts of Landlock that the isolation needs, and the version of its interface that introduced each (landlock(7)).
var parts = []struct {
	abi  int
	what string
}{{3, "all changes of files"}, {4, "TCP ports"}, {6, "signals and abstract sockets"}}

// judge returns an error if this version of Landlock lacks a part.
func judge(abi int) error {
	const next = "; start the container on a newer kernel, or set isolation.missing to degrade"
	if abi == 0 {
		return errors.New("the kernel has no Landlock, or the container's seccomp profile forbids it" + next)
	}
	for _, part := range parts {
		if abi < part.abi {
			return fmt.Errorf("the Landlock of this kernel (ABI %d) does not confine %s (ABI %d)%s", abi, part.what, part.abi, next)
		}
	}
	return nil
}

// temporary returns a directory for temporary files that only this user can use. Another user may have taken the usual name.
func temporary(profile string) (string, error) {
	dir := fmt.Sprintf("/tmp/hinit-%s-%d", profile, os.Getuid())
	err := os.Mkdir(dir, 0o700)
	var st unix.Stat_t
	if errors.Is(err, os.ErrExist) {
		err = unix.Lstat(dir, &st)
		if err == nil && (st.Uid != uint32(os.Getuid()) || st.Mode != unix.S_IFDIR|0o700) {
			return os.MkdirTemp("/tmp", "hinit-"+profile+"-")
		}
	}
	if err != nil {
		return "", fmt.Errorf("cannot make a directory for temporary files: %w", err)
	}
	return dir, nil
}

// restrict confines the process by Landlock, with all parts that the kernel has.
func restrict(p isolation.Plan, temporary string) error {
	hidden, err := hiddenPlaces(p.Hide)
	if err != nil {
		return err
	}
	rules := []landlock.Rule{
		writable(p.Home, temporary, "/dev/pts"), readable("/proc", "/sys"),
		landlock.RWFiles("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx").WithIoctlDev().IgnoreIfMissing(),
		landlock.BindTCP(0), // the kernel chooses a free port
	}
	dirs, files, err := hidden.image("/")
	if err != nil {
		return err
	}
	rules = append(rules, landlock.RODirs(dirs...).WithResolveUnix().IgnoreIfMissing(), landlock.ROFiles(files...).WithResolveUnix().IgnoreIfMissing())
	for _, list := range []struct {
		paths []string
		rule  func(...string) landlock.Rule
	}{{p.Share, writable}, {p.Read, readable}} {
		for _, path := range list.paths {
			path, err := pin(path, slices.Concat(p.Hide, p.Share))
			if err != nil {
				return err
			}
			if path != "" {
				rules = append(rules, list.rule(path))
			}
		}
	}
	for _, port := range p.Ports {
		rules = append(rules, landlock.BindTCP(uint16(port)))
	}
	// The library's own Restrict makes each of two system calls on all threads of the program. One thread is enough, because
	// execve(2) ends the others.
	ruleset, flags, err := confinement.BestEffort().NewRulesetFD(rules...)
	if err == nil && ruleset >= 0 {
		err = ll.LandlockRestrictSelf(ruleset, flags)
		_ = unix.Close(ruleset)
	}
	if err != nil {
		return fmt.Errorf("cannot confine it by Landlock: %w", err)
	}
	return nil
}

// pin returns a path for a shared file or directory, or "" if it is missing. Below a directory that profiles can write to, the path
// leads to an open descriptor of the present file. There pin refuses a link, because it could lead to another profile.
func pin(path string, places []string) (string, error) {
	for _, place := range places {
		if path == place || !beneath(path, place) {
			continue
		}
		real, err := filepath.EvalSymlinks(place)
		if err != nil {
			continue
		}
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
		fd, err := unix.Openat2(unix.AT_FDCWD, real+strings.TrimPrefix(path, place), &how) // stays open until the process becomes the command
		switch {
		case errors.Is(err, unix.ELOOP):
			return "", fmt.Errorf("cannot share %s: there is a link in it; share the place that the link leads to", path)
		case err != nil:
			return "", nil //nolint:nilerr // what is missing is not shared
		}
		return fmt.Sprintf("/proc/self/fd/%d", fd), nil
	}
	return path, nil
}

// isFile reports whether a path exists and is no directory. Landlock refuses the rights of directories for it.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

func writable(paths ...string) landlock.Rule {
	rule := landlock.RWDirs(paths...)
	switch {
	case isFile(paths[0]):
		rule = landlock.RWFiles(paths...)
	case isolation.LandlockABI() > 1: // older kernels have no right to move files between directories
		rule = rule.WithRefer()
	}
	return rule.WithIoctlDev().WithResolveUnix().IgnoreIfMissing()
}

func readable(paths ...string) landlock.Rule {
	rule := landlock.RODirs(paths...)
	if isFile(paths[0]) {
		rule = landlock.ROFiles(paths...)
	}
	return rule.WithResolveUnix().IgnoreIfMissing()
}

// beneath reports whether a path is dir or leads into it.
func beneath(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
