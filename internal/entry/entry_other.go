//go:build !linux || (!amd64 && !arm64)

package entry

// Short says that PID 1 must use as few threads as possible.
var Short bool

// Room reports whether the process can make more threads. On this platform that can't be tested.
func Room(int) bool { return true }

// Keep does nothing on this platform.
func Keep(int) {}
