//go:build linux && (amd64 || arm64)

package entry

import (
	"syscall"
	"unsafe"
)

// become is the argv[0] of a process that changes its user and executes a command (proc.LimitsName).
const become = "hinit-limits"

// groups has room for as many supplementary groups as the kernel allows.
var groups [1 << 16]uint32

// change changes the user of this process, enters a directory and executes the command after "--". It marks the words that it has
// carried out. If words are left, or if a step without root's rights fails, it returns: the program after the runtime carries out
// the rest, or reports the error. If a step with root's rights fails, it ends the process, because the runtime obeys variables
// that the new user may have written. It also ends the process if the kernel lacks processes or memory, because the runtime could
// not start.
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
			if w[0] != 'b' { // the setting is for one thread, and the runtime may execute the command in another
				*unsafe.StringData(w) = '='
			}
		case known && syscall3(syscall.SYS_GETEUID, 0, 0, 0) == 0:
			write(2, line.add("[hinit] cannot set ").add(w).add(": ").add(syscall.Errno(-errno).Error()).add("\n").string())
			syscall3(syscall.SYS_EXIT_GROUP, 126, 0, 0)
		default:
			rest = true
		}
	}
	errno := 0
	if path := argv.at(end + 1); !rest && len(base(path)) < len(path) {
		errno = -syscall3(syscall.SYS_EXECVE, argv.pointer(end+1), uintptr(unsafe.Pointer(argv.first))+uintptr(end+2)*unsafe.Sizeof(*argv.first), uintptr(unsafe.Pointer(env.first)))
	} else if !isTools() { // hinit-tools carries out the rest, and looks a name up in PATH
		errno = becomeTools(argv, env)
	}
	if e := syscall.Errno(errno); e == syscall.EAGAIN || e == syscall.ENOMEM {
		write(2, "[hinit] cannot start a command: resource temporarily unavailable: its user may have no more processes, or memory is short\n")
		syscall3(syscall.SYS_EXIT_GROUP, 126, 0, 0)
	}
}

// carryOut carries out one word. It returns a negative errno after an error.
func carryOut(word string) (errno int, known bool) {
	const nnp, deathsig, classShift = 38, 1, 13 // PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG
	at := max(index(word, "="), 0)
	value := word[min(at+1, len(word)):]
	first, rest := number(value)
	switch word[:at] {
	case "nice":
		own := syscall3(syscall.SYS_GETPRIORITY, 0, 0, 0) // 20 minus the nice value
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

// remake creates a control group. An existing empty one is created anew, so that its counters start at zero.
func remake(dir string) (errno int) {
	const removeDir, mode = 0x200, 0o755 // AT_REMOVEDIR
	at := uintptr(unsafe.Pointer(unsafe.StringData(dir)))
	syscall3(syscall.SYS_UNLINKAT, here, at, removeDir)
	if errno = syscall3(syscall.SYS_MKDIRAT, here, at, mode); errno == -int(syscall.EEXIST) {
		return 0
	}
	return errno
}

// put writes the text before the first colon of word into the file named after it.
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

// user sets the groups, the group and the user of this process. ids are GID[:GROUP…].
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

// number parses a number. rest is the text after the colon that follows it. A negative number is returned in two's complement.
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

// pointer returns the address of a word.
func (w words) pointer(i int) uintptr {
	return *(*uintptr)(unsafe.Add(unsafe.Pointer(w.first), uintptr(i)*unsafe.Sizeof(*w.first)))
}
