//go:build linux

package bare

import (
	"strings"
	"syscall"
	"unsafe"
)

// State of the thread before the Go runtime starts. g0 replaces the runtime's g, its record of a goroutine. All fields of g0
// are zero. So the stack limit is the lowest address, and every stack check passes.
var (
	g0         [64]uintptr
	mainThread [2]uintptr // amd64 finds g here
)

// Only the assembly uses g0 and thread.
var _, _ = &g0, &mainThread

// CStrings is a list of C strings, which ends at a null pointer or after N strings.
type CStrings struct {
	First *uintptr
	Len   int
}

// InitialStack returns the command line and the environment of a new process, from the stack that the kernel has made. The stack
// has argc, argv, a null pointer, the environment, and another null pointer.
func InitialStack(stack *uintptr) (argv, env CStrings) {
	argc := int(*stack)
	return CStrings{(*uintptr)(unsafe.Add(unsafe.Pointer(stack), unsafe.Sizeof(*stack))), argc},
		CStrings{(*uintptr)(unsafe.Add(unsafe.Pointer(stack), uintptr(argc+2)*unsafe.Sizeof(*stack))), 1 << 16}
}

// Index returns the word at an index, or "" after the end. The string shares the memory into which the kernel has put the
// command line, which does not change.
func (w CStrings) Index(i int) string {
	if i >= w.Len {
		return ""
	}
	p := *(**byte)(unsafe.Add(unsafe.Pointer(w.First), uintptr(i)*unsafe.Sizeof(*w.First)))
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return unsafe.String(p, n)
}

// Slice returns the words from an index on.
func (w CStrings) Slice(i int) CStrings {
	return CStrings{(*uintptr)(unsafe.Add(unsafe.Pointer(w.First), uintptr(i)*unsafe.Sizeof(*w.First))), w.Len - i}
}

// Getenv returns the value of an environment variable, or "".
func (w CStrings) Getenv(name string) string {
	for i := 0; w.Index(i) != ""; i++ {
		if value, is := strings.CutPrefix(w.Index(i), name); is && value != "" && value[0] == '=' {
			return value[1:]
		}
	}
	return ""
}

// BaseName returns the part of a path after the last slash.
func BaseName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// Syscall3 makes a system call with three arguments. After an error it returns a negative errno.
func Syscall3(nr, a, b, c uintptr) int { return Syscall6(nr, a, b, c, 0, 0) }

// Syscall6 makes a system call with five arguments and a sixth one that is 0. After an error it returns a negative errno.
func Syscall6(nr, a, b, c, d, e uintptr) int {
	r, _, errno := syscall.RawSyscall6(nr, a, b, c, d, e, 0)
	if errno != 0 {
		return -int(errno)
	}
	return int(r)
}

// Pointer returns the address of the word at an index, for a system call.
func (w CStrings) Pointer(i int) uintptr {
	return *(*uintptr)(unsafe.Add(unsafe.Pointer(w.First), uintptr(i)*unsafe.Sizeof(*w.First)))
}

// TextBuffer is a buffer of fixed size. Text that does not fit is dropped.
type TextBuffer struct {
	Buf [8 << 10]byte
	Len int
}

// Add appends s to t. It returns t, so that calls can be chained.
func (t *TextBuffer) Add(s string) *TextBuffer {
	t.Len += copy(t.Buf[t.Len:], s)
	return t
}

// AddNumber appends n to t in decimal digits. It returns t.
func (t *TextBuffer) AddNumber(n int) *TextBuffer {
	if n >= 10 {
		t.AddNumber(n / 10)
	}
	t.Len += copy(t.Buf[t.Len:], "0123456789"[n%10:n%10+1])
	return t
}

// String returns the text. It is valid until the text changes.
func (t *TextBuffer) String() string { return unsafe.String(&t.Buf[0], t.Len) }

// ParseNumber parses the number at the beginning of text. rest is the text after the colon that follows. A negative number is
// returned in two's complement.
func ParseNumber(text string) (n uint32, rest string) {
	if text != "" && text[0] == '-' {
		n, rest = ParseNumber(text[1:])
		return -n, rest
	}
	i := 0
	for ; i < len(text) && text[i] != ':'; i++ {
		n = 10*n + uint32(text[i]-'0')
	}
	return n, text[min(i+1, len(text)):]
}

// Write writes s, and returns the number of written bytes. It waits for space in a pipe, even if the starter of the program has
// set O_NONBLOCK.
func Write(fd int, s string) int {
	return readOrWriteAll(syscall.SYS_WRITE, fd, unsafe.Slice(unsafe.StringData(s), len(s)))
}

// Read fills the buffer to from fd, until its end or an error, and returns the number of bytes.
func Read(fd int, to []byte) (n int) { return readOrWriteAll(syscall.SYS_READ, fd, to) }

// readOrWriteAll repeats read(2) or write(2) until it has transferred all bytes of data, and returns their number. It ends early
// at the end of the file or after an error.
func readOrWriteAll(call uintptr, fd int, data []byte) (n int) {
	for n < len(data) {
		m := Syscall3(call, uintptr(fd), uintptr(unsafe.Pointer(&data[n])), uintptr(len(data)-n))
		if call == syscall.SYS_WRITE && m == -int(syscall.EAGAIN) {
			full := [2]uint32{uint32(fd), 4} // a struct pollfd that asks for POLLOUT, on a little-endian machine
			Syscall3(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&full)), 1, 0)
			continue
		}
		if m == -int(syscall.EINTR) {
			continue
		}
		if m <= 0 {
			break
		}
		n += m
	}
	return n
}

// AtFDCWD is AT_FDCWD, which means the current directory.
const AtFDCWD = ^uintptr(99)
