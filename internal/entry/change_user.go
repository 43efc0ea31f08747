//go:build linux && (amd64 || arm64)

package entry

import (
	"strings"
	"syscall"
	"unsafe"

	"hinit/internal/entry/bare"
)

// LimitsProgramName is the argv[0] of a process that changes its user and settings, and then executes a command. It equals
// proc.LimitsProgramName.
const LimitsProgramName = "hinit-limits"

// supplementaryGroups has the maximum number of supplementary groups.
var supplementaryGroups [1 << 16]uint32

// ChangeUserAndExec carries out the words on its command line, which change the user, the directory and other settings of this
// process, and marks each of them as done. Then it calls instead with the command after "--". If instead returns,
// ChangeUserAndExec executes the command.
//
// It returns if it does not know a word, or if a step fails and the process is not root. The program then starts the Go
// runtime, which carries out the remaining words or reports the error. If a step fails while the process is root,
// ChangeUserAndExec ends the process: the runtime obeys environment variables, which the new user may have written. It also
// ends the process if the kernel lacks PIDs or memory, because the runtime could not start.
func ChangeUserAndExec(argv, env bare.CStrings, instead func(command, env bare.CStrings)) {
	end, rest := 1, false
	for argv.Index(end) != "--" && argv.Index(end) != "" {
		end++
	}
	if argv.Index(end+2) == "" {
		return
	}
	for i := 1; i < end; i++ {
		w := argv.Index(i)
		errno, known := applySetting(w)
		switch {
		case known && errno == 0:
			if w[0] != 'b' { // "bound" belongs to one thread, and the runtime may execute the command in another
				*unsafe.StringData(w) = '='
			}
		case known && bare.Syscall3(syscall.SYS_GETEUID, 0, 0, 0) == 0:
			bare.Write(2, lineBuffer.Add("[hinit] cannot set ").Add(w).Add(": ").Add(syscall.Errno(-errno).Error()).Add("\n").String())
			bare.Syscall3(syscall.SYS_EXIT_GROUP, 126, 0, 0)
		default:
			rest = true
		}
	}
	errno := 0
	if path := argv.Index(end + 1); !rest && len(bare.BaseName(path)) < len(path) {
		command := argv.Slice(end + 2)
		instead(command, env)
		errno = -bare.Syscall3(syscall.SYS_EXECVE, argv.Pointer(end+1), uintptr(unsafe.Pointer(command.First)), uintptr(unsafe.Pointer(env.First)))
	} else { // hinit-tools carries out the other words, and searches the PATH
		errno = execTools(argv, env)
	}
	if e := syscall.Errno(errno); e == syscall.EAGAIN || e == syscall.ENOMEM {
		bare.Write(2, "[hinit] cannot start a command: resource temporarily unavailable: its user may have no more processes, or memory is short\n")
		bare.Syscall3(syscall.SYS_EXIT_GROUP, 126, 0, 0)
	}
}

// applySetting applies one setting of the process; word has the form NAME=VALUE. errno is negative after an error. known is
// false if applySetting does not know the name.
func applySetting(word string) (errno int, known bool) {
	const nnp, deathsig, classShift = 38, 1, 13 // values of PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG and IOPRIO_CLASS_SHIFT
	name, value, _ := strings.Cut(word, "=")
	first, rest := bare.ParseNumber(value)
	switch name {
	case "nice":
		own := bare.Syscall3(syscall.SYS_GETPRIORITY, 0, 0, 0) // the system call returns 20 minus the nice value
		errno = bare.Syscall3(syscall.SYS_SETPRIORITY, 0, 0, uintptr(max(-20, min(20-own+int(int32(first)), 19))))
	case "io":
		level, _ := bare.ParseNumber(rest)
		errno = bare.Syscall3(syscall.SYS_IOPRIO_SET, 1, 0, uintptr(first<<classShift|level))
	case "user":
		errno = setUser(first, rest)
	case "dir":
		errno = bare.Syscall3(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(unsafe.StringData(value))), 0, 0)
	case "bound":
		errno = bare.Syscall3(syscall.SYS_PRCTL, deathsig, uintptr(syscall.SIGKILL), 0)
		if bare.Syscall3(syscall.SYS_GETPPID, 0, 0, 0) != int(first) {
			errno = -int(syscall.ESRCH)
		}
	case "cgroup":
		errno = remakeCgroup(value)
	case "put":
		errno = writeSetting(value)
	case "oom":
		writeSetting(value)
	case "no_new_privs":
		errno = bare.Syscall3(syscall.SYS_PRCTL, nnp, 1, 0)
	default:
		return 0, false
	}
	return errno, true
}

// remakeCgroup makes a control group. It replaces an empty one, so that the counters begin at zero.
func remakeCgroup(dir string) (errno int) {
	const removeDir, mode = 0x200, 0o755
	at := uintptr(unsafe.Pointer(unsafe.StringData(dir)))
	bare.Syscall3(syscall.SYS_UNLINKAT, bare.AtFDCWD, at, removeDir)
	if errno = bare.Syscall3(syscall.SYS_MKDIRAT, bare.AtFDCWD, at, mode); errno == -int(syscall.EEXIST) {
		return 0
	}
	return errno
}

func writeSetting(word string) (errno int) {
	text, file, _ := strings.Cut(word, ":")
	fd := bare.Syscall6(syscall.SYS_OPENAT, bare.AtFDCWD, uintptr(unsafe.Pointer(unsafe.StringData(file))), syscall.O_WRONLY|syscall.O_CLOEXEC, 0, 0)
	if fd < 0 {
		return fd
	}
	errno = bare.Syscall3(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.StringData(text))), uintptr(len(text)))
	bare.Syscall3(syscall.SYS_CLOSE, uintptr(fd), 0, 0)
	return min(errno, 0)
}

// setUser sets user, group and supplementary groups of this process. ids is GID[:GROUP…].
func setUser(uid uint32, ids string) (errno int) {
	gid, rest := bare.ParseNumber(ids)
	n := 0
	for ; rest != "" && n < len(supplementaryGroups); n++ {
		supplementaryGroups[n], rest = bare.ParseNumber(rest)
	}
	if errno = bare.Syscall3(syscall.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(&supplementaryGroups)), 0); errno == 0 {
		errno = bare.Syscall3(syscall.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
	}
	if errno == 0 {
		errno = bare.Syscall3(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
	}
	return errno
}
