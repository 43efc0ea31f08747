//go:build !linux || (!amd64 && !arm64)

package entry

// FewThreads is set if PID 1 must work with as few threads as possible. On this platform it never is.
var FewThreads bool

// HasRoomFor returns true, because this platform has no code to find out.
func HasRoomFor(int) bool { return true }

// OccupyPIDs does nothing on this platform.
func OccupyPIDs(int) {}
