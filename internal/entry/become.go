//go:build linux && (amd64 || arm64)

package entry

import (
	"syscall"
	"unsafe"
)

// become is the argv[0] of a process that changes its user and executes a command (proc.LimitsName).
const become = "hinit-limits"

// groups are the supplementary groups of the user.
var groups [256]uint32

// change makes this process another user's, enters a directory and executes the command behind "--". It knows the words user=, dir=, bound= and
// no_new_privs=. With another word, and where something fails, it returns: the program behind the runtime does the rest, or says why.
// Only the kernel's lack of processes or memory ends the process here, because the runtime would not begin.
func change(argv, env words) {
	end := 1
	for ; argv.at(end) != "--"; end++ {
		w := argv.at(end)
		if w == "" || after(w, "user=") == "" && after(w, "dir=") == "" && after(w, "bound=") == "" && w != "no_new_privs=1" {
			return
		}
	}
	if argv.at(end+2) == "" {
		return
	}
	const nnp, deathsig = 38, 1 // PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG
	ok := true
	for i := 1; i < end && ok; i++ {
		w := argv.at(i)
		switch {
		case after(w, "user=") != "":
			ok = user(after(w, "user="))
		case after(w, "dir=") != "":
			ok = syscall3(syscall.SYS_CHDIR, argv.pointer(i)+4, 0, 0) == 0
		case after(w, "bound=") != "":
			parent, _ := number(after(w, "bound="))
			ok = syscall3(syscall.SYS_PRCTL, deathsig, uintptr(syscall.SIGKILL), 0) == 0 && syscall3(syscall.SYS_GETPPID, 0, 0, 0) == int(parent)
		default:
			ok = syscall3(syscall.SYS_PRCTL, nnp, 1, 0) == 0
		}
	}
	if path := argv.at(end + 1); !ok || len(base(path)) == len(path) { // a name is looked up in PATH
		return
	}
	errno := -syscall3(syscall.SYS_EXECVE, argv.pointer(end+1), uintptr(unsafe.Pointer(argv.first))+uintptr(end+2)*unsafe.Sizeof(*argv.first), uintptr(unsafe.Pointer(env.first)))
	if e := syscall.Errno(errno); e == syscall.EAGAIN || e == syscall.ENOMEM {
		write(2, "[hinit] cannot start a command: resource temporarily unavailable: its user may have no more processes, or memory is short\n")
		syscall3(syscall.SYS_EXIT_GROUP, 126, 0, 0)
	}
}

// user changes the groups, the group and the user of this process to UID:GID[:GROUP…].
func user(text string) bool {
	uid, rest := number(text)
	gid, rest := number(rest)
	n := 0
	for ; rest != ""; n++ {
		if n == len(groups) {
			return false
		}
		var g uint32
		g, rest = number(rest)
		groups[n] = g
	}
	return syscall3(syscall.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(&groups)), 0) == 0 &&
		syscall3(syscall.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)) == 0 &&
		syscall3(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)) == 0
}

// number reads a number, and what follows the colon behind it.
func number(text string) (n uint32, rest string) {
	i := 0
	for ; i < len(text) && text[i] != ':'; i++ {
		n = 10*n + uint32(text[i]-'0')
	}
	if i < len(text) {
		rest = text[i+1:]
	}
	return n, rest
}

// after returns what follows a prefix, "" where the text does not begin with it.
func after(text, prefix string) string {
	if len(text) > len(prefix) && text[:len(prefix)] == prefix {
		return text[len(prefix):]
	}
	return ""
}

// pointer returns where a word is.
func (w words) pointer(i int) uintptr {
	return *(*uintptr)(unsafe.Add(unsafe.Pointer(w.first), uintptr(i)*unsafe.Sizeof(*w.first)))
}
