//go:build linux

package bare

import (
	"syscall"
	"unsafe"
)

// The state of the thread before the runtime starts. g0 takes the place of the runtime's g. Its zeros make the stack limit the
// lowest possible one, so every stack check passes.
var (
	g0     [64]uintptr
	thread [2]uintptr // amd64 reads g from here
)

// Only the assembly uses g0 and thread.
var _, _ = &g0, &thread

// Words is a list of C strings that ends at a null pointer or after n strings.
type Words struct {
	First *uintptr
	N     int
}

// Begun returns the command line and the environment from the stack of a new process. The stack holds argc, argv, a null pointer,
// the environment, and another null pointer.
func Begun(stack *uintptr) (argv, env Words) {
	argc := int(*stack)
	return Words{(*uintptr)(unsafe.Add(unsafe.Pointer(stack), unsafe.Sizeof(*stack))), argc},
		Words{(*uintptr)(unsafe.Add(unsafe.Pointer(stack), uintptr(argc+2)*unsafe.Sizeof(*stack))), 1 << 16}
}

// At returns the word at an index, or "" after the end. The string points into the memory where the kernel has put the arguments
// and the environment of the process. That memory does not change.
func (w Words) At(i int) string {
	if i >= w.N {
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

// Get returns the value of a variable, or "" if the environment does not contain it.
func (w Words) Get(name string) string {
	for i := range w.N {
		v := w.At(i)
		if v == "" {
			break
		}
		if len(v) > len(name) && v[len(name)] == '=' && v[:len(name)] == name {
			return v[len(name)+1:]
		}
	}
	return ""
}

// Base returns the part of a path after its last slash.
func Base(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// Syscall3 makes a system call with three arguments. It returns a negative errno after an error.
func Syscall3(nr, a, b, c uintptr) int { return Syscall6(nr, a, b, c, 0, 0) }

// Syscall6 makes a system call with six arguments, of which the last is 0. It returns a negative errno after an error.
func Syscall6(nr, a, b, c, d, e uintptr) int {
	r, _, errno := syscall.RawSyscall6(nr, a, b, c, d, e, 0)
	if errno != 0 {
		return -int(errno)
	}
	return int(r)
}

// Pointer returns the address of the word at index i.
func (w Words) Pointer(i int) uintptr {
	return *(*uintptr)(unsafe.Add(unsafe.Pointer(w.First), uintptr(i)*unsafe.Sizeof(*w.First)))
}

// Text is a buffer of fixed size. It drops text that does not fit.
type Text struct {
	Buf [8 << 10]byte
	N   int
}

// Add appends s to the text.
func (t *Text) Add(s string) *Text {
	t.N += copy(t.Buf[t.N:], s)
	return t
}

// Num appends the decimal digits of n to the text.
func (t *Text) Num(n int) *Text {
	if n >= 10 {
		t.Num(n / 10)
	}
	t.N += copy(t.Buf[t.N:], "0123456789"[n%10:n%10+1])
	return t
}

// String returns the text. The string is valid until the text changes.
func (t *Text) String() string { return unsafe.String(&t.Buf[0], t.N) }

// Number parses the number at the beginning of text. The result rest is the text after the colon that follows the number. A
// negative number is returned in two's complement.
func Number(text string) (n uint32, rest string) {
	if text != "" && text[0] == '-' {
		n, rest = Number(text[1:])
		return -n, rest
	}
	i := 0
	for ; i < len(text) && text[i] != ':'; i++ {
		n = 10*n + uint32(text[i]-'0')
	}
	if i < len(text) {
		rest = text[i+1:]
	}
	return n, rest
}

// Write writes all of s, and returns the number of bytes that it could write.
func Write(fd int, s string) int {
	n := 0
	for n < len(s) {
		m := Syscall3(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.StringData(s[n:]))), uintptr(len(s)-n))
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

// Index returns the index at which part begins in s, or -1 if s does not contain it.
func Index(s, part string) int {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part {
			return i
		}
	}
	return -1
}

// Here is AT_FDCWD, which stands for the current directory of this process.
const Here = ^uintptr(99)
