//go:build !linux || (!amd64 && !arm64)

package entry

// FewThreads is true if PID 1 must use as few threads as possible.
var FewThreads bool

// HasRoomFor reports whether this process can create more threads. On this platform that can't be tested, so the result is true.
func HasRoomFor(int) bool { return true }

// OccupyPIDs does nothing on this platform.
func OccupyPIDs(int) {}
