//go:build linux && (amd64 || arm64)

package entry

import (
	"syscall"
	"unsafe"
)

// become is the argv[0] of a process that changes its user and executes a command (proc.LimitsName).
const become = "hinit-limits"

// groups are the supplementary groups of the user, as many as the kernel allows.
var groups [1 << 16]uint32

// change makes this process another user's, enters a directory and executes the command behind "--". It marks the words that it has carried out.
// Where others are left, and where something fails, it returns: the program behind the runtime does the rest, or says why. The runtime obeys
// variables that the new user may have written. So root's failure ends the process here.
// The kernel's lack of processes or memory ends it too, because the runtime would not begin.
func change(argv, env words) {
	end, rest := 1, false
	for argv.at(end) != "--" && argv.at(end) != "" {
		end++
	}
	if argv.at(end+2) == "" {
		return
	}
	for i := 1; i < end; i++ {
		w := argv.at(i)
		errno, known := carryOut(w)
		switch {
		case known && errno == 0:
			if w[0] != 'b' { // it is one thread's, and the runtime may execute the command in another
				*unsafe.StringData(w) = '='
			}
		case known && syscall3(syscall.SYS_GETEUID, 0, 0, 0) == 0:
			write(2, line.add("[hinit] cannot set ").add(w).add(": ").add(syscall.Errno(-errno).Error()).add("\n").string())
			syscall3(syscall.SYS_EXIT_GROUP, 126, 0, 0)
		default:
			rest = true
		}
	}
	if path := argv.at(end + 1); rest || len(base(path)) == len(path) { // a name is looked up in PATH
		return
	}
	errno := -syscall3(syscall.SYS_EXECVE, argv.pointer(end+1), uintptr(unsafe.Pointer(argv.first))+uintptr(end+2)*unsafe.Sizeof(*argv.first), uintptr(unsafe.Pointer(env.first)))
	if e := syscall.Errno(errno); e == syscall.EAGAIN || e == syscall.ENOMEM {
		write(2, "[hinit] cannot start a command: resource temporarily unavailable: its user may have no more processes, or memory is short\n")
		syscall3(syscall.SYS_EXIT_GROUP, 126, 0, 0)
	}
}

// carryOut does what a word says, and returns an errno below zero.
func carryOut(word string) (errno int, known bool) {
	const nnp, deathsig, classShift = 38, 1, 13 // PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG
	at := max(index(word, "="), 0)
	value := word[min(at+1, len(word)):]
	first, rest := number(value)
	switch word[:at] {
	case "nice":
		own := syscall3(syscall.SYS_GETPRIORITY, 0, 0, 0) // 20 less the nice value
		errno = syscall3(syscall.SYS_SETPRIORITY, 0, 0, uintptr(max(-20, min(20-own+int(int32(first)), 19))))
	case "io":
		level, _ := number(rest)
		errno = syscall3(syscall.SYS_IOPRIO_SET, 1, 0, uintptr(first<<classShift|level))
	case "user":
		errno = user(first, rest)
	case "dir":
		errno = syscall3(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(unsafe.StringData(value))), 0, 0)
	case "bound":
		errno = syscall3(syscall.SYS_PRCTL, deathsig, uintptr(syscall.SIGKILL), 0)
		if syscall3(syscall.SYS_GETPPID, 0, 0, 0) != int(first) {
			errno = -int(syscall.ESRCH)
		}
	case "cgroup":
		errno = remake(value)
	case "put":
		errno = put(value)
	case "no_new_privs":
		errno = syscall3(syscall.SYS_PRCTL, nnp, 1, 0)
	default:
		return 0, false
	}
	return errno, true
}

const here = ^uintptr(99) // AT_FDCWD

// remake makes a control group. One that is there and empty is made anew, so that its counters begin at zero.
func remake(dir string) (errno int) {
	const removeDir, mode = 0x200, 0o755 // AT_REMOVEDIR
	at := uintptr(unsafe.Pointer(unsafe.StringData(dir)))
	syscall3(syscall.SYS_UNLINKAT, here, at, removeDir)
	if errno = syscall3(syscall.SYS_MKDIRAT, here, at, mode); errno == -int(syscall.EEXIST) {
		return 0
	}
	return errno
}

// put writes what is before the first colon into the file behind it.
func put(word string) (errno int) {
	at := max(index(word, ":"), 0)
	file := word[min(at+1, len(word)):]
	fd := syscall6(syscall.SYS_OPENAT, here, uintptr(unsafe.Pointer(unsafe.StringData(file))), syscall.O_WRONLY|syscall.O_CLOEXEC, 0, 0)
	if fd < 0 {
		return fd
	}
	errno = syscall3(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.StringData(word))), uintptr(at))
	syscall3(syscall.SYS_CLOSE, uintptr(fd), 0, 0)
	return min(errno, 0)
}

// user changes the groups, the group and the user of this process. ids are GID[:GROUP…].
func user(uid uint32, ids string) (errno int) {
	gid, rest := number(ids)
	n := 0
	for ; rest != "" && n < len(groups); n++ {
		groups[n], rest = number(rest)
	}
	if errno = syscall3(syscall.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(&groups)), 0); errno == 0 {
		errno = syscall3(syscall.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
	}
	if errno == 0 {
		errno = syscall3(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
	}
	return errno
}

// number reads a number, and what follows the colon behind it. One below zero is returned as its two's complement.
func number(text string) (n uint32, rest string) {
	if text != "" && text[0] == '-' {
		n, rest = number(text[1:])
		return -n, rest
	}
	i := 0
	for ; i < len(text) && text[i] != ':'; i++ {
		n = 10*n + uint32(text[i]-'0')
	}
	if i < len(text) {
		rest = text[i+1:]
	}
	return n, rest
}

// pointer returns where a word is.
func (w words) pointer(i int) uintptr {
	return *(*uintptr)(unsafe.Add(unsafe.Pointer(w.first), uintptr(i)*unsafe.Sizeof(*w.first)))
}
