package proc

import (
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

	"hinit/internal/fault"
)

// Cred is the identity a process is started with.
type Cred struct {
	UID, GID uint32
	Groups   []uint32 // supplementary groups
}

// Spec describes a process to start.
type Spec struct {
	ID       uint64     // run; unique for the life of the table, 0 is reserved for orphans
	Name     string     // service, for the tag in the environment
	Path     string     // program; "" looks Argv[0] up in the PATH of Env unless it holds a slash
	Argv     []string   // never empty
	Env      []string   // whole environment; the tag is added to it
	Dir      string     // working directory, "" keeps hinit's
	Pinned   bool       // Dir is a descriptor of hinit's own, as a path below /proc/self/fd
	Cred     *Cred      // nil keeps hinit's identity
	Files    []*os.File `reexec:"-"` // descriptors 0, 1, 2, ...; what is nil or missing is /dev/null below 3, and closed from there on
	TTY      bool       // Files[0] is a terminal: run as its foreground process group, in hinit's session
	Console  bool       // Files[0] is a terminal: it becomes the terminal of the command's own session
	Attached bool       // stay in hinit's own session and process group
	Isolated bool       // be PID 1 of a PID namespace of its own
	Bound    bool       // is killed when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG)
	Limits   []Limit    // resource limits, in force before the first instruction of the command
	Setup    Setup      // what else is, priorities and files of variables
	OOM      int        // how much more the kernel's out-of-memory killer likes it than this process (oom_score_adj); 0 is as much
}

// Same reports whether two specs start the same command in the same way. Fields that are filled in at each start do not count.
func (s Spec) Same(o Spec) bool {
	if (s.Cred == nil) != (o.Cred == nil) {
		return false
	}
	if s.Cred != nil && (s.Cred.UID != o.Cred.UID || s.Cred.GID != o.Cred.GID || !slices.Equal(s.Cred.Groups, o.Cred.Groups)) {
		return false
	}
	return s.Path == o.Path && s.Dir == o.Dir && slices.Equal(s.Argv, o.Argv) && slices.Equal(s.Env, o.Env) && slices.Equal(s.Limits, o.Limits) &&
		s.Setup.same(&o.Setup) && s.OOM == o.OOM
}

// TagVar is the environment variable that names the run a process belongs to.
const TagVar = "HINIT_RUN"

// SpawnError says why a process could not be started.
type SpawnError struct {
	What string // the command at fault; the directory, if Dir; or the limit, if Limit
	Err  error

	Dir, Limit bool
}

// Error implements error.
func (e *SpawnError) Error() string {
	switch {
	case e.Dir:
		return fmt.Sprintf("cannot enter the working directory (cwd) %q: %v", e.What, e.Err)
	case e.Limit:
		return fmt.Sprintf("cannot set the limit %s: %v", e.What, e.Err)
	}
	return fmt.Sprintf("cannot start %q: %v%s", e.What, e.Err, e.nextStep())
}

// nextStep says what helps where the kernel is short of something.
func (e *SpawnError) nextStep() string {
	switch {
	case errors.Is(e.Err, unix.EAGAIN):
		return "; no more processes are allowed here: stop some, or start the container with a higher --pids-limit or --ulimit nproc"
	case errors.Is(e.Err, unix.ENOMEM):
		return "; there is no memory left: stop something, or start the container with a higher --memory"
	case errors.Is(e.Err, unix.EMFILE):
		return "; hinit may not open more files: start the container with a higher --ulimit nofile"
	case errors.Is(e.Err, unix.ENFILE):
		return "; the whole machine has too many files open: raise its sysctl fs.file-max"
	}
	return ""
}

// Unwrap returns the reason.
func (e *SpawnError) Unwrap() error { return e.Err }

// ShellCode returns the exit code a shell would give: 127 when the command was not found, else 126.
func (e *SpawnError) ShellCode() int {
	if errors.Is(e.Err, unix.ENOENT) || errors.Is(e.Err, unix.ENOTDIR) {
		return 127
	}
	return 126
}

// Permanent reports whether trying again is pointless until somebody changes something: command or directory missing, not
// executable, a limit that can't be set.
func (e *SpawnError) Permanent() bool {
	for _, reason := range []error{errNoCommand, unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ENOEXEC, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG} {
		if errors.Is(e.Err, reason) {
			return true
		}
	}
	return e.Limit
}

// Passing reports whether trying again later may succeed: the kernel was short of memory, process numbers or descriptors, or the
// program is just being written.
func (e *SpawnError) Passing() bool {
	for _, errno := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ETXTBSY} {
		if errors.Is(e.Err, errno) {
			return true
		}
	}
	return false
}

var errNoCommand = errors.New("the command is empty")

// Spawn starts a process and returns its process id. It blocks until the kernel has replaced the child's image: well under a
// millisecond, unless the file system that holds the command or the directory hangs. The image of another user's process is this
// program, which then becomes that user and the command: only this user can make Spawn wait. A failure there ends the process
// with 126 or 127, and its stderr says why. The error is a *SpawnError.
func (t *Table) Spawn(spec Spec) (int, error) {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return 0, &SpawnError{What: spec.Name, Err: errNoCommand}
	}
	if spec.limited() {
		if err := checkLimited(spec); err != nil {
			return 0, err
		}
	}
	path, err := t.find(spec)
	if err != nil {
		return 0, err
	}
	tag := fmt.Sprintf("%s=%s:%s:%d", TagVar, spec.Name, t.nonce, spec.ID)
	env := spec.Env
	if !spec.Attached {
		env = make([]string, 0, len(spec.Env)+1)
		if t.nonce != "" { // a child of a command has no run to be told by
			env = append(env, tag) // first: what an adversary puts behind it hides nothing
		}
		for _, kv := range spec.Env {
			if !strings.HasPrefix(kv, TagVar+"=") { // whoever has put it there: programs take the first of two
				env = append(env, kv)
			}
		}
	}
	argv := spec.Argv
	attr := syscall.ProcAttr{Dir: spec.Dir, Env: env, Files: t.files(spec.Files), Sys: sysProcAttr(spec)}
	if spec.limited() {
		argv = limitArgv(spec, path)
		path = selfExe
		if spec.laterDir() {
			attr.Dir = ""
		}
	}
	mark := t.marks.take()
	pid, err := t.fork(path, argv, &attr)
	if err != nil {
		return 0, spawnError(spec, path, err)
	}
	if spec.OOM != 0 {
		t.oom.raise(t.proc, pid, spec.OOM)
	}
	t.owned[pid] = spec.ID
	user := uint32(os.Geteuid())
	if spec.Cred != nil {
		user = spec.Cred.UID
	}
	t.runs[spec.ID] = &run{id: spec.ID, mark: mark, main: pid, group: pid, session: !spec.TTY, user: &user, cgroup: spec.Setup.Cgroup}
	if mark != 0 {
		t.byMark[mark] = spec.ID
	}
	return pid, nil
}

// spawnError names what is at fault when a command could not be executed: the command or its directory.
func spawnError(spec Spec, path string, err error) *SpawnError {
	if spec.Dir != "" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)) && unfit(spec.Dir, unix.S_IFDIR, spec.Cred) != nil {
		return &SpawnError{What: spec.dirName(), Err: err, Dir: true}
	}
	what := path
	if spec.Path == "" {
		what = spec.Argv[0]
	}
	if spec.Dir != "" && strings.Contains(what, "/") && !filepath.IsAbs(what) { // it was looked for in there
		what = filepath.Join(spec.dirName(), what)
	}
	return &SpawnError{What: what, Err: err}
}

// dirName is what people call the directory, also one that is given as an open descriptor.
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
	case spec.Attached:
	case spec.TTY:
		// In the child, between fork and exec: with every signal blocked there, so SIGTTOU can't stop it.
		sys.Foreground, sys.Ctty = true, int(spec.Files[0].Fd())
	default:
		sys.Setsid, sys.Setctty = true, spec.Console
	}
	if spec.Isolated {
		namespace(sys)
	}
	if spec.Bound {
		sys.Pdeathsig = unix.SIGKILL
	}
	if c := spec.Cred; c != nil && !spec.becomes() {
		sys.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}
	}
	return sys
}

func (t *Table) files(files []*os.File) []uintptr {
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

// fork starts the child with an empty signal mask; it would inherit the mask of the thread that forks.
func (t *Table) fork(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	if t.masked {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var empty, old unix.Sigset_t
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &empty, &old); err == nil {
			defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
		}
	}
	if err := fault.Before(fault.Fork, path); err != nil {
		return 0, err
	}
	return syscall.ForkExec(path, argv, attr)
}

// LookPath finds an executable as execvp(3) does, in the PATH of env.
func LookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	found := error(unix.ENOENT)
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
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

// Limit is a resource limit as setrlimit(2) takes it.
type Limit struct {
	Resource   int
	Soft, Hard uint64 // unix.RLIM_INFINITY is unlimited
}

// LimitsName is the argv[0] under which hinit's binary applies limits to itself, changes its user and then becomes the command.
// setrlimit works on the caller only, and prlimit on a process of another user needs a capability that containers lack.
// internal/entry does the steps that take root's rights, before the Go runtime begins: the environment may be the agent's.
const LimitsName = "hinit-limits"

const selfExe = "/proc/self/exe"

func limitArgv(spec Spec, path string) []string {
	out := append([]string{LimitsName}, spec.words()...)
	for _, l := range spec.Limits {
		out = append(out, strconv.Itoa(l.Resource)+":"+strconv.FormatUint(l.Soft, 10)+":"+strconv.FormatUint(l.Hard, 10))
	}
	return append(append(out, "--", path), spec.Argv...)
}

// limitNames are the resource limits as hinit.yaml names them (getrlimit(2)).
var limitNames = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
	"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC,
	"rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

// LimitOf returns the resource that a name of hinit.yaml means.
func LimitOf(name string) (resource int, known bool) {
	resource, known = limitNames[name]
	return resource, known
}

func limitName(resource int) string {
	for name, r := range limitNames {
		if r == resource {
			return name
		}
	}
	return strconv.Itoa(resource)
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// LimitsMain is the program behind LimitsName: it sets the limits and executes the command. It returns only on failure, with the
// exit code and the reason.
func LimitsMain(argv []string) (int, error) {
	runtime.LockOSThread() // the thread that executes the command is the one whose priorities count
	var limits []Limit
	var later pending
	i := 1
	for ; i < len(argv) && argv[i] != "--"; i++ {
		if strings.Contains(argv[i], "=") {
			if err := later.apply(argv[i]); err != nil {
				return 126, err
			}
			continue
		}
		var l Limit
		if _, err := fmt.Sscanf(argv[i], "%d:%d:%d", &l.Resource, &l.Soft, &l.Hard); err != nil {
			return 126, fmt.Errorf("cannot read limit %q: %w", argv[i], err)
		}
		limits = append(limits, l)
	}
	if len(argv) < i+3 {
		return 126, errNoCommand
	}
	env, err := environ(os.Environ(), &later)
	if err != nil {
		return 126, err
	}
	for _, l := range limits {
		// unix.Setrlimit tells the Go runtime too, so that exec does not put its saved RLIMIT_NOFILE back.
		if err := unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}); err != nil {
			return 126, fmt.Errorf("cannot set the limit %s to %s: %w", limitName(l.Resource), limitText(l.Hard), err)
		}
	}
	if later.noNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return 126, fmt.Errorf("cannot set no_new_privs: %w", err)
		}
	}
	path, err := LookPath(argv[i+1], env) // PID 1 has done that, unless it would have taken too long
	if err == nil {
		err = syscall.Exec(path, argv[i+2:], env)
	}
	e := &SpawnError{What: argv[i+1], Err: err}
	return e.ShellCode(), e
}
