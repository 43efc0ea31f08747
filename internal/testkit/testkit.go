// Package testkit holds helpers that the tests of many packages share. They wait for a condition, skip or fail without root, and
// run many waiting tests at the same time. Only tests import it. It owns no goroutine except the reader of each [Terminal].
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

	"golang.org/x/sys/unix"
)

// Patience is how long a test waits for an event that must happen. A test that passes does not wait that long. On a machine that
// emulates its processor, the environment variable HINIT_TEST_PATIENCE holds a longer time. The variable is then removed, because a
// hinit that tests start would warn about an unknown variable.
var Patience = func() time.Duration {
	patience, err := time.ParseDuration(os.Getenv("HINIT_TEST_PATIENCE"))
	_ = os.Unsetenv("HINIT_TEST_PATIENCE")
	if err != nil {
		return 2 * time.Minute
	}
	return patience
}()

// Until polls cond and fails the test when it doesn't become true within [Patience].
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for begin, looked := time.Now(), time.Now(); !cond(); looked = time.Now() {
		if time.Since(begin) > Patience {
			t.Fatalf("not within %v: %s", Patience, what)
		}
		PausePoll(begin, looked)
	}
}

// PausePoll waits between two checks of a condition. begin is the time of the first check, and looked the time of the last one.
// If the wait is long, or a check takes long, PausePoll waits longer. Otherwise the checks would take the processor from the
// program that they wait for.
func PausePoll(begin, looked time.Time) {
	<-time.After(min(max(2*time.Millisecond, time.Since(looked), time.Since(begin)/10), 100*time.Millisecond))
}

// SkipOrFail skips a test that can't run here, for the reason why. With CI=true it fails the test instead, because CI must not
// skip tests.
func SkipOrFail(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s, and CI must not skip", why)
	}
	t.Skip(why)
}

// NeedRoot skips the test if it doesn't run as root, see [SkipOrFail].
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		SkipOrFail(t, "needs root")
	}
}

// SkipIfShort skips a test that takes seconds of the processor, if -short is set.
func SkipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
}

// ShortLeavesOut reports whether -short is set, and parses the flags. TestMain calls it in packages whose tests drive finished
// programs for longer than -short should take. If the result is true, TestMain returns without running tests.
func ShortLeavesOut() bool {
	flag.Parse()
	return testing.Short()
}

// IsolateProcess removes inherited settings that tests would pass on to processes and files. These are the umask, and descriptors
// such as those that make -j opens. With -short, the files of tests are in memory, if there is room and TMPDIR isn't set.
// TestMain calls it.
func IsolateProcess() {
	flag.Parse()
	if dir := InMemory(); dir != "" && os.Getenv("TMPDIR") == "" {
		_ = os.Setenv("TMPDIR", dir)
	}
	syscall.Umask(0o022)
	_ = os.Chmod("/proc/self/exe", 0o755)                            // tests execute this program as other users
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // the flag needs Linux 5.11
}

// InMemory returns a directory in memory for short-lived files, with -short only. Thousands of files on a disk take seconds of
// the kernel's time, and the long tests must use a file system as users have it. The result is "" if no such directory has room
// for programs.
func InMemory() string {
	const dir, room = "/dev/shm", 1 << 30
	var at unix.Statfs_t
	if !testing.Short() || unix.Statfs(dir, &at) != nil || at.Type != unix.TMPFS_MAGIC || at.Flags&unix.ST_NOEXEC != 0 ||
		at.Bavail*uint64(at.Bsize) < room || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return dir
}

// AtOnce lets n parallel tests of this binary run at a time, unless the command line sets the number. It is for tests that mostly
// wait, which need no processor each. On a slow machine, fewer run at a time: with too many, time limits of the programs under test
// pass. TestMain calls it.
func AtOnce(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(max(2, min(n, int(float64(n)*float64(quickStart)/float64(startTime()))))))
	}
}

// quickStart is the processor time of the start of a program on a machine that can run as many tests at a time as they say.
const quickStart = 1500 * time.Microsecond

// startTime returns the processor time that the start and the end of a small program take, on average. The time on a clock would
// depend on what else runs at the moment.
func startTime() time.Duration {
	const times = 30
	used := func() time.Duration {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &u) // Getrusage can't fail here
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	for range times {
		_ = exec.CommandContext(context.Background(), "/bin/true").Run() // without /bin/true, the time is short, and all tests run
	}
	return max((used()-before)/times, time.Microsecond)
}

// WriteProgram writes a file that is executed soon. It prevents forks during the write. A process that another test forks would
// have the file open for writing until that process calls exec. Until then the file could not be executed (execve(2), ETXTBSY).
func WriteProgram(path string, text []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, text, 0o755) //nolint:gosec // the file is a program
}
