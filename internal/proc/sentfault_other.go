//go:build !linux || (!amd64 && !arm64)

package proc

// sentHandler is zero, because this platform has no handler in assembly. hinit then ignores signals from other processes, but
// can't count them.
var sentHandler uintptr
