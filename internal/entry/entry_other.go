//go:build !linux || (!amd64 && !arm64)

package entry

// FewThreads says that PID 1 must do with as few threads as possible.
var FewThreads bool

// HasRoomFor returns true, because this platform has no code to find out.
func HasRoomFor(int) bool { return true }

// OccupyPIDs does nothing on this platform.
func OccupyPIDs(int) {}
