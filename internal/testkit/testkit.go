// Package testkit holds helpers that the tests of many packages share. They wait for a condition, skip or fail without root,
// and run many waiting tests at the same time. Only tests import it. It owns the goroutines of [WithinCPU] and the readers of
// [Terminal].
package testkit

import (
	"context"
	"flag"
	"math"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Patience is how long a test waits for an event that must happen. A test that passes does not wait that long. On a machine
// that emulates its processor, the environment variable HINIT_TEST_PATIENCE sets a longer time. The function removes the
// variable, because a hinit that tests start would warn about an unknown variable.
var Patience = func() time.Duration {
	patience, err := time.ParseDuration(os.Getenv("HINIT_TEST_PATIENCE"))
	_ = os.Unsetenv("HINIT_TEST_PATIENCE")
	if err != nil {
		return 2 * time.Minute
	}
	return patience
}()

// Until polls cond, and fails the test if cond doesn't return true within [Patience]. The failure contains the description
// what.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for begin, looked := time.Now(), time.Now(); !cond(); looked = time.Now() {
		if time.Since(begin) > Patience {
			t.Fatalf("not within %v: %s", Patience, what)
		}
		PausePoll(begin, looked)
	}
}

// WithinCPU calls f, and fails the test if this process uses more than limit of processor time for it. Unlike a time on the
// clock, processor time does not grow while other programs run. f must not end the goroutine, and no other test may run
// meanwhile.
func WithinCPU(t testing.TB, limit time.Duration, f func()) {
	t.Helper()
	ended, begin := make(chan struct{}), usedCPU(unix.RUSAGE_SELF)
	go func() {
		defer close(ended)
		f()
	}()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-time.After(100 * time.Millisecond):
		}
		if used := usedCPU(unix.RUSAGE_SELF) - begin; used > limit {
			t.Fatalf("it has taken %v of processor time, and %v are allowed", used, limit)
		}
	}
}

// usedCPU returns the processor time of this process or its children: who is a constant of getrusage(2).
func usedCPU(who int) time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// PausePoll waits between two checks of a condition. begin is the time of the first check, and looked the time of the last one.
// The pause grows with the wait and with the duration of a check. Otherwise the checks would take the processor from the
// program under test.
func PausePoll(begin, looked time.Time) {
	<-time.After(min(max(2*time.Millisecond, time.Since(looked), time.Since(begin)/10), 100*time.Millisecond))
}

// SkipOrFail skips a test that can't run here. why is the reason. With CI=true it fails the test, because CI must not skip
// tests.
func SkipOrFail(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s, and CI must not skip", why)
	}
	t.Skip(why)
}

// NeedRoot skips the test without root, see [SkipOrFail].
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		SkipOrFail(t, "needs root")
	}
}

// SkipIfShort skips a test that uses seconds of processor time, if -short is set.
func SkipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
}

// SkippedInShort parses the flags and reports whether -short is set. TestMain calls it in packages whose tests run finished
// programs, which take too long for -short. If it returns true, TestMain returns without running tests.
func SkippedInShort() bool {
	flag.Parse()
	return testing.Short()
}

// IsolateProcess removes inherited settings that tests would pass on to processes and files: the umask, and open descriptors,
// for instance from make -j. With -short, the tests' files are in memory, if memory suffices and TMPDIR isn't set. TestMain
// calls IsolateProcess.
func IsolateProcess() {
	flag.Parse()
	if dir := MemoryDir(); dir != "" && os.Getenv("TMPDIR") == "" {
		_ = os.Setenv("TMPDIR", dir)
	}
	syscall.Umask(0o022)
	_ = os.Chmod("/proc/self/exe", 0o755) // tests let other users execute this program
	// Ignore the error: before Linux 5.11, the kernel does not know the flag.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}

// MemoryDir returns a directory in memory for short-lived files, but only with -short. In memory, thousands of files take no
// seconds of the kernel's time. The long tests must use a real file system. The result is "" without a directory that has
// enough memory for programs.
func MemoryDir() string {
	const dir, room = "/dev/shm", 1 << 30
	var at unix.Statfs_t
	if !testing.Short() || unix.Statfs(dir, &at) != nil || at.Type != unix.TMPFS_MAGIC || at.Flags&unix.ST_NOEXEC != 0 ||
		at.Bavail*uint64(at.Bsize) < room || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return dir
}

// LimitParallel lets n parallel tests of this binary run at the same time, unless the command line sets the number. Use it for
// tests that mostly wait, and so don't need a processor each. On a slow machine it allows fewer, because time limits of the
// programs under test would pass. TestMain calls LimitParallel.
func LimitParallel(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(max(2, min(n, int(float64(n)*float64(fastProgramStart)/float64(programStartTime()))))))
	}
}

// fastProgramStart is the processor time for the start of a program on a fast machine. On a slower machine, [LimitParallel]
// allows fewer tests.
const fastProgramStart = 1500 * time.Microsecond

// programStartTime returns the average processor time for the start and the end of a small program. Time on a clock would depend
// on other running programs.
func programStartTime() time.Duration {
	const times = 30
	before := usedCPU(unix.RUSAGE_CHILDREN)
	for range times {
		// Without /bin/true the time is short, and LimitParallel allows all tests.
		_ = exec.CommandContext(context.Background(), "/bin/true").Run()
	}
	return max((usedCPU(unix.RUSAGE_CHILDREN)-before)/times, time.Microsecond)
}

// WriteProgram writes a file that is executed soon. During the write it prevents forks, because a process that another test
// forks would have the file open for writing until its exec. Until then the file could not be executed (execve(2), ETXTBSY).
func WriteProgram(path string, text []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, text, 0o755) //nolint:gosec // the file is a program
}

// AfterClockStep returns t as it would be if the wall clock had been set by d since t was read. Its monotonic reading stays.
func AfterClockStep(t time.Time, d time.Duration) time.Time {
	const hasMonotonic, seconds = 1 << 63, 30 // layout of a time.Time in package time
	wall := (*uint64)(unsafe.Pointer(&t))
	if *wall&hasMonotonic == 0 {
		panic("the time has no monotonic reading")
	}
	*wall += uint64(-d/time.Second) << seconds
	return t
}
