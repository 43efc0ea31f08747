//go:build !linux || (!amd64 && !arm64)

package proc

// sentHandler is zero, because this platform has no handler in assembly. Then the Go runtime alone decides which signals a
// process has sent. This process ignores them, but does not count them.
var sentHandler uintptr
