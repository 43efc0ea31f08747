//go:build linux && (amd64 || arm64)

package entry

import (
	"syscall"
	"unsafe"

	"hinit/internal/entry/bare"
)

// threads is the number of threads that must be possible at once. A command of hinit starts with 4 to 6 threads, and other
// programs take process numbers meanwhile.
const threads = 8

var (
	leave uint32
	never uint32      // always 0
	held  [64]uintptr // the youngest threads that fill made
)

// few is the smallest number of threads that PID 1 needs, see internal/tuning.
const few = 20

// Short says that PID 1 must use as few threads as possible.
var Short bool

// Only the assembly uses these.
var _ = begin

// hold makes a thread that waits until leave isn't 0. It returns its number, or a negative errno.
func hold(leave *uint32) int

// hinit_bare calls begin, before the Go runtime.
func begin(stack *uintptr) {
	argv, env := bare.Begun(stack)
	if bare.Base(argv.At(0)) == become {
		changeUserAndExec(argv, env)
		return
	}
	if argv.N == 0 || bare.Syscall3(syscall.SYS_GETPID, 0, 0, 0) == 1 {
		if env.Get("HINIT_HANDOVER") != "" {
			await(env.Get("HINIT_HALTED"))
		}
		return
	}
	name := bare.Base(argv.At(0))
	if !isToolsCommand(name, argv) {
		return
	}
	missing := !isToolsProgram()
	if missing {
		becomeTools(argv, env)
	}
	if !missing && HasRoomFor(threads) {
		return
	}
	if code := askPID1(name, argv, env, missing); code >= 0 {
		bare.Syscall3(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

// toolsName is the program that has the commands, beside hinit.
const toolsName = "hinit-tools\x00"

// isToolsProgram reports whether this program is hinit-tools. It leaves the path of the program's directory, with its slash, in path.
func isToolsProgram() bool {
	self := "/proc/self/exe\x00"
	path.N = max(0, bare.Syscall6(syscall.SYS_READLINKAT, bare.Here, uintptr(unsafe.Pointer(unsafe.StringData(self))), uintptr(unsafe.Pointer(&path.Buf)), uintptr(len(path.Buf)-len(toolsName)), 0))
	name := bare.Base(path.String())
	path.N -= len(name)
	return name == toolsName[:len(toolsName)-1]
}

// becomeTools executes hinit-tools in the directory that [isToolsProgram] has left. It returns only if that fails, with the reason.
func becomeTools(argv, env bare.Words) (errno int) {
	path.Add(toolsName)
	return -bare.Syscall3(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(&path.Buf)), uintptr(unsafe.Pointer(argv.First)), uintptr(unsafe.Pointer(env.First)))
}

// isToolsCommand reports whether people and agents call this command, and hinit-tools implements it. Other commands must start fast, or
// belong to hinit itself.
func isToolsCommand(name string, argv bare.Words) bool {
	if name == "hinit" {
		return argv.N > 1 && argv.At(1) != "init" && argv.At(1) != "run" && argv.At(1) != "demo" && argv.At(2) != "--handover"
	}
	return len(name) > 3 && name[:3] == "s6-" && name != "s6-log" && name != "s6-setuidgid"
}

// await waits until a re-executed PID 1 can have as many threads as before. HINIT_HALTED begins with that number, and is "" if
// enough process numbers are free. With a number, the old program has stopped all other processes (internal/reexec). So only a
// process from outside can have taken a process number. Such a process ends by itself, within a minute. After 2 s few threads are
// enough.
func await(halted string) {
	n := 0
	for i := 0; i < len(halted) && '0' <= halted[i] && halted[i] <= '9'; i++ {
		n = min(10*n+int(halted[i]-'0'), len(held))
	}
	for i := range 600 {
		if i == 20 {
			Short, n = true, min(n, few)
		}
		if !HasRoomFor(n) {
			sleep(100e6)
			continue
		}
		for i := range n { // the kernel may need time to free the number of an ended thread
			for range 1000 {
				if bare.Syscall3(syscall.SYS_TGKILL, 1, held[i], 0) < 0 {
					break
				}
				sleep(1e6)
			}
		}
		return
	}
}

func sleep(nanoseconds int64) {
	t := syscall.Timespec{Nsec: nanoseconds}
	bare.Syscall3(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// HasRoomFor reports whether the process can make this number of further threads. It makes them and lets them end. In a running program
// the caller must have locked its goroutine to its thread.
func HasRoomFor(threads int) bool {
	leave = 0
	made := makeThreads(threads, &leave)
	leave = 1
	const wake = 1 | 128 // FUTEX_WAKE_PRIVATE
	bare.Syscall3(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&leave)), wake, 1<<30)
	return made == threads
}

// Keep makes threads that each hold a process number until execve(2) frees it. In a running program the caller must have locked
// its goroutine to its thread.
func Keep(threads int) { makeThreads(threads, &never) }

// makeThreads makes up to this number of threads that wait for leave, and returns the number of threads that it has made. They block
// every signal, and so does this thread meanwhile. On a busy machine they may still live when the runtime starts, and its signal
// handler would find no g in them.
func makeThreads(threads int, leave *uint32) (made int) {
	all, before := ^uint64(0), uint64(0)
	setMask(&all, &before)
	for made < threads {
		thread := hold(leave)
		if thread < 0 {
			break
		}
		held[made%len(held)] = uintptr(thread)
		made++
	}
	setMask(&before, nil)
	return made
}

// setMask sets the signals that this thread blocks.
func setMask(set, old *uint64) {
	const setmask = 2 // SIG_SETMASK
	bare.Syscall6(syscall.SYS_RT_SIGPROCMASK, setmask, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(*set), 0)
}
