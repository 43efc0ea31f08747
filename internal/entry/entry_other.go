//go:build !linux || (!amd64 && !arm64)

package entry

// Short says that PID 1 must use as few threads as possible.
var Short bool

// HasRoomFor reports whether the process can make more threads. On this platform that can't be tested.
func HasRoomFor(int) bool { return true }

// Keep does nothing on this platform.
func Keep(int) {}
