//go:build linux && (amd64 || arm64)

package proc

// sentHandler is the address of the signal handler in sentfault_linux_*.s.
var sentHandler uintptr
