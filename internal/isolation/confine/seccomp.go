package confine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refusedCalls lists system calls that an agent's tools do not need, and that could break the isolation or expose large parts
// of the kernel to attacks.
var refusedCalls = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_OPEN_TREE_ATTR,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_FILE_SETATTR, unix.SYS_FANOTIFY_INIT, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES,
	unix.SYS_SCHED_SETAFFINITY, // hinit limits a greedy profile to some processors, and the profile must not undo that
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL,
	unix.SYS_SEMGET, unix.SYS_SEMCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
	unix.SYS_IO_SETUP, // all users of the machine share the limit /proc/sys/fs/aio-max-nr
}

// refusedCallsByArch lists more refused system calls by architecture: modify_ldt(2) on amd64, and kexec_file_load(2),
// semop(2) and semtimedop(2). Package unix lacks their numbers for some architectures.
var refusedCallsByArch = map[string][]uint32{"amd64": {154, 320, 65, 220}, "arm64": {294, 193, 192}}

// refusedIoctls lists requests of ioctl(2) that the filter refuses.
var refusedIoctls = []uint32{
	unix.TIOCSTI, unix.TIOCLINUX, // requests that put input into a terminal from which another process may read
	unix.TIOCSETD, // sets the line discipline of a terminal, a driver in the kernel
	// With these requests the owner of a file could evade the quota of its project or Btrfs subvolume.
	unix.FS_IOC_SETFLAGS, fsSetXattr, btrfsSnapshot, btrfsSubvolume, btrfsSnapshotV2, btrfsSubvolumeV2,
}

const (
	fsSetXattr       = 0x401c5820
	btrfsSnapshot    = 0x50009401
	btrfsSubvolume   = 0x5000940e
	btrfsSnapshotV2  = 0x50009417
	btrfsSubvolumeV2 = 0x50009418
)

// allowedFamilies lists the address families of sockets that programs need. The filter refuses all others.
var allowedFamilies = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// Offsets in seccomp_data of the fields that the filter reads (seccomp(2)). Arguments have 64 bits, the low half first. The
// filter reads only the low half of an argument that is a number.
const (
	numberOffset    = 0
	archOffset      = 4
	arg0Offset      = 16
	arg1Offset      = 24
	arg2Offset      = 32
	upperHalfOffset = 4 // distance in bytes from the low half of an argument to its high half
)

// namespaceFlags are the flags by which clone(2) makes namespaces.
const namespaceFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// x32Bit is a bit in the number of every system call of the x32 ABI. Other numbers are smaller.
const x32Bit = 0x40000000

// ioprioUser is IOPRIO_WHO_USER: with it, ioprio_set(2) changes all processes of a user.
const ioprioUser = 3

var auditArches = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

func returnErrno(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

func loadWord(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offset, Size: 4} }

// syscallFilter returns the BPF program that the kernel runs before each system call of an isolated process. Calls of another
// architecture fail, because their numbers mean other calls.
//
// To install a filter, the kernel runs it once for each number of a system call. Binary search for the number makes the start
// of each isolated process 0.2 ms faster than a list.
func syscallFilter() []bpf.Instruction {
	program := []bpf.Instruction{
		loadWord(archOffset),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArches[runtime.GOARCH], SkipTrue: 1},
		returnErrno(unix.ENOSYS),
		loadWord(numberOffset),
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32Bit, SkipTrue: 1},
		returnErrno(unix.ENOSYS),
	}
	checks := callChecks()
	return append(program, searchNumbers(slices.Sorted(maps.Keys(checks)), checks)...)
}

// searchNumbers returns instructions that search the loaded number of a system call in numbers, which must be sorted. For a
// found number, they execute its checks. They permit any other number.
func searchNumbers(numbers []uint32, checks map[uint32][]bpf.Instruction) (program []bpf.Instruction) {
	if half := len(numbers) / 2; half > 1 {
		lower := searchNumbers(numbers[:half], checks)
		program = append(program, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: numbers[half], SkipTrue: 1}, bpf.Jump{Skip: uint32(len(lower))})
		return slices.Concat(program, lower, searchNumbers(numbers[half:], checks))
	}
	for _, number := range numbers {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: uint8(len(checks[number]))})
		program = append(program, checks[number]...)
	}
	return append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}

// callChecks returns instructions for the system calls that the filter refuses, or whose arguments it checks.
func callChecks() map[uint32][]bpf.Instruction {
	checks := make(map[uint32][]bpf.Instruction)
	for _, number := range slices.Concat(refusedCalls, refusedCallsByArch[runtime.GOARCH]) {
		checks[number] = []bpf.Instruction{returnErrno(unix.EPERM)}
	}
	// A filter can't read the flags of clone3, which are in memory. So clone3 fails, and programs use clone.
	checks[unix.SYS_CLONE3] = []bpf.Instruction{returnErrno(unix.ENOSYS)}
	failIf := func(number, argument uint32, errno unix.Errno, values ...uint32) {
		checks[number] = append(checks[number], checkArgument(argument, values, bpf.Jump{Skip: 1}, returnErrno(errno))...)
	}
	failUnless := func(number, argument uint32, errno unix.Errno, values ...uint32) {
		checks[number] = append(checks[number], checkArgument(argument, values, returnErrno(errno))...)
	}
	checks[unix.SYS_CLONE] = []bpf.Instruction{loadWord(arg0Offset), bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaceFlags, SkipTrue: 1}, returnErrno(unix.EPERM)}
	// Profiles with the same user could change priorities and limits of each other's processes. So only process 0 is accepted,
	// which means the caller.
	for _, number := range []uint32{unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR} {
		failUnless(number, arg0Offset, unix.EPERM, 0)
	}
	for number, ofUser := range map[uint32]uint32{unix.SYS_SETPRIORITY: unix.PRIO_USER, unix.SYS_IOPRIO_SET: ioprioUser} {
		failUnless(number, arg1Offset, unix.EPERM, 0)
		failIf(number, arg0Offset, unix.EPERM, ofUser)
	}
	// The value of RLIMIT_RTTIME is the mark by which hinit finds the processes of a run (package proc). With another value, a
	// process could pass for a process of another profile. A process may read the value: then the address of the new limit is
	// 0.
	failIf(unix.SYS_SETRLIMIT, arg0Offset, unix.EPERM, unix.RLIMIT_RTTIME)
	checks[unix.SYS_PRLIMIT64] = append(
		checks[unix.SYS_PRLIMIT64],
		loadWord(arg1Offset), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.RLIMIT_RTTIME, SkipTrue: 5},
		loadWord(arg2Offset), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 2},
		loadWord(arg2Offset+upperHalfOffset), bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		returnErrno(unix.EPERM),
	)
	// With core scheduling, a process can put other processes of its user into its own group. While a process of a group runs,
	// processes outside the group can't use the other threads of the same processor core.
	failIf(unix.SYS_PRCTL, arg0Offset, unix.EPERM, unix.PR_SCHED_CORE)
	// With a lease, the owner of a file can make each open of it wait 45 s. Profiles with the same user share the files of
	// the image.
	failIf(unix.SYS_FCNTL, arg1Offset, unix.EPERM, unix.F_SETLEASE)
	failIf(unix.SYS_IOCTL, arg1Offset, unix.EPERM, refusedIoctls...)
	// Landlock does not restrict the ports of multipath TCP, SMC and SCTP, so the filter refuses such sockets. Programs use TCP
	// instead.
	failIf(unix.SYS_SOCKET, arg2Offset, unix.EPROTONOSUPPORT, unix.IPPROTO_MPTCP, unix.IPPROTO_SMC, unix.IPPROTO_SCTP)
	failUnless(unix.SYS_SOCKET, arg0Offset, unix.EAFNOSUPPORT, allowedFamilies...)
	failUnless(unix.SYS_SOCKETPAIR, arg0Offset, unix.EAFNOSUPPORT, allowedFamilies...)
	for number, check := range checks {
		if len(check) > 1 { // the call has passed all checks
			checks[number] = append(check, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
		}
	}
	return checks
}

// checkArgument returns instructions that skip the first of next if the argument at this offset of seccomp_data is one of
// values.
func checkArgument(argument uint32, values []uint32, next ...bpf.Instruction) []bpf.Instruction {
	program := []bpf.Instruction{loadWord(argument)}
	for i, value := range values {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: uint8(len(values) - i)})
	}
	return append(program, next...)
}

// assembleFilter returns the filter in the binary form of seccomp(2).
func assembleFilter() (code []byte, err error) {
	if auditArches[runtime.GOARCH] == 0 {
		return nil, fmt.Errorf("cannot filter system calls: hinit has no filter for %s", runtime.GOARCH)
	}
	raw, err := bpf.Assemble(syscallFilter())
	if err != nil {
		return nil, fmt.Errorf("cannot assemble the filter of system calls: %w", err)
	}
	for _, r := range raw {
		code = binary.NativeEndian.AppendUint16(code, r.Op)
		code = binary.NativeEndian.AppendUint32(append(code, r.Jt, r.Jf), r.K)
	}
	return code, nil
}
