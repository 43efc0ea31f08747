package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/pty"
)

// The limits of each profile in the tests of resources, and what they share.
const (
	maxFiles    = 1024
	maxMemory   = 100 << 20
	volumeSize  = 64 << 20
	volumeNodes = 8000
	tmpSize     = 16 << 20
	quota       = 8 << 20
	ports       = 4096 // Number of ports from firstPort on from which the kernel chooses.
	firstPort   = 40000
)

// resource is something that a tenant can take all of.
type resource struct {
	name    string
	exhaust func(f target) (release func(), err error) // The attacker calls it. An error means that the attacker could not take the resource.
	// attempt or check fails during exhaust if its profile is starved. If both are nil, the profile is starved when exhaust succeeds.
	attempt          func(f target) error // The victim calls it. An error means that the victim lacks the resource.
	check            func(c *container) error
	exhaustedMessage string // What limits the attacker, or why nothing does.
	// open are the modes in which a profile can take all of it. A limit of this name prevents that where a control group enforces
	// the limit.
	open  []string
	limit string
	// stopped is the cause with which hinit then stops the attacker, in such modes.
	stopped string
	never   []string // Modes in which hinit does not limit the resource.
	// protectedModes are the modes in which hinit protects the victim's share while the attacker is still active.
	protectedModes []string
}

var (
	everyMode = []string{"none", "files", "user"}
	oneUser   = []string{"none", "files"}
)

var resources = []resource{
	{
		name: "space to record an order", exhaust: func(f target) (func(), error) { return fillFileSystem(f.home) }, check: checkStop,
		exhaustedMessage: "the reserve in each home",
	},
	{
		name: "space of the volume", exhaust: func(f target) (func(), error) { return fillFileSystem(f.home) }, attempt: func(f target) error { return writeSmallFile(f.victimDir) },
		exhaustedMessage: "quota.stop within seconds, a quota of the file system before", open: everyMode, stopped: "quota",
	},
	{
		name: "space, by a file without a name", exhaust: func(f target) (func(), error) {
			release, err := fillFileSystem(f.home)
			return release, errors.Join(err, os.Remove(f.home+"/fill"))
		}, attempt: func(f target) error { return writeSmallFile(f.victimDir) },
		exhaustedMessage: "the same", open: everyMode, stopped: "quota",
	},
	{
		name: "space, by a deleted file of a daemon", exhaust: func(f target) (func(), error) { return fillWithDeletedFile(f, f.home, "open") },
		attempt:          func(f target) error { return writeSmallFile(f.victimDir) },
		exhaustedMessage: "the same: the daemon has the mark of its run, or the user of its profile", open: everyMode, stopped: "quota",
	},
	{
		name: "space, by a deleted file that is mapped", exhaust: func(f target) (func(), error) { return fillWithDeletedFile(f, f.home, "mapped") },
		attempt:          func(f target) error { return writeSmallFile(f.victimDir) },
		exhaustedMessage: "the same", open: everyMode, stopped: "quota",
	},
	{
		name: "files (inodes) of the volume", exhaust: func(f target) (func(), error) { return exhaustInodes(f.home) }, attempt: func(f target) error { return writeSmallFile(f.victimDir) },
		exhaustedMessage: "the same: a file counts 4 KiB at least", open: everyMode, stopped: "quota",
	},
	{
		name: "space of /tmp", exhaust: func(target) (func(), error) { return fillFileSystem(os.TempDir()) }, attempt: func(target) error { return writeSmallFile(os.TempDir()) },
		exhaustedMessage: "quota.stop, where a profile has a directory of its own", open: everyMode, stopped: "quota", never: []string{"none"},
	},
	{
		name: "space of /tmp, by a deleted file", exhaust: func(f target) (func(), error) { return fillWithDeletedFile(f, os.TempDir(), "open") },
		attempt:          func(target) error { return writeSmallFile(os.TempDir()) },
		exhaustedMessage: "the same", open: everyMode, stopped: "quota", never: []string{"none"},
	},
	{
		name: "space of /dev/shm", exhaust: func(target) (func(), error) { return fillFileSystem("/dev/shm") },
		exhaustedMessage: "Landlock: no isolated profile reaches it", open: []string{"none"},
	},
	{
		name: "memory", exhaust: exhaustMemory,
		exhaustedMessage: "memory.max: the kernel in a control group, else hinit within seconds", open: everyMode, limit: "memory.max", stopped: "health",
	},
	{
		name: "processes", exhaust: exhaustProcesses,
		exhaustedMessage: "pids.max: a control group, else the count of the profile's own user", open: oneUser, limit: "pids.max",
	},
	{
		name: "file descriptors", exhaust: exhaustFiles,
		exhaustedMessage: "limits.nofile of each process, times pids.max",
	},
	{
		name: "inotify instances", exhaust: exhaustInotifyInstances, attempt: watchSelf,
		exhaustedMessage: "the kernel counts them for each user", open: oneUser,
	},
	{
		name: "inotify watches", exhaust: exhaustInotifyWatches, attempt: watchSelf,
		exhaustedMessage: "the kernel counts them for each user", open: oneUser,
	},
	{
		name: "queued signals, by timers", exhaust: func(target) (func(), error) { return openAll(newTimer), nil }, attempt: func(target) error { return openOne(newTimer) },
		exhaustedMessage: "the kernel counts them for each user", open: oneUser,
	},
	{
		name: "descriptors in messages", exhaust: func(target) (func(), error) { return openAll(newMessage), nil }, attempt: func(target) error { return openOne(newMessage) },
		exhaustedMessage: "the kernel counts them for each user", open: oneUser,
	},
	{
		name: "memory of pipes", exhaust: func(target) (func(), error) { return openAll(newPipe), nil }, attempt: func(target) error { return openOne(newPipe) },
		exhaustedMessage: "the kernel counts it for each user", open: oneUser,
	},
	{
		name: terminalsRow, exhaust: func(f target) (func(), error) { return exhaustByProcesses(f, "terminals") }, attempt: func(target) error {
			near, far, err := pty.Open()
			return errors.Join(err, closed(near), closed(far))
		},
		exhaustedMessage: "hinit, which restarts the gateway within seconds", open: everyMode, stopped: "health", never: oneUser,
	},
	{
		name: "processors", exhaust: exhaustProcessors, attempt: checkProcessorShare,
		exhaustedMessage: "cpu.weight in a control group; else hinit, within seconds: it runs on fewer processors", open: everyMode, limit: "cpu.weight", protectedModes: []string{"user"},
	},
	{
		name: "the container's log", exhaust: floodLog, attempt: printLine, check: checkPrinted,
		exhaustedMessage: "each log has a pipe and files of its own, and the console gives turns",
	},
	{
		name: "hinit's control socket", exhaust: floodControl, check: checkAnswered,
		exhaustedMessage: "each class of users has its own connections; isolated profiles have none",
	},
	{
		name: "TCP ports that the kernel chooses", exhaust: func(f target) (func(), error) { return exhaustByProcesses(f, "ports") }, attempt: func(target) error {
			l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", "0.0.0.0:0")
			return errors.Join(err, closed(l))
		},
		exhaustedMessage: "hinit, which restarts the gateway within seconds", open: everyMode, stopped: "health", never: oneUser,
	},
}

// closed closes a socket, unless it could not be opened.
func closed(c io.Closer) error {
	if c == nil || reflect.ValueOf(c).IsNil() {
		return nil
	}
	return c.Close()
}

// fillFileSystem writes until the file system of a directory is full.
func fillFileSystem(dir string) (func(), error) {
	path := filepath.Join(dir, "fill")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err = file.Write(block); err != nil {
			block = block[:len(block)/2] // Smaller and smaller pieces fill the last bytes.
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		return nil, err
	}
	return func() { _, _ = file.Close(), os.Remove(path) }, nil
}

// fillWithDeletedFile starts a daemon that fills a file system with a deleted file. The daemon has no link to the
// gateway.
func fillWithDeletedFile(f target, dir, how string) (func(), error) {
	cmd := exec.Command("/bin/sh", "-c", `"$0" &`, f.dir+"/bin/role")
	cmd.Env = []string{roleVar + "=holder", "HOLDER_DIR=" + dir, "HOLDER_HOW=" + how}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	_ = cmd.Wait() // Wait waits only for the shell, whose exit code means nothing.
	return func() { _ = syscall.Kill(pid, syscall.SIGKILL) }, err
}

// runFiller is the daemon of fillWithDeletedFile. It prints its PID when it has the file.
func runFiller() {
	dir := os.Getenv("HOLDER_DIR")
	remove, err := fillFileSystem(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	file, err := os.Open(filepath.Join(dir, "fill"))
	remove()
	if err == nil && os.Getenv("HOLDER_HOW") == "mapped" {
		var info os.FileInfo
		if info, err = file.Stat(); err == nil {
			_, err = unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
		}
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(os.Getpid())
	waitForStop()
	runtime.KeepAlive(file)
}

// exhaustInodes makes files until the file system takes no more.
func exhaustInodes(dir string) (func(), error) {
	top := filepath.Join(dir, "many")
	err := os.Mkdir(top, 0o700)
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(top, strconv.Itoa(i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return nil, err
	}
	return func() { _ = os.RemoveAll(top) }, nil
}

// writeSmallFile saves a small file, as a program saves its state.
func writeSmallFile(dir string) error {
	path := filepath.Join(dir, "small")
	return errors.Join(os.WriteFile(path, make([]byte, 16<<10), 0o600), os.Remove(path))
}

// exhaustMemory takes twice its limit. hinit may stop it before.
func exhaustMemory(f target) (func(), error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVar + "=eater", "EATER_HOME=" + f.home, "EATER_PAUSE=1ms"}
	if err := errors.Join(os.WriteFile(f.home+"/MB", []byte(strconv.Itoa(2*maxMemory>>20)), 0o600), cmd.Start()); err != nil {
		return nil, err
	}
	release := func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	for ; ; time.Sleep(50 * time.Millisecond) { // Poll, because the kernel does not report when the process has this size.
		text, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/status")
		if err != nil || strings.Contains(string(text), "zombie") {
			release()
			return nil, errors.New("the kernel or hinit has ended it")
		}
		_, rest, _ := strings.Cut(string(text), "\nRssAnon:")
		if kb, _ := strconv.Atoi(strings.Fields(rest + " 0")[0]); kb > 19*maxMemory>>10/10 {
			return release, nil
		}
	}
}

func exhaustProcesses(target) (func(), error) { return func() {}, manyProcesses(2 * maxProcesses) }

// exhaustFiles raises its limit, and opens more files than the old limit allowed.
func exhaustFiles(target) (func(), error) {
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4 * maxFiles, Max: 4 * maxFiles}) // If this fails, the limit stays lower.
	var fds []int
	release := func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	for range 2 * maxFiles {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			release()
			return nil, err
		}
		fds = append(fds, fd)
	}
	return release, nil
}

func exhaustInotifyInstances(target) (func(), error) {
	var fds []int
	for {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return func() {
				for _, fd := range fds {
					_ = unix.Close(fd)
				}
			}, nil
		}
		fds = append(fds, fd)
	}
}

// exhaustInotifyWatches takes all inotify watches of the user.
func exhaustInotifyWatches(f target) (func(), error) {
	text, err := os.ReadFile("/proc/sys/user/max_inotify_watches")
	most, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	const instances = 100
	top := filepath.Join(f.home, "watched")
	var dirs []string
	for i := range most/instances + 1 {
		dirs = append(dirs, filepath.Join(top, strconv.Itoa(i)))
		if err := os.MkdirAll(dirs[i], 0o700); err != nil {
			return nil, err
		}
	}
	var fds []int
	release := func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		_ = os.RemoveAll(top)
	}
	for {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			release()
			return nil, err
		}
		fds = append(fds, fd)
		for _, dir := range dirs {
			if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
				return release, nil
			}
		}
	}
}

func watchSelf(f target) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		defer unix.Close(fd)
		_, err = unix.InotifyAddWatch(fd, f.victimDir, unix.IN_CREATE)
	}
	return err
}

// exhaustProcessors starts many processes that use the processors. Each ends after four seconds of processor
// time, so that they don't delay other tests.
func exhaustProcessors(target) (func(), error) {
	var all []*exec.Cmd
	for range 16 * runtime.NumCPU() {
		cmd := exec.Command("/bin/sh", "-c", "ulimit -t 4; while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		all = append(all, cmd)
	}
	return func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill() // Ignore the error: the process may have ended.
		}
		for _, cmd := range all {
			_ = cmd.Wait() // The process was killed, so an error is expected.
		}
	}, nil
}

// checkProcessorShare fails if this process gets less than a tenth of one processor.
func checkProcessorShare(target) error {
	const wall = time.Second
	used := func() time.Duration {
		var t unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &t) // This call can't fail for the calling thread.
		return time.Duration(t.Utime.Nano() + t.Stime.Nano())
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := used()
	for end := time.Now().Add(wall); time.Now().Before(end); {
		continue
	}
	if got := used() - before; got < wall/10 {
		return fmt.Errorf("it gets %s of %s", got, wall)
	}
	return nil
}

// repeatUntilReleased calls do repeatedly in several goroutines.
func repeatUntilReleased(goroutines int, do func()) (release func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for !over.Load() {
				do()
			}
		})
	}
	return func() {
		over.Store(true)
		all.Wait()
	}
}

func floodLog(target) (func(), error) {
	lines := []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 600))
	return repeatUntilReleased(2, func() { _, _ = os.Stdout.Write(lines) }), nil
}

// printLine makes the victim write a log line, for which printed searches.
func printLine(target) error {
	_, err := fmt.Println("a line of the victim")
	return err
}

func checkPrinted(c *container) error {
	log := filepath.Join(c.dir, "home", "logs", "gateways", name(1), "current")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if text, _ := os.ReadFile(log); strings.Contains(string(text), "a line of the victim") {
			return nil
		}
	}
	return errors.New("the line is not in the log")
}

// checkAnswered checks that root gets the status.
func checkAnswered(c *container) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.client.Status(ctx)
	return err
}

// checkStop checks that root can stop a gateway and that the command is recorded.
func checkStop(c *container) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := c.client.Stop(ctx, name(3), client.WaitOptions{})
	state, err2 := os.ReadFile(filepath.Join(c.dir, "home", "profiles", name(3), "gateway_state.json"))
	if err = errors.Join(err, err2); err == nil && !strings.Contains(string(state), `"stopped"`) {
		err = fmt.Errorf("the record says %s", state)
	}
	return err
}

func floodControl(f target) (func(), error) {
	c := dial.New(f.dir + "/run/control.sock")
	return repeatUntilReleased(64, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = c.Status(ctx) // A refusal counts as an answer too.
	}), nil
}

// exhaustByProcesses takes all ephemeral ports or pseudoterminals, in several processes.
func exhaustByProcesses(f target, what string) (func(), error) {
	const each = maxFiles - 24
	var all []*exec.Cmd
	release := func() {
		for _, cmd := range all {
			_, _ = cmd.Process.Kill(), cmd.Wait()
		}
	}
	for {
		cmd := exec.Command("/proc/self/exe", strconv.Itoa(each), what)
		cmd.Env = []string{roleVar + "=listener", "TENANTS_DIR=" + f.dir}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			release()
			return nil, err
		}
		all = append(all, cmd)
		var n int
		if _, err := fmt.Fscan(out, &n); err != nil {
			release()
			return nil, err
		}
		if n < each {
			return release, nil
		}
	}
}

// listener opens ports or pseudoterminals, prints their number, and waits to be killed.
func listener() {
	n, most := 0, 0
	_, _ = fmt.Sscan(os.Args[1], &most)
	for ; n < most; n++ {
		if os.Args[2] == "terminals" {
			if _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
				break
			}
			continue
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil || unix.Bind(fd, &unix.SockaddrInet4{}) != nil {
			break
		}
	}
	fmt.Println(n)
	waitForStop()
}

// answersDir is the directory through which the test and the gateways communicate.
const answersDir = "answers"

// runExhauster is a gateway that takes or uses the resources that the files in answersDir name.
func runExhauster(victim bool) {
	if victim && os.Args[1] != name(1) {
		waitForStop()
		return
	}
	f := target{dir: os.Getenv("TENANTS_DIR")}
	f.home, f.victimDir = f.dir+"/home/profiles/"+name(0), f.dir+"/home/profiles/"+name(1)
	who := map[bool]string{false: "a", true: "b"}[victim]
	// The attacker had taken this resource before hinit ended it.
	old, _ := os.ReadFile(filepath.Join(f.dir, answersDir, "take-"+who))
	_ = os.WriteFile(filepath.Join(f.dir, answersDir, who+".ready"), []byte(strconv.Itoa(os.Getpid())), 0o644) //nolint:gosec // the test reads this file
	stop := make(chan struct{})
	go func() { waitForStop(); close(stop) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	release, last := func() {}, string(old)
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		text, _ := os.ReadFile(filepath.Join(f.dir, answersDir, "take-"+who))
		if string(text) == last {
			continue
		}
		last = string(text)
		release()
		release = func() {}
		answer := "done"
		for _, r := range resources {
			if r.name != last[min(len(last), len("0 ")):] {
				continue
			}
			var err error
			if victim {
				err = r.attempt(f)
			} else {
				var now func()
				if now, err = r.exhaust(f); err == nil {
					release = now
				}
			}
			if err != nil {
				answer = err.Error()
			}
		}
		_ = os.WriteFile(filepath.Join(f.dir, answersDir, who), []byte(last+"\n"+answer), 0o644) //nolint:gosec // the test reads this file
	}
}
