//go:build linux && (amd64 || arm64)

package entry

import (
	"syscall"
	"unsafe"
)

// threads is how many threads have to be possible at once. A command of hinit begins with 4 to 6, and others take numbers meanwhile.
const threads = 8

// The thread that runs before the runtime. A g of zeros has the lowest stack there can be, so every check of it passes.
var (
	g0     [64]uintptr
	thread [2]uintptr // where amd64 finds it
	leave  uint32
	never  uint32      // is 0 for good
	held   [64]uintptr // the threads of the last fill
)

// few is how many threads PID 1 needs at the least, see internal/tuning.
const few = 20

// Short says that PID 1 can have no more than the fewest threads.
var Short bool

// Only the assembly names these.
var _, _, _ = begin, &g0, &thread

// hold makes a thread that waits until leave isn't 0, and returns its number, or an errno below zero.
func hold(leave *uint32) int

// begin is called by hinit_entry with the stack of a new process: argc, argv, a null pointer, the environment, a null pointer.
func begin(stack *uintptr) {
	argc := int(*stack)
	argv := words{(*uintptr)(unsafe.Add(unsafe.Pointer(stack), unsafe.Sizeof(*stack))), argc}
	env := words{(*uintptr)(unsafe.Add(unsafe.Pointer(stack), uintptr(argc+2)*unsafe.Sizeof(*stack))), 1 << 16}
	if argc > 0 && base(argv.at(0)) == become {
		change(argv, env)
		return
	}
	if argc == 0 || syscall3(syscall.SYS_GETPID, 0, 0, 0) == 1 {
		if env.get("HINIT_HANDOVER") != "" {
			await(env.get("HINIT_HALTED"))
		}
		return
	}
	name := base(argv.at(0))
	if !command(name, argv) {
		return
	}
	missing := !isTools()
	if missing {
		becomeTools(argv, env)
	}
	if !missing && Room(threads) {
		return
	}
	if code := run(name, argv, env, missing); code >= 0 {
		syscall3(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

// tools is the program that has the commands, beside hinit.
const tools = "hinit-tools\x00"

// isTools reports whether this program is hinit-tools. It leaves the path of the program's directory, with its slash, in path.
func isTools() bool {
	self := "/proc/self/exe\x00"
	path.n = max(0, syscall6(syscall.SYS_READLINKAT, here, uintptr(unsafe.Pointer(unsafe.StringData(self))), uintptr(unsafe.Pointer(&path.buf)), uintptr(len(path.buf)-len(tools)), 0))
	name := base(path.string())
	path.n -= len(name)
	return name == tools[:len(tools)-1]
}

// becomeTools executes hinit-tools in the directory that [isTools] has left. It returns only if that fails.
func becomeTools(argv, env words) {
	path.add(tools)
	syscall3(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(&path.buf)), uintptr(unsafe.Pointer(argv.first)), uintptr(unsafe.Pointer(env.first)))
}

// command reports whether hinit-tools has what the words say, and people and agents call it. Others have to be fast, or are hinit's own.
func command(name string, argv words) bool {
	if name == "hinit" {
		return argv.n > 1 && argv.at(1) != "init" && argv.at(1) != "run" && argv.at(1) != "demo" && argv.at(2) != "--handover"
	}
	return len(name) > 3 && name[:3] == "s6-" && name != "s6-log" && name != "s6-setuidgid"
}

// await waits until a re-executed PID 1 can have the threads that it had before: the first number of HINIT_HALTED, which is "" where
// room is plenty. Everything else is stopped then (internal/reexec), so only a process that came from outside can have taken a
// number. Such a process ends by itself, within a minute. After 2 s few threads are enough.
func await(halted string) {
	n := 0
	for i := 0; i < len(halted) && '0' <= halted[i] && halted[i] <= '9'; i++ {
		n = min(10*n+int(halted[i]-'0'), len(held))
	}
	for i := range 600 {
		if i == 20 {
			Short, n = true, min(n, few)
		}
		if !Room(n) {
			sleep(100e6)
			continue
		}
		for i := range n { // the kernel may let a thread end later than it was told to
			for range 1000 {
				if syscall3(syscall.SYS_TGKILL, 1, held[i], 0) < 0 {
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
	syscall3(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// Room reports whether the process can have so many threads more. It makes them and lets them end. A caller in a running program must
// have locked its goroutine to its thread.
func Room(threads int) bool {
	leave = 0
	made := fill(threads, &leave)
	leave = 1
	const wake = 1 | 128 // FUTEX_WAKE_PRIVATE
	syscall3(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&leave)), wake, 1<<30)
	return made == threads
}

// Keep makes threads that hold a process number each until execve(2) frees it. A caller in a running program must have locked its
// goroutine to its thread.
func Keep(threads int) { fill(threads, &never) }

// fill makes threads that wait for leave, as many as there can be, and says how many there are. They block every signal, as this
// thread does while it makes them. On a busy machine they live on beside the runtime, and its signal handler would find no g in
// them.
func fill(threads int, leave *uint32) (made int) {
	all, before := ^uint64(0), uint64(0)
	mask(&all, &before)
	for made < threads {
		thread := hold(leave)
		if thread < 0 {
			break
		}
		held[made%len(held)] = uintptr(thread)
		made++
	}
	mask(&before, nil)
	return made
}

// mask sets the signals that this thread blocks.
func mask(set, old *uint64) {
	const setmask = 2 // SIG_SETMASK
	syscall6(syscall.SYS_RT_SIGPROCMASK, setmask, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(*set), 0)
}

// words is a list of C strings that ends with a null pointer or after n.
type words struct {
	first *uintptr
	n     int
}

// at returns a word, "" behind the end. Its bytes are on the stack and do not change.
func (w words) at(i int) string {
	if i >= w.n {
		return ""
	}
	p := *(**byte)(unsafe.Add(unsafe.Pointer(w.first), uintptr(i)*unsafe.Sizeof(*w.first)))
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return unsafe.String(p, n)
}

// get looks up a variable of an environment.
func (w words) get(name string) string {
	for i := range w.n {
		v := w.at(i)
		if v == "" {
			break
		}
		if len(v) > len(name) && v[len(name)] == '=' && v[:len(name)] == name {
			return v[len(name)+1:]
		}
	}
	return ""
}

func base(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// syscall3 returns an errno below zero.
func syscall3(nr, a, b, c uintptr) int { return syscall6(nr, a, b, c, 0, 0) }

func syscall6(nr, a, b, c, d, e uintptr) int {
	r, _, errno := syscall.RawSyscall6(nr, a, b, c, d, e, 0)
	if errno != 0 {
		return -int(errno)
	}
	return int(r)
}
