package tenants_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/pty"
)

// target describes the victim of an attack.
type target struct {
	dir       string // Directory of the container.
	home      string // Home of the attacker.
	victimDir string // Home of the victim.
	pid       int    // PID of the victim's main process.
}

// attack is one attempt of a tenant. A nil error means success.
type attack struct {
	name               string
	succeedsUnisolated bool // Whether the attack also succeeds without isolation.
	try                func(f target) error
}

// openBefore are the attacks that stay open in all modes until a version of Landlock closes them; 0 means that none does.
//   - Landlock does not confine UDP ports before ABI 10, and a filter of system calls can't read the port, which is in memory.
//   - All processes of a network namespace share the names of abstract sockets.
//   - A process may lock each file that it may read, see flock(2). Package managers and libraries of models lock files of their own.
//   - A mount of /proc that hides other users' processes needs CAP_SYS_ADMIN, and all processes of a network namespace reach the
//     loopback interface.
var openBefore = map[string]int{udpRow: 10, nameRow: 0, lockRow: 0, commandRow: 0, loopbackRow: 0}

// Names of these attacks.
const (
	udpRow  = "listen on its UDP port"
	nameRow = "take the name of its abstract socket while it is down"
	lockRow = "lock a file of the image"

	commandRow  = "read its command line in /proc"
	loopbackRow = "connect to its TCP port on loopback"
)

// succeedsInMode reports whether an attack succeeds in an isolating mode, with this version of Landlock.
func succeedsInMode(attack, mode string, abi int) bool {
	until, is := openBefore[attack]
	return is && (until == 0 || abi < until) || mode == "files" && slices.Contains(openInFiles, attack)
}

// openInFiles are the attacks that isolation: files leaves open, because all profiles share one
// user or Landlock lacks a rule.
var openInFiles = []string{
	"connect to its Unix socket", "change the mode of its .env", "change the times of its .env",
	"list the attributes of its .env", "change the ACL of its .env", "watch its home", "watch its log", "open its terminal", "take more processes than its limit",
}

// attacksOnProfile are attacks on the victim's files and processes, and on PID 1.
var attacksOnProfile = []attack{
	{"read its .env", true, func(f target) error { return read(f.victimDir + "/.env") }},
	{"list its home", true, func(f target) error { _, err := os.ReadDir(f.victimDir); return err }},
	{"write a file into its home", true, func(f target) error { return os.WriteFile(f.victimDir+"/planted", nil, 0o600) }},
	{"read its .env by a symbolic link", true, func(f target) error {
		return errors.Join(os.Symlink(f.victimDir+"/.env", f.home+"/link"), read(f.home+"/link"))
	}},
	{"read its .env by a hard link", true, func(f target) error {
		return errors.Join(os.Link(f.victimDir+"/.env", f.home+"/hard"), read(f.home+"/hard"))
	}},
	{"change the mode of its .env", true, func(f target) error { return os.Chmod(f.victimDir+"/.env", 0o600) }},
	{"change the times of its .env", true, func(f target) error { return os.Chtimes(f.victimDir+"/.env", time.Now(), time.Now()) }},
	{"list the attributes of its .env", true, func(f target) error {
		_, err := unix.Listxattr(f.victimDir+"/.env", nil)
		return err
	}},
	{"change the ACL of its .env", true, func(f target) error {
		const list = "\x02\x00\x00\x00" + // Version, then tag, permissions and ID of each entry (linux/posix_acl_xattr.h).
			"\x01\x00\x06\x00\xff\xff\xff\xff" + "\x04\x00\x00\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"
		return unix.Setxattr(f.victimDir+"/.env", "system.posix_acl_access", []byte(list), 0)
	}},
	{"watch its home", true, func(f target) error { return watch(f.victimDir) }},
	{"watch its log", true, func(f target) error { return watch(f.dir + "/home/logs/gateways/" + name(1)) }},
	{"open its terminal", true, func(target) error {
		err := errors.New("there is none")
		terminals, _ := filepath.Glob("/dev/pts/[0-9]*")
		for _, path := range terminals {
			var fd int
			if fd, err = unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0); err == nil {
				return unix.Close(fd)
			}
		}
		return err
	}},
	{"move its home away", true, func(f target) error {
		return errors.Join(os.Rename(f.victimDir, f.victimDir+".moved"), os.Rename(f.victimDir+".moved", f.victimDir))
	}},
	{"make it wait for a file of the image by a lease", true, func(f target) error { // Any process of the owner can take a lease on a file.
		err := os.WriteFile(f.home+"/leased", nil, 0o600)
		if err != nil {
			return err
		}
		file, err := os.Open(f.home + "/leased")
		if err == nil {
			defer file.Close()
			_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		}
		return err
	}},
	{"open its FIFO", true, func(f target) error {
		fd, err := unix.Open(f.victimDir+"/fifo", unix.O_RDWR|unix.O_NONBLOCK, 0)
		return errors.Join(err, unix.Close(max(fd, 3)))
	}},
	{"connect to its Unix socket", true, func(f target) error { return connect("unix", f.victimDir+"/socket") }},
	{"connect to its abstract socket", true, func(f target) error { return connect("unix", "@victim-"+filepath.Base(f.dir)) }},
	{"listen on a port of a profile that is down", true, func(target) error { return listen("tcp", takenPort) }},
	{"take its port from those that the kernel chooses", true, func(target) error { return listenByChance(chosenPort) }},
	{udpRow, true, func(target) error {
		c, err := net.ListenPacket("udp", "127.0.0.1:"+strconv.Itoa(takenPort))
		return errors.Join(err, closed(c))
	}},
	{nameRow, true, func(f target) error {
		l, err := net.Listen("unix", "@down-"+filepath.Base(f.dir))
		return errors.Join(err, closed(l))
	}},
	{lockRow, true, func(target) error {
		file, err := os.Open("/etc/passwd")
		if err != nil {
			return err
		}
		defer file.Close()
		return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}},
	{"lock the data directory", false, func(f target) error {
		dir, err := os.Open(f.dir + "/home")
		if err != nil {
			return err
		}
		defer dir.Close()
		return unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	}},
	{"read its temporary files", true, func(target) error {
		found, _ := filepath.Glob("/tmp/hinit-" + name(1) + "-*/secret")
		if len(found) == 0 {
			found = []string{"/tmp/secret-of-" + name(1)}
		}
		return read(found[0])
	}},
	{"write into the shared /tmp", true, func(f target) error { return os.WriteFile("/tmp/"+filepath.Base(f.dir), nil, 0o600) }},
	{"write into /dev/shm", true, func(f target) error { return os.WriteFile("/dev/shm/"+filepath.Base(f.dir), nil, 0o600) }},
	{"make System V shared memory", true, func(target) error {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
		if err == nil {
			_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
		return err
	}},
	{"make a System V semaphore", true, func(target) error {
		id, _, errno := unix.Syscall(unix.SYS_SEMGET, unix.IPC_PRIVATE, 1, unix.IPC_CREAT|0o600)
		if errno != 0 {
			return errno
		}
		return syscall3(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID)
	}},
	{"make a POSIX message queue", true, func(f target) error {
		name, _ := unix.BytePtrFromString(filepath.Base(f.dir)) // The name contains no NUL.
		fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return errors.Join(unix.Close(int(fd)), syscall3(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0))
	}},
	{commandRow, true, func(f target) error { return read(proc(f, "cmdline")) }},
	{loopbackRow, true, func(target) error { return connect("tcp", "127.0.0.1:"+strconv.Itoa(victimPort)) }},
	{"read its environment in /proc", true, func(f target) error { return read(proc(f, "environ")) }},
	{"open its memory in /proc", false, func(f target) error { return open(proc(f, "mem")) }},
	{"read its .env by /proc/PID/root", true, func(f target) error { return read(proc(f, "root") + f.victimDir + "/.env") }},
	{"read its .env by /proc/PID/cwd", false, func(f target) error { return read(proc(f, "cwd") + "/.env") }},
	{"follow its descriptors in /proc", true, func(f target) error { _, err := os.Readlink(proc(f, "fd/0")); return err }},
	{"raise its oom_score_adj", true, func(f target) error { return os.WriteFile(proc(f, "oom_score_adj"), []byte("1000"), 0) }},
	{"lower its own oom_score_adj", false, func(target) error {
		const path = "/proc/self/oom_score_adj"
		text, err := os.ReadFile(path)
		now, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
		return errors.Join(err, err2, os.WriteFile(path, []byte(strconv.Itoa(now-1)), 0))
	}},
	{"signal it", true, func(f target) error { return syscall.Kill(f.pid, syscall.SIGCONT) }},
	{"signal it by a pidfd", true, func(f target) error {
		fd, err := unix.PidfdOpen(f.pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
	}},
	{"stop it by a descriptor", true, func(f target) error { return stopAsOwner(f.pid) }},
	{"trace it", false, func(f target) error { return syscall3(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(f.pid), 0) }},
	{"read its memory by process_vm_readv", false, func(f target) error { return syscall3(unix.SYS_PROCESS_VM_READV, uintptr(f.pid), 0, 0) }},
	{"take its descriptor by pidfd_getfd", false, func(f target) error {
		fd, err := unix.PidfdOpen(f.pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return syscall3(unix.SYS_PIDFD_GETFD, uintptr(fd), 0, 0)
	}},
	{"read its log", true, func(f target) error { return read(f.dir + "/home/logs/gateways/" + name(1) + "/current") }},
	{"write into the data directory", true, func(f target) error { return os.WriteFile(f.dir+"/home/active_profile", []byte(name(0)), 0o600) }},
	{"write into .hinit", false, func(f target) error { return os.WriteFile(f.dir+"/home/.hinit/planted", nil, 0o600) }},
	{"make a profile", true, func(f target) error { return os.Mkdir(f.dir+"/home/profiles/planted", 0o700) }},
	{"read hinit.yaml", true, func(f target) error { return read(f.dir + "/hinit.yaml") }},
	{"ask hinit for the status", true, func(f target) error {
		_, err := dial.New(f.dir+"/run/control.sock").Status(context.Background(), name(1))
		return err
	}},
	{"stop it through hinit", true, func(f target) error {
		_, err := dial.New(f.dir+"/run/control.sock").Stop(context.Background(), name(3), client.WaitOptions{})
		return err
	}},
	{"read the environment of PID 1", false, func(target) error { return read("/proc/1/environ") }},
	{"signal PID 1", false, func(target) error { return syscall.Kill(1, syscall.SIGHUP) }},
	{"trace PID 1", false, func(target) error { return syscall3(unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0) }},
	{"make a user namespace", false, func(target) error { return unshareInChild(unix.CLONE_NEWUSER) }},
	{"mount a file system", false, func(target) error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") }},
	{"add a key to the session", false, func(target) error { return syscall3(unix.SYS_KEYCTL, 0, 0, 0) }},
	{"load a BPF program", false, func(target) error { return syscall3(unix.SYS_BPF, 0, 0, 0) }},
	{"make a userfaultfd", false, func(target) error { return syscall3(unix.SYS_USERFAULTFD, 1, 0, 0) }},
	{"make an io_uring", false, func(target) error {
		var params [120]byte
		return syscall3(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	}},
	{"take the machine's asynchronous I/O", true, func(target) error {
		var all uintptr
		// The call takes one of the requests that fs.aio-max-nr allows.
		err := syscall3(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&all)), 0)
		return errors.Join(err, syscall3(unix.SYS_IO_DESTROY, all, 0, 0))
	}},
	{"leave its project quota by FS_IOC_FSSETXATTR", true, func(f target) error {
		return withOwnFile(f, func(fd uintptr) error {
			var attributes [28]byte                                                               // Memory of a struct fsxattr.
			err := syscall3(unix.SYS_IOCTL, fd, 0x801c581f, uintptr(unsafe.Pointer(&attributes))) // The request is FS_IOC_FSGETXATTR.
			return errors.Join(err, syscall3(unix.SYS_IOCTL, fd, 0x401c5820, uintptr(unsafe.Pointer(&attributes))))
		})
	}},
	{"leave its project quota by FS_IOC_SETFLAGS", true, func(f target) error {
		return withOwnFile(f, func(fd uintptr) error {
			flags, err := unix.IoctlGetUint32(int(fd), unix.FS_IOC_GETFLAGS)
			return errors.Join(err, unix.IoctlSetPointerInt(int(fd), unix.FS_IOC_SETFLAGS, int(flags)))
		})
	}},
	{setattrRow, true, func(f target) error {
		return withOwnFile(f, func(fd uintptr) error {
			var attributes [24]byte // Memory of a struct file_attr.
			at, empty := uintptr(unsafe.Pointer(&attributes)), new(byte)
			get := syscall6(unix.SYS_FILE_GETATTR, fd, uintptr(unsafe.Pointer(empty)), at, unsafe.Sizeof(attributes), unix.AT_EMPTY_PATH)
			set := syscall6(unix.SYS_FILE_SETATTR, fd, uintptr(unsafe.Pointer(empty)), at, unsafe.Sizeof(attributes), unix.AT_EMPTY_PATH)
			return errors.Join(get, set)
		})
	}},
	{"give its terminal another driver", true, func(target) error {
		near, _, err := pty.Open()
		if err != nil {
			return err
		}
		defer near.Close()
		return unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSETD, 0)
	}},
	{"talk to the host of the virtual machine", false, func(target) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM) }},
	{"use the kernel's ciphers", false, func(target) error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET) }},
	{"watch all of the file system by fanotify", false, func(target) error {
		fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, 0)
		return errors.Join(err, unix.Close(max(fd, 3)))
	}},
	{"move the pages of its memory", false, func(f target) error { return syscall3(unix.SYS_MOVE_PAGES, uintptr(f.pid), 0, 0) }},
	{"listen by multipath TCP", false, func(target) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: takenPort}), unix.Listen(fd, 1))
	}},
	{"gain rights by a set-user-id program", false, func(target) error {
		on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
		if err == nil && on == 1 {
			err = unix.EPERM
		}
		return err
	}},
	{"slow it down with another priority", true, func(f target) error { return syscall.Setpriority(syscall.PRIO_PROCESS, f.pid, 10) }},
	{"slow its disk accesses down", true, func(f target) error {
		const process, idle = 1, 3 << 13 // Values of IOPRIO_WHO_PROCESS and IOPRIO_CLASS_IDLE.
		return syscall3(unix.SYS_IOPRIO_SET, process, uintptr(f.pid), idle)
	}},
	{"give it another scheduler", true, func(f target) error {
		const batch = 3
		priority := int32(0)
		return syscall3(unix.SYS_SCHED_SETSCHEDULER, uintptr(f.pid), batch, uintptr(unsafe.Pointer(&priority)))
	}},
	{"take its cores by PR_SCHED_CORE", false, func(f target) error {
		return unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_SHARE_TO, uintptr(f.pid), 0, 0)
	}},
	{"lower its resource limits", true, func(f target) error {
		return unix.Prlimit(f.pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	}},
	{"leave the run of the attacker with another mark", true, func(target) error {
		var own unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_RTTIME, &own); err != nil {
			return err
		}
		return unix.Setrlimit(unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: own.Cur - 1, Max: own.Max - 1})
	}},
	{"take more processes than its limit", false, func(target) error { return manyProcesses(2 * maxProcesses) }},
	{"raise its own priority", false, func(target) error { return syscall.Setpriority(syscall.PRIO_PROCESS, 0, -5) }},
	{"run in real time", false, func(target) error {
		const fifo = 1
		priority := int32(1)
		return syscall3(unix.SYS_SCHED_SETSCHEDULER, 0, fifo, uintptr(unsafe.Pointer(&priority)))
	}},
	{"choose its own processors", true, func(target) error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return err
		}
		return unix.SchedSetaffinity(0, &set)
	}},
	{"bind it to one processor", true, func(f target) error {
		var set unix.CPUSet
		set.Set(0)
		return unix.SchedSetaffinity(f.pid, &set)
	}},
}

func proc(f target, file string) string { return "/proc/" + strconv.Itoa(f.pid) + "/" + file }

func read(path string) error {
	text, err := os.ReadFile(path)
	if err == nil && len(text) == 0 {
		return errors.New("it is empty")
	}
	return err
}

func watch(dir string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		defer unix.Close(fd)
		_, err = unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS)
	}
	return err
}

func open(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

func syscall3(number, a, b, c uintptr) error { return syscall6(number, a, b, c, 0, 0) }

func syscall6(number, a, b, c, d, e uintptr) error {
	_, _, errno := unix.Syscall6(number, a, b, c, d, e, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// stopAsOwner stops a process by making it the owner of a descriptor (F_SETOWN), to which the
// kernel sends a chosen signal.
func stopAsOwner(pid int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	send := func(signal syscall.Signal) error {
		_, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETSIG, int(signal))
		if err == nil {
			_, err = unix.Write(pair[1], []byte{0})
		}
		return err
	}
	_, err = unix.FcntlInt(uintptr(pair[0]), unix.F_SETOWN, pid)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(pair[0]), unix.F_SETFL, unix.O_ASYNC)
	}
	if err = errors.Join(err, send(syscall.SIGSTOP)); err != nil {
		return err
	}
	err = errors.New("it does not stop")
	for range 20 {
		stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "T") {
			err = nil
			break
		}
		time.Sleep(10 * time.Millisecond) // The kernel does not report when another process stops.
	}
	return errors.Join(err, send(syscall.SIGCONT))
}

// withOwnFile calls do with a new file in the attacker's home.
func withOwnFile(f target, do func(fd uintptr) error) error {
	file, err := os.CreateTemp(f.home, "own-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	return do(file.Fd())
}

func socket(family, kind int) error {
	fd, err := unix.Socket(family, kind, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func connect(network, address string) error {
	c, err := net.DialTimeout(network, address, time.Minute)
	if err != nil {
		return err
	}
	return c.Close()
}

func listen(network string, port int) error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), network, "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return err
	}
	return l.Close()
}

// listenByChance tries to listen on the port, directly or by letting the kernel choose ports until it
// chooses this one.
func listenByChance(port int) error {
	err := listen("tcp", port)
	for range 20 * chosenPorts {
		if err == nil {
			return nil
		}
		l, errAny := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
		if errAny != nil {
			return errAny
		}
		if l.Addr().(*net.TCPAddr).Port == port {
			err = nil
		}
		_ = l.Close()
	}
	return err
}

// maxProcesses is pids.max of each profile.
const maxProcesses = 250

// manyProcesses runs many processes at the same time.
func manyProcesses(n int) error {
	var pids []int
	defer func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	}()
	for range n {
		pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "100"}, &syscall.ProcAttr{})
		if err != nil {
			return err
		}
		pids = append(pids, pid)
	}
	return nil
}

// unshareInChild creates a namespace for a process that exits at once.
func unshareInChild(flags uintptr) error {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	return cmd.Run()
}

// runAttacker is the attacking gateway. It writes a report, and leaves a daemon that resists the stop.
func runAttacker() {
	f := target{dir: os.Getenv("TENANTS_DIR")}
	f.home, f.victimDir = f.dir+"/home/profiles/"+name(0), f.dir+"/home/profiles/"+name(1)
	for f.pid == 0 {
		f.pid, _ = gatewayOf(1)
	}
	daemon := exec.Command("/bin/sh", "-c", `trap "" TERM HUP; while :; do sleep 1; done`, "daemon-of-"+filepath.Base(f.dir))
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	daemon.Env = []string{"PATH=/usr/bin:/bin"} // Without the run's tag, hinit does not recognise the daemon.
	r := report{Open: map[string]string{}, How: map[string]string{}}
	if err := daemon.Start(); err != nil {
		r.How["daemon"] = err.Error()
	}
	for _, a := range attacks {
		if err := a.try(f); err != nil {
			r.How[a.name] = err.Error()
		} else {
			r.Open[a.name] = "it could be done"
		}
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(f.home+"/report.new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(f.home+"/report.new", f.home+"/report")
	}
	fmt.Println("report:", err)
	waitForStop()
}

// runVictim is a gateway with targets for the attacks.
func runVictim() {
	who := os.Args[1]
	dir := os.Getenv("TENANTS_DIR")
	home := dir + "/home/profiles/" + who
	switch who {
	case "-p": // This role imitates a command of `docker exec`.
		time.Sleep(50 * time.Millisecond) // The attacker reads the victim's files in /proc in this time.
		return
	case "page": // the test waits for the status page
		if err := requestStatusPage(http.MethodGet, "/service/gateway-"+name(1), http.Header{"Authorization": {"Bearer " + webToken}}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	case "profile": // hinit lets the agent delete a profile.
		return
	case name(1):
	default:
		waitForStop()
		return
	}
	temporary := os.Getenv("TMPDIR")
	secret := temporary + "/secret"
	if temporary == "" {
		secret = "/tmp/secret-of-" + who
	}
	_, errSocket := net.Listen("unix", home+"/socket")
	_, errAbstract := net.Listen("unix", "@victim-"+filepath.Base(dir))
	_, errPort := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(victimPort))
	near, _, errTerminal := pty.Open()
	if errTerminal == nil {
		defer near.Close()
	}
	for range 2 << 10 { // The lines exceed the size of a log file.
		fmt.Println(strings.Repeat("x", 1<<10))
	}
	dumpCore(home)
	fmt.Println("victim:", errors.Join(
		errTerminal, errSocket, errAbstract, errPort, unix.Mkfifo(home+"/fifo", 0o600), os.WriteFile(secret, []byte("x"), 0o600), os.WriteFile(home+"/ready", nil, 0o600),
	))
	waitForStop()
}

func waitForStop() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
}
