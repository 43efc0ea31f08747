//go:build !linux || (!amd64 && !arm64)

package proc

// sentHandler is zero, because this platform has no handler in assembly. The Go runtime alone decides then which signals were
// sent by a process: these are ignored, but not counted.
var sentHandler uintptr
