package confine

import (
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/entry/bare"
)

// rules is the first part of the rules that all isolated profiles of a container have in common. In ruleBuffer, the parts of
// variable length follow it. A file of saved rules has the same layout. It is valid for one version of hinit-isolate and one
// state of the container, see rulesAreCurrent.
type rules struct {
	programID                                 [2]uint64 // inode and modification time of hinit-isolate
	handledFS, handledNet, scoped             uint64    // accesses that Landlock restricts, as in struct landlock_ruleset_attr
	firstPort, lastPort                       uint64    // range of the ports that the kernel chooses for a socket without a port (ip(7))
	writeDir, writeFile, readDir, readFile    uint64    // rights on an allowed path and everything below it
	mountsLen, hiddenLen, pathsLen, filterLen uint64    // lengths of the parts: mounts, hidden paths, allowed paths, filter of system calls
}

const rulesHeaderSize = int(unsafe.Sizeof(rules{}))

// Static buffers, because there is no heap before the Go runtime starts.
var (
	ruleBuffer  [256 << 10]byte // the rules of this container, beginning with ruleHeader
	fileBuffer  [64 << 10]byte  // content of the last file
	envp        [16 << 10]uintptr
	messageLine bare.TextBuffer
	tempVar     bare.TextBuffer // the variable TMPDIR of the command
	profileName string          // name of the profile
	ruleHeader  = (*rules)(unsafe.Pointer(&ruleBuffer))
	noFilter    = unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW}
)

// isolate confines the process and executes the command, without the Go runtime, if the file in the argument rules= has current
// rules. Otherwise it returns.
func isolate(argv, env bare.CStrings) {
	i := 1
	for ; argv.Index(i) != "--"; i++ {
		if argv.Index(i) == "" {
			return
		}
	}
	plan, path := bare.CStrings{First: argv.First, Len: i}, argv.Index(i+1)
	if file := plan.Getenv("rules"); file != "" && plan.Getenv("refused") == "" && len(bare.BaseName(path)) < len(path) && readRules(file) && rulesAreCurrent(plan) {
		confine(path, argv, env)
	}
}

// readRules reads saved rules into ruleBuffer. It returns false for an incomplete file, or if a user other than root may have
// written it.
func readRules(file string) bool {
	var st unix.Statx_t
	fd := bare.Syscall6(unix.SYS_OPENAT, bare.AtFDCWD, stringAddress(file), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0, 0)
	if stat(fd, "\x00", unix.AT_EMPTY_PATH, &st) < 0 || st.Uid != 0 || st.Mode&(unix.S_IFMT|0o022) != unix.S_IFREG {
		return false
	}
	n := uint64(readAndClose(fd, ruleBuffer[:]))
	return n >= uint64(rulesHeaderSize) && n == uint64(rulesHeaderSize)+ruleHeader.mountsLen+ruleHeader.hiddenLen+ruleHeader.pathsLen+ruleHeader.filterLen
}

// rulesPart returns a part of the rules: size bytes, after earlier parts with the sizes in before.
func rulesPart(size uint64, before ...uint64) string {
	at := uint64(rulesHeaderSize)
	for _, n := range before {
		at += n
	}
	return unsafe.String(&ruleBuffer[at], size)
}

// rulesAreCurrent reports whether the rules are valid: this program made them for the present mounts, and for the hidden paths
// in plan. It is also false if the kernel may choose a port in plan for any socket, because [Main] must then check whether the
// port is reserved.
func rulesAreCurrent(plan bare.CStrings) bool {
	var st unix.Statx_t
	if stat(unix.AT_FDCWD, "/proc/self/exe\x00", 0, &st) < 0 || ruleHeader.programID != programIDOf(&st) {
		return false
	}
	hidden, n := rulesPart(ruleHeader.hiddenLen, ruleHeader.mountsLen), 0
	for i := range plan.Len {
		if path, is := strings.CutPrefix(plan.Index(i), "hide="); is {
			if end := n + len(path); end >= len(hidden) || hidden[n:end] != path || hidden[end] != 0 {
				return false
			}
			n += len(path) + 1
		}
		port, is := strings.CutPrefix(plan.Index(i), "port=")
		if number, _ := bare.ParseNumber(port); is && uint64(number) >= ruleHeader.firstPort && uint64(number) <= ruleHeader.lastPort {
			return false
		}
	}
	fd := bare.Syscall6(unix.SYS_OPENAT, bare.AtFDCWD, stringAddress("/proc/self/mountinfo\x00"), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0)
	mounts := readAndClose(fd, fileBuffer[:])
	return n == len(hidden) && mounts > 0 && mounts < len(fileBuffer) && unsafe.String(&fileBuffer[0], mounts) == rulesPart(ruleHeader.mountsLen)
}

func programIDOf(st *unix.Statx_t) [2]uint64 {
	return [2]uint64{st.Ino, uint64(st.Mtime.Sec)*1e9 + uint64(st.Mtime.Nsec)}
}

// confine isolates this process for ever, by the rules and by the plan in argv (see isolation.Argv). Then it executes the
// program at path, with the command in argv as its arguments. It does not return. If the Go runtime is running, the goroutine
// must be locked to its thread.
func confine(path string, argv, env bare.CStrings) {
	var control, marked, degrade bool
	end := 1
	for ; argv.Index(end) != "--"; end++ {
		word := argv.Index(end)
		control, marked, degrade = control || word == "control", marked || word == "marked", degrade || word == "degrade"
	}
	plan := bare.CStrings{First: argv.First, Len: end}
	profileName = plan.Getenv("name")
	temp := makeTempDir()
	// a process that is not root has no capabilities, except in containers that give some to every user
	const drop = unix.PR_CAP_AMBIENT_CLEAR_ALL
	if r := bare.Syscall3(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, drop, 0); r != -int(unix.EINVAL) {
		mustSucceed("drop the capabilities", r)
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	mustSucceed("drop the capabilities", bare.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0))
	mustSucceed("set no_new_privs", bare.Syscall3(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0))
	if ruleHeader.handledFS != 0 {
		applyLandlock(plan, temp)
	}
	filters := []string{rulesPart(ruleHeader.filterLen, ruleHeader.mountsLen, ruleHeader.hiddenLen, ruleHeader.pathsLen), unsafe.String((*byte)(unsafe.Pointer(&noFilter)), unsafe.Sizeof(noFilter))}
	if control {
		filters = filters[:1] // the second filter marks a process that may not use the control socket of PID 1
	}
	for _, filter := range filters {
		program := unix.SockFprog{Len: uint16(len(filter) / int(unsafe.Sizeof(noFilter))), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.StringData(filter)))}
		r := bare.Syscall3(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
		if r < 0 && degrade && !marked {
			messageLine.Add("[hinit] ").Add(profileName).Add(" is not isolated as configured: cannot filter system calls: ")
			bare.Write(2, messageLine.Add(syscall.Errno(-r).Error()).Add("\n").String())
			messageLine.Len = 0
			break
		}
		mustSucceed("filter system calls", r)
	}
	execute(path, argv, end+1, commandEnviron(plan, env))
}

// webTokenPrefix is the beginning of the variable with the token of the status page. A program with this token can control all
// gateways.
const webTokenPrefix = "HINIT_WEB_TOKEN="

// commandEnviron returns the environment of the command: env without the web token, with the command's TMPDIR, and with the HOME
// of plan if set.
func commandEnviron(plan, env bare.CStrings) uintptr {
	n, home := 0, plan.Getenv("HOME")
	for i := 0; i < env.Len && env.Pointer(i) != 0; i++ {
		_, token := strings.CutPrefix(env.Index(i), webTokenPrefix)
		_, temp := strings.CutPrefix(env.Index(i), "TMPDIR=")
		_, old := strings.CutPrefix(env.Index(i), "HOME=")
		if n == len(envp)-3 {
			fatal("take so many variables", unix.E2BIG)
		}
		if !token && !temp && (!old || home == "") {
			envp[n] = env.Pointer(i)
			n++
		}
	}
	envp[n] = uintptr(unsafe.Pointer(&tempVar.Buf))
	if home != "" {
		envp[n+1] = stringAddress(home) - uintptr(len("HOME="))
	}
	return uintptr(unsafe.Pointer(&envp))
}

// execute replaces this process by the program at path, with the words of argv from index at on.
func execute(path string, argv bare.CStrings, at int, env uintptr) {
	errno := syscall.Errno(-bare.Syscall3(unix.SYS_EXECVE, stringAddress(path), uintptr(unsafe.Pointer(argv.Slice(at).First)), env))
	messageLine.Add("[hinit] cannot start ").Add(argv.Index(at)).Add(": ").Add(errno.Error())
	if errno == unix.ENOENT || errno == unix.ENOTDIR {
		exitWith(127)
	}
	if errno == unix.EAGAIN {
		messageLine.Add("; no more processes are allowed here: stop some, or raise the limit (docker: --pids-limit, --ulimit nproc; a pod: podPidsLimit of the kubelet)")
	}
	if errno == unix.ENOMEM {
		messageLine.Add("; there is no memory left: stop something, or give the container more (docker: --memory; a pod: resources.limits.memory)")
	}
	exitWith(126)
}

// makeTempDir makes a directory for temporary files that only this user can use, and returns it open. If the usual name belongs
// to another user, it appends a random number. It sets the mode of an existing directory again, because the agent may have
// changed it.
func makeTempDir() (fd int) {
	var st unix.Statx_t
	uid := bare.Syscall3(unix.SYS_GETUID, 0, 0, 0)
	tempVar.Add("TMPDIR=/tmp/hinit-").Add(profileName).Add("-").AddNumber(uid)
	dir, flags := uintptr(unsafe.Pointer(&tempVar.Buf[len("TMPDIR=")])), uintptr(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	bare.Syscall3(unix.SYS_MKDIRAT, bare.AtFDCWD, dir, 0o700) // fails if the directory exists
	fd = bare.Syscall3(unix.SYS_OPENAT, bare.AtFDCWD, dir, flags)
	if stat(fd, "\x00", unix.AT_EMPTY_PATH, &st) < 0 || int(st.Uid) != uid {
		var random uint32
		mustSucceed("take a random number", bare.Syscall3(unix.SYS_GETRANDOM, uintptr(unsafe.Pointer(&random)), unsafe.Sizeof(random), 0))
		tempVar.Add("-").AddNumber(int(random))
		mustSucceed("make a directory for temporary files in /tmp, which must be writable (docker: --tmpfs /tmp)", bare.Syscall3(unix.SYS_MKDIRAT, bare.AtFDCWD, dir, 0o700))
		fd = bare.Syscall3(unix.SYS_OPENAT, bare.AtFDCWD, dir, flags)
	}
	mustSucceed("open the directory for temporary files", fd)
	r := bare.Syscall3(unix.SYS_FCHMODAT, bare.AtFDCWD, stringAddress(messageLine.Add("/proc/self/fd/").AddNumber(fd).Add("\x00").String()), 0o700)
	messageLine.Len = 0
	mustSucceed("change the mode of the directory for temporary files", r)
	return fd
}

// applyLandlock restricts the files, ports and signals of this process. temp is its open directory for temporary files.
func applyLandlock(plan bare.CStrings, temp int) {
	set := bare.Syscall3(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&ruleHeader.handledFS)), 3*unsafe.Sizeof(ruleHeader.handledFS), 0)
	mustSucceed("confine it by Landlock", set)
	allowPath(set, plan.Getenv("home"), true)
	allowOpen(set, temp, true)
	for rest := rulesPart(ruleHeader.pathsLen, ruleHeader.mountsLen, ruleHeader.hiddenLen); rest != ""; {
		path, others, _ := strings.Cut(rest, "\x00")
		allowPath(set, path[1:], path[0] == 'w')
		rest = others
	}
	if ruleHeader.handledNet != 0 {
		allowPort(set, 0) // with port 0, a program lets the kernel choose a free port
	}
	for i := range plan.Len {
		if path, is := strings.CutPrefix(plan.Index(i), "share="); is {
			sharePath(set, plan, path, true)
		}
		if path, is := strings.CutPrefix(plan.Index(i), "read="); is {
			sharePath(set, plan, path, false)
		}
		if port, is := strings.CutPrefix(plan.Index(i), "port="); is && ruleHeader.handledNet != 0 {
			n, _ := bare.ParseNumber(port)
			allowPort(set, n)
		}
	}
	mustSucceed("confine it by Landlock", bare.Syscall3(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(set), 0, 0))
	bare.Syscall3(unix.SYS_CLOSE, uintptr(set), 0, 0)
}

func allowPort(set int, port uint32) {
	const ports = 2 // value of LANDLOCK_RULE_NET_PORT
	attr := [2]uint64{ruleHeader.handledNet, uint64(port)}
	mustSucceed("confine its ports by Landlock", bare.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), ports, uintptr(unsafe.Pointer(&attr)), 0, 0))
}

// allowPath lets the process read the file or directory at path and everything below it, and with write also change it. It
// skips a missing path.
func allowPath(set int, path string, write bool) {
	fd := bare.Syscall6(unix.SYS_OPENAT, bare.AtFDCWD, stringAddress(path), unix.O_PATH|unix.O_CLOEXEC, 0, 0)
	allowOpen(set, fd, write)
}

func allowOpen(set, fd int, write bool) {
	if fd == -int(unix.ENOENT) || fd == -int(unix.ENOTDIR) {
		return
	}
	mustSucceed("open what it may use", fd)
	dirRights, fileRights := ruleHeader.readDir, ruleHeader.readFile
	if write {
		dirRights, fileRights = ruleHeader.writeDir, ruleHeader.writeFile
	}
	r := allowBeneath(set, fd, dirRights)
	if r == -int(unix.EINVAL) { // fd is a file
		r = allowBeneath(set, fd, fileRights)
	}
	mustSucceed("confine it by Landlock", r)
	bare.Syscall3(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

func allowBeneath(set, fd int, rights uint64) int {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	return bare.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0)
}

// sharePath allows a path that is shared with the profile. If the path is below a hidden place or another shared path, other
// profiles can write there. In that case, sharePath refuses a path with a symbolic link, which could lead to another profile.
func sharePath(set int, plan bare.CStrings, path string, write bool) {
	for i := range plan.Len {
		place, is := strings.CutPrefix(plan.Index(i), "hide=")
		if !is {
			place, is = strings.CutPrefix(plan.Index(i), "share=")
		}
		if !is || path == place || !isBeneath(path, place) {
			continue
		}
		dir := bare.Syscall6(unix.SYS_OPENAT, bare.AtFDCWD, stringAddress(place), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0, 0)
		if dir < 0 {
			continue
		}
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH}
		below := strings.TrimLeft(path[len(place):], "/")
		fd := bare.Syscall6(unix.SYS_OPENAT2, uintptr(dir), stringAddress(below), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0)
		bare.Syscall3(unix.SYS_CLOSE, uintptr(dir), 0, 0)
		if fd == -int(unix.ELOOP) {
			messageLine.Add("[hinit] cannot isolate ").Add(profileName).Add(": cannot share ").Add(path).Add(": there is a link in it; share the place that the link leads to")
			exitWith(126)
		}
		allowOpen(set, fd, write)
		return
	}
	allowPath(set, path, write)
}

// isBeneath reports whether path is dir or inside it.
func isBeneath(path, dir string) bool {
	rest, is := strings.CutPrefix(path, strings.TrimRight(dir, "/"))
	return is && (rest == "" || rest[0] == '/')
}

// stringAddress returns the address of a text, which must end in a NUL.
func stringAddress(text string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(text))) }

func stat(fd int, path string, flags uintptr, st *unix.Statx_t) int {
	return bare.Syscall6(unix.SYS_STATX, uintptr(fd), stringAddress(path), flags, unix.STATX_BASIC_STATS, uintptr(unsafe.Pointer(st)))
}

// readAndClose fills the buffer to from fd, closes fd, and returns the number of bytes: 0 if fd is not open.
func readAndClose(fd int, to []byte) int {
	n := bare.Read(fd, to)
	bare.Syscall3(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return n
}

func mustSucceed(what string, r int) {
	if r < 0 {
		fatal(what, syscall.Errno(-r))
	}
}

// fatal ends the process with exit code 126, after a message to stderr with the failed action and the reason.
func fatal(what string, errno syscall.Errno) {
	messageLine.Add("[hinit] cannot isolate ").Add(profileName).Add(": cannot ").Add(what).Add(": ").Add(errno.Error())
	exitWith(126)
}

func exitWith(code uintptr) {
	bare.Write(2, messageLine.Add("\n").String())
	bare.Syscall3(unix.SYS_EXIT_GROUP, code, 0, 0)
}
