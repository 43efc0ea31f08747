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

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

// Cred is the identity of a new process.
type Cred struct {
	UID, GID uint32
	Groups   []uint32 // supplementary groups
}

// Spec describes a process to start.
type Spec struct {
	ID               uint64                     // number of the run; unique in the life of the table, 0 is reserved for orphans
	Name             string                     // name of the service, for the tag in the environment
	Path             string                     // program to execute; "" searches Argv[0] in the PATH of Env, unless it has a slash
	Argv             []string                   // the command with its arguments; must not be empty
	Env              []string                   // the whole environment; Spawn adds the tag (TagVar) to it
	Dir              string                     // working directory; "" keeps the directory of hinit
	Pinned           bool                       // Dir is a path below /proc/self/fd, to a directory that hinit has open
	Cred             *Cred                      // identity of the process; nil keeps the identity of hinit
	Files            []*os.File                 `reexec:"-"` // descriptors 0, 1, 2, ...; nil or missing: /dev/null for 0 to 2, closed for higher numbers
	TTY              bool                       // Files[0] is a terminal: run as its foreground process group, in the session of hinit
	Console          bool                       // Files[0] is a terminal: it becomes the controlling terminal of the command's own session
	SameSession      bool                       `reexec:"Attached"` // stay in the session and process group of hinit
	DiesWithStarter  bool                       `reexec:"Bound"`    // kill the process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG)
	Limits           []Limit                    // resource limits, set before the command is executed
	Setup            Setup                      // other settings, such as priorities and environment files
	AdjustAttributes func(*syscall.SysProcAttr) `reexec:"-"` // makes other changes, such as new namespaces; may be nil
	OOM              int                        // added to the oom_score_adj of hinit: the kernel kills a process with a higher value earlier
}

// Same reports whether two specs start the same command in the same way. It ignores the fields that are set anew for each
// start.
func (s Spec) Same(o Spec) bool {
	if (s.Cred == nil) != (o.Cred == nil) || s.Cred != nil && (s.Cred.UID != o.Cred.UID || s.Cred.GID != o.Cred.GID || !slices.Equal(s.Cred.Groups, o.Cred.Groups)) {
		return false
	}
	return s.Path == o.Path && s.Dir == o.Dir && slices.Equal(s.Argv, o.Argv) && slices.Equal(s.Env, o.Env) && slices.Equal(s.Limits, o.Limits) &&
		s.Setup.equal(&o.Setup) && s.OOM == o.OOM
}

// TagVar is the environment variable that holds the tag of a process: the service and the number of its run.
const TagVar = "HINIT_RUN"

// SpawnError is the reason why a process did not start.
type SpawnError struct {
	Object string // the directory if Dir is true, the limit if Limit is true, otherwise the command
	Err    error

	Dir, Limit bool
}

// Error implements error.
func (e *SpawnError) Error() string {
	switch {
	case e.Dir:
		return fmt.Sprintf("cannot enter the working directory (cwd) %q: %v", e.Object, e.Err)
	case e.Limit:
		return fmt.Sprintf("cannot set the limit %s: %v", e.Object, e.Err)
	}
	return fmt.Sprintf("cannot start %q: %v%s", e.Object, e.Err, e.nextStep())
}

// nextStep returns advice to the user if the kernel lacked a resource, and otherwise "".
func (e *SpawnError) nextStep() string {
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

// Unwrap returns the underlying error.
func (e *SpawnError) Unwrap() error { return e.Err }

// ShellCode returns the exit code with which a shell reports the error: 127 if the command was not found, otherwise 126.
func (e *SpawnError) ShellCode() int {
	if e.isOneOf(unix.ENOENT, unix.ENOTDIR) {
		return 127
	}
	return 126
}

// Permanent reports whether another attempt is pointless unless something changes. The result is true if a command or
// directory is missing, a command is not executable, or a limit can't be set.
func (e *SpawnError) Permanent() bool {
	return e.Limit || e.isOneOf(ErrNoCommand, unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ENOEXEC, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG)
}

// Temporary reports whether another attempt may succeed soon. The result is true if the kernel lacked memory, process numbers
// or descriptors, or if a process was writing the program file.
func (e *SpawnError) Temporary() bool {
	return e.isOneOf(unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ETXTBSY)
}

func (e *SpawnError) isOneOf(reasons ...error) bool {
	return slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(e.Err, reason) })
}

// ErrNoCommand means that Spec.Argv has no command.
var ErrNoCommand = errors.New("the command is empty")

// Spawn starts a process and returns its PID. It blocks until the child has executed a program. That takes well under a
// millisecond, unless the file system of the command or the directory hangs. The first program of another user's process is hinit
// itself, which changes its user and then executes the command. So that user can't make Spawn wait. If this second step fails,
// the process ends with exit code 126 or 127, and its stderr says why. The error of Spawn is a *SpawnError.
func (t *Table) Spawn(spec Spec) (int, error) {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return 0, &SpawnError{Object: spec.Name, Err: ErrNoCommand}
	}
	if spec.needsSetup() {
		if err := checkSettings(spec); err != nil {
			return 0, err
		}
	}
	path, err := t.findProgram(spec)
	if err != nil {
		return 0, err
	}
	tag := fmt.Sprintf("%s=%s:%s:%d", TagVar, spec.Name, t.nonce, spec.ID)
	env := spec.Env
	if !spec.SameSession {
		env = make([]string, 0, len(spec.Env)+1)
		if t.nonce != "" { // the table of StartChild has no nonce, because its child belongs to no run
			env = append(env, tag) // the tag is first, so that no other entry of that name can hide it
		}
		for _, kv := range spec.Env {
			if !strings.HasPrefix(kv, TagVar+"=") { // drop tags that the caller has inherited
				env = append(env, kv)
			}
		}
	}
	argv := spec.Argv
	attr := syscall.ProcAttr{Dir: spec.Dir, Env: env, Files: t.descriptors(spec.Files), Sys: sysProcAttr(spec)}
	if spec.needsSetup() {
		argv = argvWithLimits(spec, path)
		path = selfExe
		if spec.entersDirLater() {
			attr.Dir = ""
		}
	}
	mark := t.marks.lowerLimit()
	pid, err := t.fork(path, argv, &attr)
	if err != nil {
		return 0, spawnError(spec, path, err)
	}
	if spec.OOM != 0 {
		t.procfs.raiseOOMScore(pid, t.oom+spec.OOM)
	}
	t.owned[pid] = spec.ID
	user := uint32(os.Geteuid())
	if spec.Cred != nil {
		user = spec.Cred.UID
	}
	r := &run{id: spec.ID, mark: mark, mainPID: pid, group: pid, session: !spec.TTY, user: &user, cgroup: spec.Setup.Cgroup, service: spec.Name}
	if t.runs[spec.ID] = r; r.cgroup != "" {
		r.oomKills, _ = oomKillsIn(r.cgroup)
	}
	if mark != 0 {
		t.byMark[mark] = spec.ID
	}
	return pid, nil
}

// spawnError wraps err, the error of a fork or exec, and says whether the command or the directory has caused it.
func spawnError(spec Spec, path string, err error) *SpawnError {
	if spec.Dir != "" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)) && accessError(spec.Dir, unix.S_IFDIR, spec.Cred) != nil {
		return &SpawnError{Object: spec.dirName(), Err: err, Dir: true}
	}
	what := path
	if spec.Path == "" {
		what = spec.Argv[0]
	}
	if spec.Dir != "" && strings.Contains(what, "/") && !filepath.IsAbs(what) { // the path is relative to Dir
		what = filepath.Join(spec.dirName(), what)
	}
	return &SpawnError{Object: what, Err: err}
}

// dirName returns the path of the directory for messages, even if Dir refers to a descriptor.
func (s Spec) dirName() string {
	if s.Pinned {
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
	case spec.TTY:
		// The child changes the foreground group between fork and exec, where all signals are blocked. So SIGTTOU can't
		// stop the child.
		sys.Foreground, sys.Ctty = true, int(spec.Files[0].Fd())
	default:
		sys.Setsid, sys.Setctty = true, spec.Console
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
			fds[i] = t.null.Fd()
		default:
			fds[i] = ^uintptr(0) // closed (syscall.ForkExec)
		}
	}
	return fds
}

// fork starts the child with an empty signal mask. Otherwise the child would inherit the mask of the thread that forks.
func (t *Table) fork(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if t.masked {
		var empty, old unix.Sigset_t
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &empty, &old); err == nil {
			defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
		}
	}
	if err := faultinject.Before(faultinject.Fork, path); err != nil {
		return 0, err
	}
	t.forkers[unix.Gettid()] = true
	return syscall.ForkExec(path, argv, attr)
}

// LookPath finds an executable in the PATH of env, like execvp(3).
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
	Soft, Hard uint64 // the two limits; unix.RLIM_INFINITY is unlimited
}

// LimitsName is the argv[0] with which hinit executes its own binary in a new process, to set limits, change the user and then
// execute the command. The process must do this itself: setrlimit(2) affects only the caller, and prlimit(2) on a process of
// another user needs a capability that containers lack. internal/entry carries out the steps that need root before the Go
// runtime starts, because the environment may come from the agent.
const LimitsName = "hinit-limits"

const selfExe = "/proc/self/exe"

func argvWithLimits(spec Spec, path string) []string {
	out := append([]string{LimitsName}, spec.setupWords()...)
	for _, l := range spec.Limits {
		out = append(out, strconv.Itoa(l.Resource)+":"+strconv.FormatUint(l.Soft, 10)+":"+strconv.FormatUint(l.Hard, 10))
	}
	return append(append(out, "--", path), spec.Argv...)
}

// limitNames maps the names of resource limits in hinit.yaml to resources of getrlimit(2).
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

// LimitName returns the name of a resource in hinit.yaml, or its number.
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
