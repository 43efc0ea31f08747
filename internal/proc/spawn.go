package proc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
	"hinit/internal/isolation"
)

// Cred is the user and the groups of a new process.
type Cred = fsutil.Identity

// Spec describes a process to start.
type Spec struct {
	ID      uint64   // number of the run, never used before in this table; 0 stands for orphans
	Name    string   // name of the service, which Spawn writes into the environment variable TagVar (HINIT_RUN)
	Path    string   // program to execute; "" searches Argv[0] in the PATH of Env, unless it contains a slash
	Argv    []string // command and arguments; must not be empty
	Env     []string // whole environment, to which Spawn adds the variable TagVar
	Dir     string   // working directory; "" keeps the directory of hinit
	DirIsFD bool     `reexec:"Pinned"` // Dir is a path below /proc/self/fd that names a directory that hinit keeps open
	Cred    *Cred    // user and groups; nil keeps hinit's own
	// descriptors 0, 1, 2, ...; nil or missing: /dev/null for 0 to 2, closed for higher numbers
	Files          []*os.File `reexec:"-"`
	ForegroundTTY  bool       `reexec:"TTY"`      // Files[0] is a terminal: run in hinit's session, as the foreground process group of the terminal
	ControllingTTY bool       `reexec:"Console"`  // Files[0] is a terminal: start a session, with this terminal as its controlling terminal
	SameSession    bool       `reexec:"Attached"` // stay in the session and process group of hinit
	// the kernel kills the process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG)
	DiesWithStarter  bool                       `reexec:"Bound"`
	Limits           []Limit                    // resource limits, set before the command is executed
	Setup            Setup                      // other settings, such as priorities and environment files
	AdjustAttributes func(*syscall.SysProcAttr) `reexec:"-"` // changes other attributes, such as namespaces; may be nil
	// number that is added to hinit's own oom_score_adj: of two processes, the kernel kills the one with the higher value first
	OOMIncrease int `reexec:"OOM"`
}

// StartsTheSame reports whether two specs start the same command in the same way. It ignores fields that differ for each start,
// such as ID and Files.
func (s Spec) StartsTheSame(o Spec) bool {
	if (s.Cred == nil) != (o.Cred == nil) || s.Cred != nil && !s.Cred.Equal(*o.Cred) {
		return false
	}
	return s.Path == o.Path && s.Dir == o.Dir && slices.Equal(s.Argv, o.Argv) && slices.Equal(s.Env, o.Env) && slices.Equal(s.Limits, o.Limits) &&
		slices.Equal(s.setupWords(), o.setupWords()) && s.OOMIncrease == o.OOMIncrease
}

// TagVar is the environment variable with the tag of a process: the service, and the number of the run. It helps to find
// descendants.
const TagVar = "HINIT_RUN"

// SpawnError says why a process did not start.
type SpawnError struct {
	Object string // the directory (with DirFailed), the limit (with LimitFailed), or the command
	Err    error

	DirFailed, LimitFailed bool
}

// Error implements error.
func (e *SpawnError) Error() string {
	switch {
	case e.DirFailed:
		return fmt.Sprintf("cannot enter the working directory (cwd) %q: %v", e.Object, e.Err)
	case e.LimitFailed:
		return fmt.Sprintf("cannot set the limit %s: %v", e.Object, e.Err)
	}
	return fmt.Sprintf("cannot start %q: %v%s", e.Object, e.Err, e.advice())
}

// advice tells the user what to do if the kernel lacked a resource, and is "" for other errors.
func (e *SpawnError) advice() string {
	switch {
	case errors.Is(e.Err, unix.EAGAIN):
		return "; no more processes are allowed here: stop some, or raise the limit (docker: --pids-limit, --ulimit nproc; a pod: podPidsLimit of the kubelet)"
	case errors.Is(e.Err, unix.ENOMEM):
		return "; there is no memory left: stop something, or give the container more (docker: --memory; a pod: resources.limits.memory)"
	case errors.Is(e.Err, unix.EMFILE):
		return "; hinit may not open more files: start the container with a higher --ulimit nofile"
	case errors.Is(e.Err, unix.ENFILE):
		return "; the whole machine has too many files open: raise its sysctl fs.file-max"
	}
	return ""
}

// Unwrap returns the error of the kernel.
func (e *SpawnError) Unwrap() error { return e.Err }

// ShellCode returns the exit code with which a shell reports the error: 127 if the command was not found, otherwise 126.
func (e *SpawnError) ShellCode() int {
	if e.isOneOf(unix.ENOENT, unix.ENOTDIR) {
		return 127
	}
	return 126
}

// Permanent reports whether another attempt is pointless until an operator changes something. The command or directory may be
// missing, the command may not be executable, or a limit can't be set.
func (e *SpawnError) Permanent() bool {
	return e.LimitFailed || e.isOneOf(ErrNoCommand, unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ENOEXEC, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG)
}

// Temporary reports whether another attempt may soon succeed: the kernel lacked memory, PIDs or descriptors, or another
// process was writing the program file.
func (e *SpawnError) Temporary() bool {
	return e.isOneOf(unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ETXTBSY)
}

func (e *SpawnError) isOneOf(reasons ...error) bool {
	return slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(e.Err, reason) })
}

// ErrNoCommand means that Spec.Argv has no command.
var ErrNoCommand = errors.New("the command is empty")

// Spawn starts a process and returns its PID. It blocks until the child has executed a program. That takes less than a
// millisecond, unless a file system hangs. For a process of another user the first program is hinit itself, which changes the
// user and then executes the command, so that user can't delay Spawn. If the second step fails, the process writes why to its
// stderr and exits with code 126 or 127. The error of Spawn is a *SpawnError.
func (t *Table) Spawn(spec Spec) (int, error) {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return 0, &SpawnError{Object: spec.Name, Err: ErrNoCommand}
	}
	if err := checkSettings(spec); err != nil {
		return 0, err
	}
	path, err := t.findProgram(spec)
	if err != nil {
		return 0, err
	}
	tag := fmt.Sprintf("%s=%s:%s:%d", TagVar, spec.Name, t.tagNonce, spec.ID)
	env := spec.Env
	if !spec.SameSession {
		// drop a tag that the caller has inherited
		env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, TagVar+"=") })
		if t.tagNonce != "" { // the table of StartChild has no nonce, because its child belongs to no run
			env = slices.Insert(env, 0, tag) // an entry before the tag could have the same name
		}
	}
	argv := spec.Argv
	attr := syscall.ProcAttr{Dir: spec.Dir, Env: env, Files: t.descriptors(spec.Files), Sys: sysProcAttr(spec)}
	score := strconv.Itoa(min(t.ownOOMScore+spec.OOMIncrease, maxOOMScoreAdj))
	if spec.needsSetup() {
		argv = argvWithLimits(spec, path, score)
		if path != isolation.ProgramPath() { // hinit-isolate makes the settings itself, which saves an execution
			path = selfExe
		}
		if spec.entersDirLater() {
			attr.Dir = ""
		}
	}
	mark := t.marker.lowerLimit()
	pid, err := t.fork(path, argv, &attr)
	if err != nil {
		return 0, spawnError(spec, path, err)
	}
	t.owned[pid] = spec.ID
	user := cmp.Or(spec.Cred, &Cred{UID: uint32(os.Geteuid())}).UID
	r := &run{id: spec.ID, mark: mark, mainPID: pid, group: pid, session: !spec.ForegroundTTY, user: user, cgroup: spec.Setup.Cgroup, service: spec.Name}
	if r.cgroup != "" {
		r.oomKills, _ = oomKillsIn(r.cgroup)
	}
	if spec.OOMIncrease != 0 && !spec.needsSetup() {
		t.raiseOOMScore(pid, score)
		r.oomScore, r.raisedAt = score, time.Now()
		t.raised = append(t.raised, r)
	}
	t.runs[spec.ID] = r
	if mark != 0 {
		t.runIDByMark[mark] = spec.ID
	}
	return pid, nil
}

// spawnError turns an error of fork or execve into a SpawnError. Its object is the directory or the command.
func spawnError(spec Spec, path string, err error) *SpawnError {
	if spec.Dir != "" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)) && accessError(spec.Dir, unix.S_IFDIR, spec.Cred) != nil {
		return &SpawnError{Object: spec.dirName(), Err: err, DirFailed: true}
	}
	what := path
	if spec.Path == "" {
		what = spec.Argv[0]
	}
	if spec.Dir != "" && strings.Contains(what, "/") && !filepath.IsAbs(what) { // the command's path is relative to Dir
		what = filepath.Join(spec.dirName(), what)
	}
	return &SpawnError{Object: what, Err: err}
}

func (s Spec) dirName() string {
	if s.DirIsFD {
		if name, err := os.Readlink(s.Dir); err == nil {
			return name
		}
	}
	return s.Dir
}

func sysProcAttr(spec Spec) *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{}
	switch {
	case spec.SameSession:
	case spec.ForegroundTTY:
		// The child takes the terminal between fork and exec, when all signals are blocked. So SIGTTOU can't stop it.
		sys.Foreground, sys.Ctty = true, int(spec.Files[0].Fd())
	default:
		sys.Setsid, sys.Setctty = true, spec.ControllingTTY
	}
	if spec.AdjustAttributes != nil {
		spec.AdjustAttributes(sys)
	}
	if spec.DiesWithStarter {
		sys.Pdeathsig = unix.SIGKILL
	}
	if c := spec.Cred; c != nil && !spec.changesUser() {
		sys.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}
	}
	return sys
}

func (t *Table) descriptors(files []*os.File) []uintptr {
	fds := make([]uintptr, max(len(files), 3))
	for i := range fds {
		switch {
		case i < len(files) && files[i] != nil:
			fds[i] = files[i].Fd()
		case i < 3:
			fds[i] = t.devNull.Fd()
		default:
			fds[i] = ^uintptr(0) // this descriptor is closed in the child (syscall.ForkExec)
		}
	}
	return fds
}

// fork starts the child with an empty signal mask. Otherwise the child would inherit blocked signals from the forking thread.
func (t *Table) fork(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if t.signalsBlocked {
		var empty, old unix.Sigset_t
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &empty, &old); err == nil {
			defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
		}
	}
	if err := faultinject.BeforeCall(faultinject.CallFork, path); err != nil {
		return 0, err
	}
	t.forkers[unix.Gettid()] = true
	return syscall.ForkExec(path, argv, attr)
}

// LookPath finds an executable in the PATH of env, as execvp(3) does.
func LookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	found := error(unix.ENOENT)
	for _, dir := range filepath.SplitList(Getenv(env, "PATH")) {
		dir = cmp.Or(dir, ".")
		file := dir + "/" + name
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			if errors.Is(err, unix.EACCES) {
				found = err
			}
			continue
		}
		if st.Mode&0o111 == 0 {
			found = unix.EACCES
			continue
		}
		return file, nil
	}
	return "", found
}

// Limit is a resource limit for setrlimit(2).
type Limit struct {
	Resource   int
	Soft, Hard uint64 // the two limits; unix.RLIM_INFINITY means unlimited
}

// LimitsName is the argv[0] with which a new process executes hinit's own binary, to set its limits, change its user and then
// execute the command. Only the process itself can do that: prlimit(2) on a process of another user needs a capability that
// containers lack. Package internal/entry makes the steps that need root before the Go runtime starts, because the environment
// may come from the agent.
const LimitsName = "hinit-limits"

// selfExe is hinit's own binary. A new process executes it first, as LimitsName, if it needs settings before its command. Only
// tests change the path.
var selfExe = "/proc/self/exe"

func argvWithLimits(spec Spec, path, score string) []string {
	out := []string{LimitsName}
	if spec.OOMIncrease != 0 {
		out = append(out, WordOOM+score+":"+oomScoreFile)
	}
	out = append(out, spec.setupWords()...)
	for _, l := range spec.Limits {
		out = append(out, strconv.Itoa(l.Resource)+":"+strconv.FormatUint(l.Soft, 10)+":"+strconv.FormatUint(l.Hard, 10))
	}
	return append(append(out, "--", path), spec.Argv...)
}

// limitNames maps names of resource limits in hinit.yaml to resources of getrlimit(2).
var limitNames = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
	"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC,
	"rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

// LimitOf returns the resource of getrlimit(2) that has the given name in hinit.yaml.
func LimitOf(name string) (resource int, known bool) {
	resource, known = limitNames[name]
	return resource, known
}

// LimitName returns the name of a resource in hinit.yaml. For an unknown resource it returns the number.
func LimitName(resource int) string {
	for name, r := range limitNames {
		if r == resource {
			return name
		}
	}
	return strconv.Itoa(resource)
}

// LimitText formats a resource limit as in hinit.yaml.
func LimitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
