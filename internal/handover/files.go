package handover

import "os"

// Descriptor returns the number of an open file, -1 for none or a closed one, and leaves the file as it is.
func Descriptor(f *os.File) int {
	fd := -1
	if raw, err := f.SyscallConn(); err == nil { // of a nil file it is an error
		_ = raw.Control(func(n uintptr) { fd = int(n) }) // of a closed one too
	}
	return fd
}

// File is the opposite of Descriptor. A descriptor must be made a file once only: each closes it in the end.
func File(fd int, name string) *os.File {
	if fd < 0 {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}
