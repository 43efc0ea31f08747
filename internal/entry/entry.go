//go:build linux && (amd64 || arm64)

package entry

import (
	"syscall"
	"unsafe"

	"hinit/internal/entry/bare"
)

var (
	releaseThreads uint32
	neverReleased  uint32      // word that is always 0, so that threads that wait for its change never end
	threadIDs      [64]uintptr // IDs of the threads that makeThreads created last
)

// Static buffers, because there is no heap and the stack can't grow.
var pathBuffer, lineBuffer bare.TextBuffer

// minThreads is the smallest number of threads with which PID 1 works, see internal/tuning.
const minThreads = 20

// leastAddressSpace and leastData are the values of RLIMIT_AS and RLIMIT_DATA below which the Go runtime of PID 1 can't start.
// Below 800 and 80 MiB, some starts of the runtime fail.
const leastAddressSpace, leastData = 730 << 20, 76 << 20

// FewThreads is set if PID 1 must work with as few threads as possible, because the kernel allows no more.
var FewThreads bool

// hold creates a thread that waits until *leave is not 0, and then ends. It returns the ID of the thread, or a negative
// errno.
func hold(leave *uint32) int

// Begin runs before the Go runtime, as the first code of hinit. stack is as for [bare.InitialStack]. It returns the command line
// and the environment. missing means that the command belongs to hinit-tools, and that hinit-tools can't be executed.
func Begin(stack *uintptr) (argv, env bare.CStrings, missing bool) {
	argv, env = bare.InitialStack(stack)
	switch name := bare.BaseName(argv.Index(0)); {
	case name == LimitsProgramName:
		ChangeUserAndExec(argv, env, func(_, _ bare.CStrings) {})
	case argv.Len == 0 || bare.Syscall3(syscall.SYS_GETPID, 0, 0, 0) == 1:
		if env.Getenv("HINIT_HANDOVER") != "" {
			awaitThreads(env.Getenv("HINIT_HALTED"))
		} else {
			checkLimits(env.Getenv("KUBERNETES_SERVICE_HOST") != "")
		}
	case IsToolsCommand(name, argv):
		execTools(argv, env)
		missing = true
	}
	return argv, env, missing
}

// checkLimits ends the process with a message if the Go runtime could not start. The runtime would end it with a stack trace. The
// limit of processes of a pod is in no file of its containers, so checkLimits creates threads to find out.
func checkLimits(inPod bool) {
	space, data := syscall.Rlimit{Cur: ^uint64(0)}, syscall.Rlimit{Cur: ^uint64(0)}
	bare.Syscall6(syscall.SYS_PRLIMIT64, 0, syscall.RLIMIT_AS, 0, uintptr(unsafe.Pointer(&space)), 0)
	bare.Syscall6(syscall.SYS_PRLIMIT64, 0, syscall.RLIMIT_DATA, 0, uintptr(unsafe.Pointer(&data)), 0)
	switch {
	case space.Cur < leastAddressSpace:
		refuse("its address space is limited to less than 730 MiB; start the container with 800 MiB or more, or no limit (prlimit --as)")
	case data.Cur < leastData:
		refuse("its data is limited to less than 76 MiB; start the container with 80 MiB or more (docker: --ulimit data)")
	case inPod && !HasRoomFor(minThreads+5): // the Go runtime starts with 5 threads
		refuse("the pod has no process numbers left for its 25 threads; end processes of the pod, or raise podPidsLimit of the kubelet")
	}
	FewThreads = inPod && !HasRoomFor(len(threadIDs))
}

func refuse(why string) {
	bare.Write(2, lineBuffer.Add("[hinit] cannot run: ").Add(why).Add("\n").String())
	bare.Syscall3(syscall.SYS_EXIT_GROUP, 1, 0, 0)
}

// execTools executes hinit-tools, which is in the directory of this program. It returns only after an error.
func execTools(argv, env bare.CStrings) (errno int) {
	self, tools := "/proc/self/exe\x00", "hinit-tools\x00"
	// Without /proc, the directory is unknown. Use / then, because another user may have made files in the working directory.
	pathBuffer.Len = max(pathBuffer.Add("/").Len, bare.Syscall6(syscall.SYS_READLINKAT, bare.AtFDCWD, uintptr(unsafe.Pointer(unsafe.StringData(self))), uintptr(unsafe.Pointer(&pathBuffer.Buf)), uintptr(len(pathBuffer.Buf)-len(tools)), 0))
	pathBuffer.Len -= len(bare.BaseName(pathBuffer.String()))
	pathBuffer.Add(tools)
	return -bare.Syscall3(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(&pathBuffer.Buf)), uintptr(unsafe.Pointer(argv.First)), uintptr(unsafe.Pointer(env.First)))
}

// IsToolsCommand reports whether hinit-tools carries out this command, a command of people and agents. All other commands must
// start fast, or belong to hinit itself.
func IsToolsCommand(name string, argv bare.CStrings) bool {
	if name == "hinit" {
		return argv.Len > 1 && argv.Index(1) != "init" && argv.Index(1) != "run" && argv.Index(1) != "demo" && argv.Index(2) != "--handover"
	}
	return len(name) > 3 && name[:3] == "s6-" && name != "s6-log" && name != "s6-setuidgid"
}

// awaitThreads blocks, after a re-execution, until PID 1 can create as many threads as the old program had. frozen is the value
// of HINIT_HALTED, which begins with their number. It is "" if enough PIDs were free.
//
// If frozen has a number, the old program has frozen all other processes (internal/reexec). So only a process from outside the
// container can have taken a PID, and such a process ends within a minute. After 2 s, awaitThreads accepts fewer threads.
func awaitThreads(frozen string) {
	n := 0
	for i := 0; i < len(frozen) && '0' <= frozen[i] && frozen[i] <= '9'; i++ {
		n = min(10*n+int(frozen[i]-'0'), len(threadIDs))
	}
	for i := range 600 {
		if i == 20 {
			FewThreads, n = true, min(n, minThreads)
		}
		if !HasRoomFor(n) {
			sleep(100e6)
			continue
		}
		for i := range n { // wait until the threads of HasRoomFor have ended, because the kernel may need time to free their IDs
			for tries := 0; tries < 1000 && bare.Syscall3(syscall.SYS_TGKILL, 1, threadIDs[i], 0) >= 0; tries++ {
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

// HasRoomFor reports whether this process can create the given number of additional threads. It creates them, and lets them
// end. It works before the Go runtime starts. After that, the calling goroutine must be locked to its thread.
func HasRoomFor(threads int) bool {
	releaseThreads = 0
	made := makeThreads(threads, &releaseThreads)
	releaseThreads = 1
	const wake = 1 | 128 // value of FUTEX_WAKE_PRIVATE
	bare.Syscall3(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&releaseThreads)), wake, 1<<30)
	return made == threads
}

// OccupyPIDs creates threads, each of which occupies a PID until execve(2) frees it. In a running program, the goroutine must
// be locked to its thread.
func OccupyPIDs(threads int) { makeThreads(threads, &neverReleased) }

// makeThreads creates at most the given number of threads, which wait for *leave, and returns their number. The threads block
// every signal, and so does this thread during the call. They may still be alive when the runtime starts, and the runtime's
// signal handler can't run on a thread that the runtime does not know.
func makeThreads(threads int, leave *uint32) (made int) {
	all, before := ^uint64(0), uint64(0)
	setSignalMask(&all, &before)
	for made < threads {
		thread := hold(leave)
		if thread < 0 {
			break
		}
		threadIDs[made%len(threadIDs)] = uintptr(thread)
		made++
	}
	setSignalMask(&before, nil)
	return made
}

// setSignalMask sets which signals this thread blocks, and stores the old set in old.
func setSignalMask(set, old *uint64) {
	const setmask = 2
	bare.Syscall6(syscall.SYS_RT_SIGPROCMASK, setmask, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(*set), 0)
}
