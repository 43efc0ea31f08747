// Package shim drops root and becomes the agent's command line.
//
// `docker exec CONTAINER hermes …` runs as root unless the user types --user, and the gateway can't read files that an agent
// has written as root into the data volume. So the shim comes first in PATH. It becomes the agent's user and replaces itself by
// the agent's program, with the same process, arguments, terminal and exit code.
//
// It is quick: it runs before each command of the agent, so every import costs time, even fmt. It never runs the agent as root
// by accident: if it can't drop root, it fails. It starts no goroutine.
//
// One thing is lost: the Go runtime handles every signal, so a signal that the caller ignores has its default effect in the
// agent's program. SIGHUP and SIGINT are exceptions, which is enough for nohup.
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
	"hinit/shim/lifecycle"
)

const (
	exitRefused  = 126
	exitNotFound = 127

	// asRootEnv is the variable that makes the shim run the agent as root. Its value must be 1, true or yes, in upper or lower
	// case (contract). With any other value, such as a typo, the shim drops root.
	asRootEnv = "HERMES_DOCKER_EXEC_AS_ROOT"
	// homeEnv is the variable with another HOME for the agent's processes, as an absolute path.
	homeEnv = "HERMES_REAL_HOME"
)

// options are the paths and users of one image. Tests use other values.
type options struct {
	target string // the agent's program
	user   string // user that the target runs as
	home   string // HOME of this user
	config string // file that may replace target and user
	root   string // prefix of the paths of the system's files, such as /etc/passwd; "" except in tests

	hinitPath string // path of hinit, which carries out gateway commands; "" if the agent carries them out
	s6BaseDir string // directory that exists only if PID 1 answers the commands of s6
}

// Main becomes the agent's program. It returns only after a failure, which it has reported on stderr, with the exit code for main.
// argv and env are os.Args and os.Environ().
//
// It follows section 11 of the contract:
//
//   - If the target can't be found or isn't executable, the code is 127.
//   - A caller other than root runs the target with an unchanged environment, and so does root with HERMES_DOCKER_EXEC_AS_ROOT=1
//     (or true or yes).
//   - If the command is for an isolated profile, root becomes "hinit shell" of that profile's gateway. It has the gateway's user,
//     isolation, directory and variables, and of the caller's variables only TERM, LANG and LC_*.
//   - Otherwise root becomes the agent's user. PID 1 has written the uid, gid and groups into a file; without it, /etc and the
//     container's variables decide. HOME is HERMES_REAL_HOME or /opt/data, and PATH is the agent's ([agentuser.AgentPath]). Working
//     directory, stdin, stdout, stderr, terminal and limits stay as they are. Descriptors from 3 up are closed, and /dev/tty is
//     given up if a root shell could read it ([identity.LeaveTerminal]). If the shim can't drop root, the code is 126.
//
// The file /etc/hinit/shim may name another program in its first line (an absolute path) and another user in its second; HOME is
// then that user's home. The file counts only if root alone can change it and the directories above it. No environment variable
// can name them, because a caller's environment must not make root run another program.
//
// A process of docker exec gets the oom_score_adj of a gateway (proc_pid_oom_score_adj(5)), so that the kernel kills it before the
// CMD when memory runs out.
//
// In the agent's own image, gateway commands ([lifecycle.Parse]) go to hinit, as the user that the agent would run as.
// HINIT_SHIM_NATIVE=0 turns that off.
func Main(argv, env []string) int {
	return run(argv, env, options{
		target: "/opt/hermes/.venv/bin/hermes",
		user:   "hermes",
		home:   "/opt/data",
		config: "/etc/hinit/shim",

		hinitPath: "/usr/local/bin/hinit",
		s6BaseDir: "/run/s6/basedir",
	})
}

// run becomes the agent's user if it is root, and replaces this process with the agent's program. If hinit handles the command, it
// runs hinit instead. It returns only on failure, with an exit code.
func run(argv, env []string, o options) int {
	if err := o.readConfig(); err != nil {
		writeError("ignoring " + o.config + ": " + err.Error())
	}
	target, ok := executable(o.target)
	if !ok {
		writeError(o.target + " not found or not executable")
		return exitNotFound
	}
	if isSelf(target) {
		writeError(o.target + " is this shim itself, and would run for ever")
		return exitRefused
	}
	raiseOOMScore("/proc/1/oom_score_adj", "/proc/self/oom_score_adj")
	optOut := lookupEnv(env, asRootEnv)
	if os.Geteuid() == 0 && optOut != "1" && !strings.EqualFold(optOut, "true") && !strings.EqualFold(optOut, "yes") {
		profile, err := o.isolatedProfile(argv, env)
		if profile != "" && err == nil {
			err = o.execIsolated(profile, argv, env)
		}
		if err != nil {
			writeError("refusing to run " + o.target + " without the isolation of its profile: " + err.Error())
			return exitRefused
		}
		// On Linux, credentials belong to a thread. Only this thread changes, because execve(2) ends all others, and the new
		// program has the credentials of the calling thread. The goroutine stays locked to its thread.
		runtime.LockOSThread()
		home, err := o.becomeAgent(env)
		if err != nil {
			writeError("refusing to run " + o.target + " as root: " + err.Error())
			writeError("use docker exec --user " + o.user + ", or set " + asRootEnv + "=1 to run it as root on purpose")
			return exitRefused
		}
		if path := lookupEnv(env, "PATH"); path != "" {
			env = withEnv(env, "PATH", agentuser.AgentPath(path, home))
		}
		if real := lookupEnv(env, homeEnv); strings.HasPrefix(real, "/") {
			home = real
		}
		env = withEnv(env, "HOME", home)
	}
	o.execHinit(argv, env)
	return replaceProcess(o.target, argv, env)
}

// raiseOOMScore gives this process the oom_score_adj of a gateway, from the supervisor's table oomAdj. It does so if this
// process has the same value as PID 1, as processes of docker exec do. Otherwise the kernel would kill gateways and the CMD
// before this process. The files contain the values of PID 1 and of this process. A process needs no privileges to raise its
// own value.
func raiseOOMScore(initFile, ownFile string) {
	const gateway, limit = 800, 1000
	one, _ := account.ReadFile(initFile)
	text, _ := account.ReadFile(ownFile)
	if score, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && string(text) == string(one) {
		// Package os would set up epoll(7), so use plain system calls. After an error, the kernel kills this process later than
		// others.
		fd, _ := unix.Open(ownFile, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		_, _ = unix.Write(fd, strconv.AppendInt(nil, int64(min(score+gateway, limit)), 10))
	}
}

// becomeAgent makes the calling thread the agent's user for good, and returns the agent's home.
func (o *options) becomeAgent(env []string) (home string, err error) {
	u, err := account.Lookup(o.root, o.user)
	if err != nil {
		return "", err
	}
	if text, err := readTrusted(o.root + account.RuntimeDir + "/" + account.AgentIDsFile); err == nil {
		usePublishedIDs(&u, text, o.user)
	} else { // the file may be missing in a read-only container, or other users may have written it
		u.ApplyRequestedIDs(func(name string) string { return lookupEnv(env, name) })
	}
	if err := agentuser.CloseOnExec(); err != nil {
		return "", errors.New("cannot find the open descriptors: " + err.Error())
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

// usePublishedIDs sets the ids of u to the ids in text, the content of [account.AgentIDsFile]. A text about another user than
// userName does not change u.
func usePublishedIDs(u *account.User, text, userName string) {
	f := strings.Split(text, "\n")
	if len(f) != 5 || f[0] != userName {
		return
	}
	uid, uidOK := account.ParseID(f[1])
	gid, gidOK := account.ParseID(f[2])
	var groups []uint32
	for word := range strings.FieldsSeq(f[3]) {
		if id, ok := account.ParseID(word); ok {
			groups = append(groups, id)
		}
	}
	if uidOK && gidOK {
		u.UID, u.GID, u.Groups = uid, gid, groups
	}
}

// replaceProcess replaces this process by the target. It returns only after a failure, with an exit code. Go has raised the
// soft limit of open files; unix.Exec restores the caller's limit, and execve(2) alone would not.
func replaceProcess(target string, argv, env []string) int {
	err := unix.Exec(target, append([]string{target}, argv[min(1, len(argv)):]...), env)
	writeError("cannot execute " + target + ": " + err.Error())
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) { // the interpreter of a script is missing
		return exitNotFound
	}
	return exitRefused
}

// executable returns the status of the file at path, and whether it is a regular file that the caller may execute.
func executable(path string) (st unix.Stat_t, ok bool) {
	return st, unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && unix.Access(path, unix.X_OK) == nil
}

// isSelf reports whether a file is the running program, under any name. Without /proc it returns false.
func isSelf(st unix.Stat_t) bool {
	var self unix.Stat_t
	return unix.Stat("/proc/self/exe", &self) == nil && self.Dev == st.Dev && self.Ino == st.Ino
}

// writeError writes a line to stderr, and ignores errors.
func writeError(line string) {
	_, _ = os.Stderr.WriteString("hermes-shim: " + line + "\n")
}

const nativeEnv = "HINIT_SHIM_NATIVE"

// execHinit replaces the process by hinit, if hinit handles the command. Otherwise, and after a failure, it returns, and the
// agent handles the command. While PID 1 doesn't answer the commands of s6, hinit handles all commands that start or stop
// gateways. The agent would do nothing and report success, or wait for ever.
func (o *options) execHinit(argv, env []string) {
	if len(argv) < 3 || o.hinitPath == "" || lookupEnv(env, nativeEnv) == "0" {
		return
	}
	_, ok := lifecycle.Parse(argv[1:])
	ok = ok || lifecycle.ListsProfiles(argv[1:]) && o.isolatesAny()
	if !ok && (isDirectory(o.s6BaseDir) || !lifecycle.ChangesGateways(argv[1:])) {
		return
	}
	if _, ok := executable(o.hinitPath); !ok {
		return
	}
	// if this fails, the agent handles the command
	_ = unix.Exec(o.hinitPath, append([]string{agentuser.NativeArgv0, o.target}, argv[1:]...), env)
}

// isolatesAny reports whether PID 1 has published a list with isolated profiles.
func (o *options) isolatesAny() bool {
	var st unix.Stat_t
	return unix.Stat(o.root+account.RuntimeDir+"/"+account.IsolatedProfilesFile, &st) == nil && st.Size > 0
}

func isDirectory(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}
