//go:build linux && (amd64 || arm64)

package proc

// sentHandler is the address of the handler in assembly.
var sentHandler uintptr
