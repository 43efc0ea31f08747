// Package shim drops root and becomes the agent's command line.
//
// `docker exec <container> hermes …` runs as root unless somebody thinks of --user, and every file that a root-run agent
// writes into the data volume is one the gateway can't read afterwards. The shim sits first on PATH, becomes the agent's
// user, and replaces itself with the real program: same process, same arguments, same terminal, same exit code.
//
// It promises to be quick: it runs before each command, so every import costs, even fmt. It never runs the agent as root by
// accident: if it can't drop root, it refuses. It starts no goroutine.
//
// One thing can't be passed on. The Go runtime handles every signal from its start. So a signal that the caller ignores has its
// default action in the real program. SIGHUP and SIGINT are the exception, which is enough for nohup.
package shim

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/shim/agentuser"
	"hinit/shim/identity"
)

const (
	// exitRefused says, as a shell would, that the program is there and could not be run.
	exitRefused = 126
	// exitNotFound says that there is no such program.
	exitNotFound = 127

	// optOutEnv set to a true value keeps root; see truthy.
	optOutEnv = "HERMES_DOCKER_EXEC_AS_ROOT"
	// homeEnv moves HOME of the agent's processes, when it is an absolute path.
	homeEnv = "HERMES_REAL_HOME"
)

// options is everything the shim takes from its image, so that tests can be another image.
type options struct {
	target string // the real program
	user   string // whom it runs as
	home   string // its HOME
	config string // a file that replaces target and user
	root   string // prefix of /etc/passwd and /etc/group

	native  string // hinit, which carries out the lifecycle commands of gateways by itself; "" for none
	baseDir string // the directory by which an init tells that it answers for s6
}

// hermesImage is the image this program is compiled for.
func hermesImage() options {
	return options{
		target: "/opt/hermes/.venv/bin/hermes",
		user:   "hermes",
		home:   "/opt/data",
		config: "/etc/hinit/shim",

		native:  "/usr/local/bin/hinit",
		baseDir: "/run/s6/basedir",
	}
}

// Main becomes the real program and so returns only when that failed: the exit code for main, after the reason has been
// written to stderr. argv and env are os.Args and os.Environ() of the process.
//
// The order is the contract's, section 11. A target that can't be executed is 127. A caller other than root runs the target with
// the environment untouched. So does root with HERMES_DOCKER_EXEC_AS_ROOT set to 1, true or yes in any case. Otherwise root is
// dropped to the agent's user. The uid, gid and groups are the ones that PID 1 has settled, else /etc and the container's
// variables decide. HOME is set to HERMES_REAL_HOME or /opt/data, and PATH is the agent's ([agentuser.Path]). Working directory,
// stdin, stdout, stderr, terminal and limits stay as they are. Descriptors from 3 up don't go from root to the agent. Neither
// does /dev/tty if a shell of root's has it ([identity.LeaveTerminal]). If root can't be dropped, the code is 126.
//
// The file /etc/hinit/shim may name another program in its first line (an absolute path) and another user in its second. HOME is
// then the home of that user. The file counts only if root alone can change it and the directories above it. No environment
// variable does that: a caller's environment must not make root run another program.
//
// A process that docker exec has started gets the oom_score_adj of a gateway (proc_pid_oom_score_adj(5)), so that the kernel
// takes it before the CMD.
//
// The lifecycle commands of gateways ([lifecycle.Parse]) go to hinit, as the user that the agent would have run as, when
// the image is the agent's own. HINIT_SHIM_NATIVE=0 turns that off.
func Main(argv, env []string) int {
	return run(argv, env, hermesImage())
}

func run(argv, env []string, o options) int {
	if err := o.configure(); err != nil {
		say("ignoring " + o.config + ": " + err.Error())
	}
	target, ok := executable(o.target)
	if !ok {
		say(o.target + " not found or not executable")
		return exitNotFound
	}
	if isSelf(target) {
		say(o.target + " is this shim itself, and would run for ever")
		return exitRefused
	}
	raiseOOMScore("/proc/1/oom_score_adj", "/proc/self/oom_score_adj")
	if os.Geteuid() == 0 && !truthy(lookupEnv(env, optOutEnv)) {
		isolated, err := o.isolated(argv)
		if isolated {
			err = o.becomeTenant(argv, env)
		}
		if err != nil {
			say("refusing to run " + o.target + " without the isolation of its profile: " + err.Error())
			return exitRefused
		}
		// Credentials belong to a thread in Linux, and Go's own Setuid changes all of them one by one. Here only this thread
		// changes: execve(2) ends all other threads, and the new program takes the credentials of the thread that called it.
		// The lock keeps this goroutine on that thread until then. It is never undone, as there is no way back.
		runtime.LockOSThread()
		home, err := o.drop(env)
		if err != nil {
			say("refusing to run " + o.target + " as root: " + err.Error())
			say("use docker exec --user " + o.user + ", or set " + optOutEnv + "=1 to run it as root on purpose")
			return exitRefused
		}
		if path := lookupEnv(env, "PATH"); path != "" {
			env = withEnv(env, "PATH", agentuser.Path(path, home))
		}
		if real := lookupEnv(env, homeEnv); strings.HasPrefix(real, "/") {
			home = real
		}
		env = withEnv(env, "HOME", home)
	}
	o.goNative(argv, env)
	return replaceProcess(o.target, argv, env)
}

// raiseOOMScore gives a process with the oom_score_adj of PID 1 the value of a gateway (supervisor's table of kinds). docker exec starts
// such processes, and the kernel would end the gateways and the CMD before them. To raise takes no privilege.
func raiseOOMScore(of1, own string) {
	const gateway, most = 800, 1000
	one, _ := os.ReadFile(of1)
	text, _ := os.ReadFile(own)
	if score, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && string(text) == string(one) {
		_ = os.WriteFile(own, strconv.AppendInt(nil, int64(min(score+gateway, most)), 10), 0)
	}
}

// drop makes the calling thread the agent's for good and returns the agent's home.
func (o *options) drop(env []string) (home string, err error) {
	u, err := account.Lookup(o.root, o.user)
	if err != nil {
		return "", err
	}
	if text, err := readTrusted(o.root + account.RuntimeDir + "/" + account.Published); err == nil {
		u.Publish(text, o.user)
	} else { // with --read-only PID 1 has no place for it
		u.Ask(func(name string) string { return lookupEnv(env, name) })
	}
	// Before the drop: afterwards /proc/self belongs to root and is closed to us.
	if err := closeOnExec(); err != nil {
		return "", err
	}
	if u.UID == 0 {
		return "", errors.New("user " + strconv.Quote(u.Name) + " is root itself")
	}
	if err := identity.LeaveTerminal(); err != nil {
		return "", err
	}
	if err := identity.Become(u); err != nil {
		return "", err
	}
	if o.home != "" {
		return o.home, nil
	}
	if !strings.HasPrefix(u.Home, "/") {
		return "/", nil
	}
	return u.Home, nil
}

// replaceProcess returns only on failure. unix.Exec and not a bare execve(2): Go raised the soft limit of open files at its
// start, and unix.Exec puts back the one the caller had.
func replaceProcess(target string, argv, env []string) int {
	args := []string{target}
	if len(argv) > 1 {
		args = append(args, argv[1:]...)
	}
	err := unix.Exec(target, args, env)
	say("cannot execute " + target + ": " + err.Error())
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) { // a script whose interpreter is missing
		return exitNotFound
	}
	return exitRefused
}

// executable reports whether path is a file that the caller may execute, and describes it.
func executable(path string) (st unix.Stat_t, ok bool) {
	return st, unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && unix.Access(path, unix.X_OK) == nil
}

// isSelf reports whether a file is the running program, by whatever name. It is false where /proc isn't mounted.
func isSelf(st unix.Stat_t) bool {
	var self unix.Stat_t
	return unix.Stat("/proc/self/exe", &self) == nil && self.Dev == st.Dev && self.Ino == st.Ino
}

// say writes one line to stderr. A failure can't be reported.
func say(line string) {
	_, _ = os.Stderr.WriteString("hermes-shim: " + line + "\n")
}
