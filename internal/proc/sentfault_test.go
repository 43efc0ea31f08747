package proc

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/testproc"
)

// A SIGSEGV or similar signal from kill(2), sigqueue(3) or fcntl(2) F_SETSIG is only counted. A real nil dereference must still
// be a panic.
func TestASentFaultIsIgnoredAndARealOneIsNot(t *testing.T) {
	if sentHandler == 0 {
		t.Skip("there is no handler for this architecture")
	}
	signals := IgnoreSentFaults()
	const each = 12
	begin := make(map[syscall.Signal]uint64)
	all := slices.Concat(faultSignals, runtimeDefaultSignals)
	for _, s := range all {
		begin[s] = sentFaultCount(s)
	}
	for _, s := range all {
		for i := range each {
			before := sentFaultCount(s)
			switch i % 3 {
			case 0:
				if err := unix.Kill(os.Getpid(), s); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := testproc.SignalByDescriptor(os.Getpid(), s); err != nil {
					t.Fatal(err)
				}
			default:
				info := [32]int32{int32(s), 0, -1}
				if _, _, errno := unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(os.Getpid()), uintptr(s), uintptr(unsafe.Pointer(&info))); errno != 0 {
					t.Fatal(errno)
				}
			}
			// The kernel would merge a second signal into a pending one.
			for end := time.Now().Add(10 * time.Second); sentFaultCount(s) == before; {
				if time.Now().After(end) {
					t.Fatalf("%v was not counted", s)
				}
			}
		}
	}
	<-signals
	for _, f := range SentFaults() {
		// The sender of the last SIGSEGV is unknown, because sigqueue can forge it.
		if f.Count != begin[f.Signal]+each || f.Signal == unix.SIGSEGV && f.UID != -1 {
			t.Errorf("%+v", f)
		}
	}
	_ = unix.Kill(os.Getpid(), unix.SIGSEGV)
	for end := time.Now().Add(10 * time.Second); sentFaultCount(unix.SIGSEGV) == begin[unix.SIGSEGV]+each && time.Now().Before(end); {
	}
	for _, f := range SentFaults() {
		if f.Signal == unix.SIGSEGV && (f.PID != os.Getpid() || f.UID != os.Getuid()) {
			t.Errorf("sent by this process: %+v", f)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a nil pointer is no panic")
		}
	}()
	*nilPointer = 1
}

// nilPointer is a nil pointer that the linter does not recognize.
var nilPointer *int

func sentFaultCount(s syscall.Signal) uint64 {
	for _, f := range SentFaults() {
		if f.Signal == s {
			return f.Count
		}
	}
	return 0
}
