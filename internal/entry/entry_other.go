//go:build !linux || (!amd64 && !arm64)

package entry

// Short says that PID 1 can have no more than the fewest threads.
var Short bool

// Room reports whether the process can have so many threads more, which can't be tried here.
func Room(int) bool { return true }

// Keep does nothing here.
func Keep(int) {}
