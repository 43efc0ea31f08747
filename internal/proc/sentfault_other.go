//go:build !linux || (!amd64 && !arm64)

package proc

// sentHandler is zero, because there is no handler in assembly for this platform. So the Go runtime alone decides which
// signals come from another process. hinit ignores these signals, but can't count them.
var sentHandler uintptr
